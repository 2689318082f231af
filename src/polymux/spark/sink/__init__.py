"""A DataFrame sent over multiplexed streams, and read back from tables."""
