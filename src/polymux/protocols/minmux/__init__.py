"""Minmux: codec, packets, item codecs, profiles, validation, id reuse and the protocol itself."""
