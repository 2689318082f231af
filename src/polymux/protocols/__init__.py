"""The protocol implementations: a package per protocol, and the registry.

Each package holds the rules and frame kinds (`rules`), the `Protocol` subclass (`protocol`:
decoding and encoding, validation, state changes, frames to send) and its parts, such as codecs and
the state of reused ids. `registry` makes an instance from a protocol string such as
`nerdbank:version=2`.

Imports only `core`.
"""
