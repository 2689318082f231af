"""Rows to batches to Parquet files."""
