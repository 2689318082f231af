"""The tables: their columns, types and keys."""
