"""Packets of a capture: decoded headers, flows, and the index of a file."""
