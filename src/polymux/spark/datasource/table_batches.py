"""Record batches of one table, shaped as Spark reads them.

The batch reader and the stream reader both run these functions inside a task: they analyze sessions
one at a time and hand Spark batches of at most `MAX_BATCH_ROWS` rows, in the requested columns and
exactly the types of `spark_schema`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.arrow_batches import decode_dictionaries, make_batch
from polymux.analysis.session.analyzer import analyze_session_steps
from polymux.capture import FileSummary, TcpSession
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BATCH_ROWS = 8192  # rows; the fastest size for the transfer between Python and Java


def spark_batches(
    table: str, columns: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Select `columns`, cast them to the types Spark expects, and split long batches."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(spark_schema(table, columns), timezone="UTC")
    for batch in batches:
        selected = decode_dictionaries(table, batch).select(list(columns))
        arrays = [
            column.cast(field.type) for column, field in zip(selected.columns, schema, strict=True)
        ]
        exact = pa.record_batch(arrays, schema=schema)
        for start in range(0, exact.num_rows, MAX_BATCH_ROWS):
            yield exact.slice(start, MAX_BATCH_ROWS)


def session_batches(
    sessions: Iterable[TcpSession], options: AnalysisOptions
) -> Iterator[pa.RecordBatch]:
    """Analyze the sessions and yield the batches of the table in `options` as they fill up."""
    ready: list[pa.RecordBatch] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        ready.append(batch)

    for session in sessions:
        for _ in analyze_session_steps(session, options, emit):
            yield from ready
            ready.clear()
        yield from ready
        ready.clear()


def capture_batches(summaries: Sequence[FileSummary]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the `captures` table as one batch; nothing if there are none."""
    rows = [asdict(summary) for summary in summaries]
    if rows:
        yield make_batch("captures", {name: [row[name] for row in rows] for name in rows[0]})
