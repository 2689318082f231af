"""Synthesised Ethernet, IP and TCP headers for bytes that were recorded above TCP."""
