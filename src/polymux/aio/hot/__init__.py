"""The compiled part of the live side: what runs for every message."""
