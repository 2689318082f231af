"""Arrow record batches from the columns of compiled modules, in the order of `schema.tables`.

Timestamps are microseconds, UTC. The text columns of `frames` are dictionary encoded, as Parquet
stores them; `decode_dictionaries` converts a batch to the exact schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from polymux.analysis.arrow.arrays import make_array
from polymux.analysis.arrow.buffers import FrameColumns, TimelineColumns
from polymux.analysis.output.content_rows import ContentRows
from polymux.analysis.output.frame_page import FramePage
from polymux.analysis.output.stream_columns import HalfColumns, StreamColumns
from polymux.analysis.output.timeline_rows import SharedTimelineRows
from polymux.analysis.schema.tables import SIDES, TABLES, VERDICTS
from polymux.analysis.tracking.request_latency import PERCENTILES, RequesterLatency
from polymux.analysis.tracking.stall_rows import StallRows
from polymux.core.errors import MissingExtra
from polymux.core.protocol import Protocol
from polymux.core.rules import Violation

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtra("captures", "analysing captures") from None

TableColumns = Mapping[str, Sequence[Any]]

SCHEMAS: Final = {name: table.to_arrow() for name, table in TABLES.items()}
_TIMESTAMP_TYPE: Final = pa.timestamp("us", tz="UTC")
_SIDES: Final = make_array(SIDES, pa.string())
_VERDICTS: Final = make_array(VERDICTS, pa.string())
_INTEGER_TYPE: Final = pa.int64()
_INDEX_TYPE: Final = pa.int32()  # 32 bits: the dictionaries of many sessions are joined
_ENCODED_FRAMES_SCHEMA: Final = pa.schema(
    [
        field.with_type(pa.dictionary(_INDEX_TYPE, field.type))
        if field.type == pa.string()
        else field
        for field in SCHEMAS["frames"]
    ]
)

_kind_names: dict[str, pa.Array] = {}


def kind_names(protocol: Protocol) -> pa.Array:
    """The names of a protocol's frame kinds, indexed by kind; cached per protocol."""
    names = _kind_names.get(protocol.name)
    if names is None:
        names = make_array([protocol.kind_name(kind) for kind in range(256)], pa.string())
        _kind_names[protocol.name] = names
    return names


def frames_batch(
    page: FramePage, kinds: pa.Array, sessions: Sequence[str], session_indices: Any = None
) -> pa.RecordBatch:
    """A batch of `frames` from a page. Columns are views of the page or made of it by one call.

    `session_indices` are each row's index into `sessions`; None: all rows belong to the first.
    """
    batch, rows = page.batch, page.row_count
    made = FrameColumns(page)
    if session_indices is None:
        session_indices = bytes(4 * rows)
    columns = [
        _dictionary_array(session_indices, rows, make_array(sessions, pa.string())),
        _dictionary_array(made.sender, rows, _SIDES),
        _integers(batch.frame_index, rows),
        _integers(page.time_us, rows, _TIMESTAMP_TYPE),
        _integers(batch.byte_offset, rows),
        _integers(batch.size, rows),
        _dictionary_array(made.kind, rows, kinds),
        _dictionary_array(
            made.stream, rows, make_array(page.labels, pa.string()), made.stream_validity
        ),
        _integers(batch.amount, rows, validity=made.amount_validity),
        _integers(batch.payload_bytes, rows),
        _dictionary_array(made.verdict, rows, _VERDICTS),
    ]
    return pa.record_batch(columns, schema=_ENCODED_FRAMES_SCHEMA)


def streams_columns(rows: StreamColumns, session_id: str) -> TableColumns:
    columns: dict[str, Sequence[Any]] = {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "opener": rows.opener,
        "stream_id": rows.stream_id,
        "incarnation": rows.incarnation,
        "name": _decode_texts(rows.name),
        "name_bytes": rows.name,
        "opened_at": rows.opened_at,
        "accepted_at": rows.accepted_at,
        "closed_at": rows.closed_at,
        "ending": rows.ending,
        "reset_by": rows.reset_by,
        "error": _decode_texts(rows.error),
    }
    for side, half in zip(SIDES, (rows.dialer, rows.acceptor), strict=True):
        columns |= _half_columns(side, half)
    return columns


def _half_columns(side: str, half: HalfColumns) -> dict[str, Sequence[Any]]:
    names = (
        "bytes", "units", "frames", "ended", "credit_granted", "peak_in_flight_bytes", "blocked_us",
        "first_at", "last_at", "window_bytes", "window_limit_bps", "throughput_bps", "stalled_us",
        "hol_blocked_us",
    )  # fmt: skip
    return {f"{name}_{side}": getattr(half, name) for name in names}


def violations_columns(violations: Sequence[Violation], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(violations),
        "sender": [SIDES[violation.sender] for violation in violations],
        "frame_index": [violation.frame_index for violation in violations],
        "byte_offset": [violation.byte_offset for violation in violations],
        "time": [violation.time // 1000 for violation in violations],
        "stream": [violation.stream or None for violation in violations],
        "rule": [violation.rule.name for violation in violations],
        "origin": [violation.rule.origin.value for violation in violations],
        "severity": [violation.rule.severity.value for violation in violations],
        "certainty": [violation.certainty.value for violation in violations],
        "detail": [violation.detail or None for violation in violations],
    }


def stalls_columns(rows: StallRows, session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "sender": [SIDES[side] for side in rows.sender],
        "started_at": rows.started_us,
        "duration_us": rows.duration_us,
        "cause": rows.cause,
        "blocking_stream": [blocking or None for blocking in rows.blocking_stream],
        "detail": rows.detail,
    }


def requests_columns(rows: Sequence[RequesterLatency], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows),
        "opener": [SIDES[row.side] for row in rows],
        "requests": [row.requests for row in rows],
        "answered": [row.answered for row in rows],
        **{
            f"latency_{name}_us": [row.percentile(share) for row in rows]
            for name, share in PERCENTILES
        },
        "latency_max_us": [row.max_us for row in rows],
    }


def timeline_batch(shared: SharedTimelineRows) -> pa.RecordBatch:
    rows = shared.rows
    count = rows.row_count
    made = TimelineColumns(rows)
    streams = _integers(made.stream, count, _INDEX_TYPE, made.stream_validity)
    columns = [
        make_array(list(shared.sessions), pa.string()).take(_integers(shared.session_index, count)),
        make_array(rows.stream_labels.strings, pa.string()).take(streams),
        _SIDES.take(_integers(made.sender, count, _INDEX_TYPE)),
        _integers(rows.bucket, count),
        _integers(rows.frames, count),
        _integers(rows.content_bytes, count),
        _integers(rows.blocked_us, count, validity=made.blocked_validity),
    ]
    return pa.record_batch(columns, schema=SCHEMAS["timeline"])


def content_batch(rows: ContentRows, session_id: str) -> pa.RecordBatch:
    return make_batch(
        "content",
        {
            "session_id": [session_id] * len(rows.stream),
            "stream": [stream or None for stream in rows.stream],
            "sender": [SIDES[side] for side in rows.sender],
            "frame_index": rows.frame_index,
            "time": rows.time_us,
            "data": rows.data,
        },
    )


def make_batch(table: str, columns: TableColumns) -> pa.RecordBatch:
    """A batch of a table from its columns by name: lists (timestamps in microseconds) or arrays of
    the exact type."""
    schema = SCHEMAS[table]
    arrays = []
    for field in schema:
        values = columns[field.name]
        arrays.append(values if isinstance(values, pa.Array) else make_array(values, field.type))
    return pa.record_batch(arrays, schema=schema)


def decode_dictionaries(table: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in the exact schema of the table."""
    schema = SCHEMAS[table]
    if batch.schema.equals(schema):
        return batch
    columns = [
        column.cast(field.type) if column.type != field.type else column
        for field, column in zip(schema, batch.columns, strict=True)
    ]
    return pa.record_batch(columns, schema=schema)


def _integers(
    column: Any, rows: int, data_type: pa.DataType = _INTEGER_TYPE, validity: bytes = b""
) -> pa.Array:
    """An integer array over a buffer; `validity` is its bitmap, b"" if no value is null."""
    bits = pa.py_buffer(validity) if validity else None
    return pa.Array.from_buffers(data_type, rows, [bits, pa.py_buffer(column)])


def _dictionary_array(
    indices: Any, rows: int, dictionary: pa.Array, validity: bytes = b""
) -> pa.Array:
    index_array = _integers(indices, rows, _INDEX_TYPE, validity)
    return pa.DictionaryArray.from_arrays(index_array, dictionary, safe=False)


def _decode_texts(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
