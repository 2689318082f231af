"""Streams of a live session, by shape: duplex bytes, messages, items and exchanges."""
