"""Packets for bytes that were recorded above TCP: synthesised Ethernet, IP and TCP headers."""
