"""The sans-IO heart: one machine that decodes, judges and keeps a conversation.

No I/O, clock, randomness or logging lives here; time, nonces and limits come in as arguments.
Everything is typed Python that mypyc compiles, and imports only the standard library and librt.
Every other package may import this one; this one imports nothing else of polymux.
"""
