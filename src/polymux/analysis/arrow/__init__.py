"""Arrow arrays and record batches built from compiled buffers."""
