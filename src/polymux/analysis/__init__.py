"""One session's bytes in, rows out: protocol guessing, the walk, stalls and the table schemas.

No Spark here; `spark`, `report` and `cli` stand on this package, and it stands on `capture`,
`protocols` and `core`.
"""
