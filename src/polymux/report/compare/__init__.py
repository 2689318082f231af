"""Comparison of two analyses: what changed, by how much, and whether chance explains it."""
