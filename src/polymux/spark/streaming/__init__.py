"""Following a folder of captures in micro-batches."""
