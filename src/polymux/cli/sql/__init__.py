"""SQL over captures and tables with DuckDB: sources, the locked database, results, the prompt."""
