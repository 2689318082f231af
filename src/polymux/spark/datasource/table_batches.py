"""Record batches of one table, shaped as Spark reads them.

The batch reader and the stream reader both run these functions inside a task: they analyze flows
side by side, as `analyze` does, and hand Spark batches of at most `MAX_BATCH_ROWS` rows: the wanted
rows, in the requested columns and exactly the types of `spark_schema`. Other columns are not
converted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.arrow_batches import make_batch
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.session.analyzer import analyze_session_steps
from polymux.capture import FileSummary, TcpSession
from polymux.capture.io.read_ahead import ReadAhead, SizedFlow, interleave
from polymux.spark.datasource.selection import RowSelection
from polymux.spark.datasource.types import spark_schema

if TYPE_CHECKING:
    import pyarrow as pa

F = TypeVar("F", bound=SizedFlow)
MAX_BATCH_ROWS = 8192  # rows; the fastest size for the transfer between Python and Java


def spark_batches(
    selection: RowSelection, columns: Sequence[str], batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Select rows and `columns`, cast them to the types Spark expects, and split long batches."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(spark_schema(selection.table, columns), timezone="UTC")
    for batch in batches:
        selected = selection.select_rows(batch).select(list(columns))
        arrays = [
            column.cast(field.type) for column, field in zip(selected.columns, schema, strict=True)
        ]
        exact = pa.record_batch(arrays, schema=schema)
        for start in range(0, exact.num_rows, MAX_BATCH_ROWS):
            yield exact.slice(start, MAX_BATCH_ROWS)


def session_batches(
    flows: Iterable[F],
    sessions_of_flow: Callable[[F, ReadAhead], Iterable[TcpSession]],
    options: AnalysisOptions,
    selection: RowSelection,
) -> Iterator[pa.RecordBatch]:
    """Analyze the sessions of flows and yield the batches of the table in `options` as they fill.

    Args:
        flows: In order of their start.
        sessions_of_flow: The sessions of a flow, whose reads are shared with those of other flows.
        options: As for `analyze_session`.
        selection: Sessions that it does not accept are not read.
    """
    ready: list[pa.RecordBatch] = []

    def emit(table: str, batch: pa.RecordBatch) -> None:
        ready.append(batch)

    batcher = RowBatcher(emit, MAX_BATCH_ROWS)

    def steps(flow: F, read_ahead: ReadAhead) -> Iterator[int]:
        for session in sessions_of_flow(flow, read_ahead):
            if selection.accepts_session(session, options):
                yield from analyze_session_steps(session, options, emit, batcher)

    for _ in interleave(flows, steps):
        yield from ready
        ready.clear()
    batcher.flush()
    yield from ready


def capture_batches(summaries: Sequence[FileSummary]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the `captures` table as one batch; nothing if there are none."""
    rows = [asdict(summary) for summary in summaries]
    if rows:
        yield make_batch("captures", {name: [row[name] for row in rows] for name in rows[0]})
