"""Packets of a capture: header decoding, flows, and the index of a file."""
