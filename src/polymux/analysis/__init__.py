"""One session's bytes in, rows out: protocol guessing, the walk, stalls and the table schemas.

The doors: `walk.walk` and `walk.walk_flow` decode, judge and measure; `plan.Plan` says what is
wanted; `tables_out.TableWriter` writes Parquet; `digest.digest_tables` compares two outputs;
`guess.guess` names a protocol; `tables.TABLES` are the schemas. What touches every frame lives in
`hot` and is compiled.

No Spark here; `spark`, `report` and `cli` stand on this package, and it stands on `capture`,
`protocols` and `core`.
"""
