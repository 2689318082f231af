"""Analysis of one session: reassembled bytes in, rows of the tables out.

`session.analyzer.analyze_session` decodes, validates and measures a session;
`options.AnalysisOptions` says what the caller wants; `output.parquet.TableWriter` writes Parquet;
`output.table_digest.digest_tables` compares two outputs; `detection.detector.detect` names a
protocol; `schema.tables.TABLES` are the schemas. Modules that process every frame are compiled.

It uses `capture`, `protocols`, `core` and `text`, and no Spark; `spark`, `report` and `cli` use it.
"""
