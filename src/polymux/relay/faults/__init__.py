"""Faults that a relay injects: rules that choose them, and what each does to a stream."""
