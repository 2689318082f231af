"""Nerdbank MultiplexingStream, versions 1 to 3: codec, state, rules and the protocol itself."""
