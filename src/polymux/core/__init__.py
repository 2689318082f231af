"""The sans-IO core: decodes, validates and tracks a multiplexed connection.

`Observer` watches both directions of a connection, `Endpoint` is one live side of it; both drive
the same `Connection`, which drives a `Protocol`. There is no I/O, clock or logging here: time,
nonces and limits are arguments. (The only randomness is the hash seed of `stream_table`.)

All modules are typed Python that mypyc compiles; they import only the standard library and librt.
Every other package may import this one; this one imports no other package of polymux.
"""
