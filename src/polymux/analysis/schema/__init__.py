"""The schemas of the tables: columns, types and keys."""
