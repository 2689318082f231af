"""Columns of the hot part as Arrow record batches, column by column as `tables` says.

Instants are microseconds, UTC. The text columns of `frames` are dictionary encoded, which is what
Parquet stores; `plain` makes the exact schema of them where somebody needs that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from polymux.analysis.arrow.arrays import array_of
from polymux.analysis.arrow.buffers import FrameColumns, TimelineColumns
from polymux.analysis.output.content_rows import ContentRows
from polymux.analysis.output.frame_page import Page
from polymux.analysis.output.stream_columns import HalfColumns, StreamColumns
from polymux.analysis.output.timeline_rows import SharedTimeline
from polymux.analysis.schema.tables import SIDES, TABLES, VERDICTS
from polymux.analysis.tracking.request_latency import PERCENTILES, AskerRow
from polymux.analysis.tracking.stall_rows import StallRows
from polymux.core.errors import MissingExtra
from polymux.core.protocol import Protocol
from polymux.core.rules import Violation

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtra("captures", "analysing captures") from None

Columns = Mapping[str, Sequence[Any]]

SCHEMAS: Final = {name: table.arrow() for name, table in TABLES.items()}
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_SIDES: Final = array_of(SIDES, pa.string())
_VERDICTS: Final = array_of(VERDICTS, pa.string())
_INTEGER: Final = pa.int64()
_INDEX: Final = pa.int32()  # wide: the dictionaries of many sessions and protocols are joined
_ENCODED_FRAMES: Final = pa.schema(
    [
        field.with_type(pa.dictionary(_INDEX, field.type)) if field.type == pa.string() else field
        for field in SCHEMAS["frames"]
    ]
)

_kind_words: dict[str, pa.Array] = {}


def kind_words(protocol: Protocol) -> pa.Array:
    """The name of every kind a row can have, by its number; made once for each protocol."""
    words = _kind_words.get(protocol.name)
    if words is None:
        words = array_of([protocol.kind_name(kind) for kind in range(256)], pa.string())
        _kind_words[protocol.name] = words
    return words


def frames_batch(
    page: Page, kinds: pa.Array, sessions: Sequence[str], places: Any = None
) -> pa.RecordBatch:
    """A page of rows; the columns are views of the page or made of it by one call, none row by row.
    `places` says which of `sessions` each row belongs to; without it all belong to the first."""
    batch, rows = page.batch, page.done
    made = FrameColumns(page)
    if places is None:
        places = bytes(4 * rows)
    columns = [
        _encoded(places, rows, array_of(sessions, pa.string())),
        _encoded(made.sender, rows, _SIDES),
        _integers(batch.ordinal, rows),
        _integers(page.at_us, rows, _INSTANT),
        _integers(batch.offset, rows),
        _integers(batch.size, rows),
        _encoded(made.kind, rows, kinds),
        _encoded(made.stream, rows, array_of(page.labels, pa.string()), made.stream_there),
        _integers(batch.amount, rows, there=made.amount_there),
        _integers(batch.payload, rows),
        _encoded(made.verdict, rows, _VERDICTS),
    ]
    return pa.record_batch(columns, schema=_ENCODED_FRAMES)


def streams_columns(rows: StreamColumns, session_id: str) -> Columns:
    columns: dict[str, Sequence[Any]] = {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "opener": rows.opener,
        "stream_id": rows.number,
        "incarnation": rows.incarnation,
        "name": _texts(rows.name),
        "name_bytes": rows.name,
        "opened_at": rows.opened_at,
        "accepted_at": rows.accepted_at,
        "closed_at": rows.closed_at,
        "ending": rows.ending,
        "reset_by": rows.reset_by,
        "error": _texts(rows.error),
    }
    for side, half in zip(SIDES, (rows.dialer, rows.acceptor), strict=True):
        columns |= _half(side, half)
    return columns


def _half(side: str, half: HalfColumns) -> dict[str, Sequence[Any]]:
    names = (
        "bytes", "units", "frames", "ended", "credit_granted", "peak_in_flight_bytes", "blocked_us",
        "first_at", "last_at", "window_bytes", "window_limit_bps", "throughput_bps", "stalled_us",
        "hol_blocked_us",
    )  # fmt: skip
    return {f"{name}_{side}": getattr(half, name) for name in names}


def violations_columns(found: Sequence[Violation], session_id: str) -> Columns:
    return {
        "session_id": [session_id] * len(found),
        "sender": [SIDES[each.sender] for each in found],
        "frame_index": [each.ordinal for each in found],
        "byte_offset": [each.offset for each in found],
        "time": [each.at // 1000 for each in found],
        "stream": [each.stream or None for each in found],
        "rule": [each.rule.name for each in found],
        "origin": [each.rule.origin.value for each in found],
        "severity": [each.rule.severity.value for each in found],
        "certainty": [each.certainty.value for each in found],
        "detail": [each.detail or None for each in found],
    }


def stalls_columns(rows: StallRows, session_id: str) -> Columns:
    return {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "sender": [SIDES[side] for side in rows.sender],
        "started_at": rows.began_us,
        "duration_us": rows.duration_us,
        "cause": rows.cause,
        "blocking_stream": [culprit or None for culprit in rows.culprit],
        "detail": rows.detail,
    }


def requests_columns(rows: Sequence[AskerRow], session_id: str) -> Columns:
    return {
        "session_id": [session_id] * len(rows),
        "opener": [SIDES[row.side] for row in rows],
        "requests": [row.requests for row in rows],
        "answered": [row.answered for row in rows],
        **{
            f"latency_{name}_us": [row.latency(share) for row in rows]
            for name, share in PERCENTILES
        },
        "latency_max_us": [row.longest for row in rows],
    }


def timeline_batch(shared: SharedTimeline) -> pa.RecordBatch:
    rows = shared.rows
    count = rows.count
    made = TimelineColumns(rows)
    streams = _integers(made.stream, count, _INDEX, made.stream_there)
    columns = [
        array_of(list(shared.sessions), pa.string()).take(_integers(shared.session, count)),
        array_of(rows.streams.labels, pa.string()).take(streams),
        _SIDES.take(_integers(made.sender, count, _INDEX)),
        _integers(rows.bucket, count),
        _integers(rows.frames, count),
        _integers(rows.content, count),
        _integers(rows.blocked, count, there=made.blocked_there),
    ]
    return pa.record_batch(columns, schema=SCHEMAS["timeline"])


def content_batch(rows: ContentRows, session_id: str) -> pa.RecordBatch:
    return batch_of(
        "content",
        {
            "session_id": [session_id] * len(rows.stream),
            "stream": [stream or None for stream in rows.stream],
            "sender": [SIDES[side] for side in rows.sender],
            "frame_index": rows.ordinal,
            "time": rows.at_us,
            "data": rows.data,
        },
    )


def batch_of(table: str, columns: Columns) -> pa.RecordBatch:
    """A batch of this table from its columns by name, as lists (instants in microseconds) or as
    arrays of the right type."""
    schema = SCHEMAS[table]
    arrays = []
    for field in schema:
        values = columns[field.name]
        arrays.append(values if isinstance(values, pa.Array) else array_of(values, field.type))
    return pa.record_batch(arrays, schema=schema)


def plain(table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in exactly the schema of the table."""
    schema = SCHEMAS[table]
    if batch.schema.equals(schema):
        return batch
    columns = [
        column.cast(field.type) if column.type != field.type else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _integers(column: Any, rows: int, kind: pa.DataType = _INTEGER, there: bytes = b"") -> pa.Array:
    """`there` has a bit for each number, if some are not there."""
    bits = pa.py_buffer(there) if there else None
    return pa.Array.from_buffers(kind, rows, [bits, pa.py_buffer(column)])


def _encoded(indices: Any, rows: int, words: pa.Array, there: bytes = b"") -> pa.Array:
    places = _integers(indices, rows, _INDEX, there)
    return pa.DictionaryArray.from_arrays(places, words, safe=False)


def _texts(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
