"""Nerdbank MultiplexingStream, versions 1 to 3: codec, rules and the protocol."""
