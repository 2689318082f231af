"""Arrow record batches from rows, in the order of `schema.tables`, without importing pandas.

Timestamps are microseconds, UTC. The text columns of `frames` are dictionary encoded, as Parquet
stores them; `decode_dictionaries` converts a batch to the exact schema.

`pyarrow.array` and `pyarrow.scalar` import pandas, where it is installed, to check their argument:
a third of a second and 50 MB in every command and every worker. `make_array` and `make_scalar` do
not.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

from polymux.analysis.output.row_columns import (
    ContentRows,
    FrameColumns,
    FramePage,
    SharedTimelineRows,
    TimelineColumns,
)
from polymux.analysis.output.row_sink import Row
from polymux.analysis.schema.tables import SIDES, TABLES, VERDICTS
from polymux.capture.packets.file_summary import FileSummary
from polymux.core.errors import MissingExtra
from polymux.core.protocol import Protocol

try:
    import pyarrow as pa
except ImportError:
    raise MissingExtra("captures", "analysing captures") from None

TableColumns = Mapping[str, Sequence[Any]]  # by the name of the column
SMALL_ARRAY_LENGTH: Final = 64  # up to this length a Python loop is faster than a pyarrow call
# Type codes of the module `array`: signed, unsigned.
_TYPECODES_BY_BIT_WIDTH: Final = {32: ("i", "I"), 64: ("q", "Q")}


def make_array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """An array of text, bytes, integers, timestamps (as integers), or lists of those; None is null.

    Raises:
        OverflowError: a number is too large for the type, as with `pyarrow.array`.
    """
    rows = len(values)
    valid = _validity_buffer(values)
    if pa.types.is_decimal(data_type):
        with contextlib.suppress(OverflowError):  # most decimals fit 64 bits
            return make_array(values, pa.uint64()).cast(data_type)
        return pa.Array.from_buffers(
            data_type, rows, [valid, _decimal128_buffer(values, 10**data_type.precision)]
        )
    if pa.types.is_list(data_type):
        lists = [items if items is not None else () for items in values]
        within = make_array([value for items in lists for value in items], data_type.value_type)
        buffers = [valid, _offsets(map(len, lists))]
        return pa.Array.from_buffers(data_type, rows, buffers, children=[within])
    if pa.types.is_string(data_type):
        texts = [text if text is not None else "" for text in values]
        if all(map(str.isascii, texts)):
            buffers = [valid, _offsets(map(len, texts)), pa.py_buffer("".join(texts).encode())]
        else:
            buffers = [valid, *_offsets_and_data([text.encode() for text in texts])]
    elif pa.types.is_binary(data_type):
        buffers = [
            valid,
            *_offsets_and_data([part if part is not None else b"" for part in values]),
        ]
    else:
        code = _TYPECODES_BY_BIT_WIDTH[data_type.bit_width][pa.types.is_unsigned_integer(data_type)]
        if valid is not None:
            values = [number if number is not None else 0 for number in values]
        buffers = [valid, pa.py_buffer(array(code, values))]
    return pa.Array.from_buffers(data_type, rows, buffers)


def make_scalar(value: Any, data_type: pa.DataType) -> pa.Scalar:
    """A scalar, for comparison with a column."""
    return make_array([value], data_type)[0]


def _offsets_and_data(parts: Sequence[bytes]) -> tuple[pa.Buffer, pa.Buffer]:
    return _offsets(map(len, parts)), pa.py_buffer(b"".join(parts))


def _offsets(sizes: Iterable[int]) -> pa.Buffer:
    """The offsets buffer of values with these sizes."""
    return pa.py_buffer(array("i", accumulate(sizes, initial=0)))


def _decimal128_buffer(numbers: Sequence[int | None], limit: int) -> pa.Buffer:
    """Numbers as 128-bit integers; OverflowError if one is not below `limit`."""
    wide = bytearray()
    for number in numbers:
        if number is not None and abs(number) >= limit:
            raise OverflowError(f"{number} has more digits than the column")
        wide += (number or 0).to_bytes(16, sys.byteorder, signed=True)
    return pa.py_buffer(bytes(wide))


def _validity_buffer(values: Sequence[Any]) -> pa.Buffer | None:
    """The validity bitmap; None if no value is null."""
    if None not in values:
        return None
    if len(values) <= SMALL_ARRAY_LENGTH:
        few = 0
        for n, value in enumerate(values):
            if value is not None:
                few |= 1 << n
        return pa.py_buffer(few.to_bytes((len(values) + 7) // 8, "little"))
    valid = pa.py_buffer(bytes(value is not None for value in values))
    bits = pa.Array.from_buffers(pa.uint8(), len(values), [None, valid]).cast(pa.bool_())
    return bits.buffers()[1]


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


def with_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a schema from a batch, in its types; those that the batch lacks are null.

    So rows of an older polymux are read, and written anew, with the columns of this one.
    """
    names = batch.schema.names
    columns = [
        batch.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.record_batch(columns, schema=schema)


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


def rows_batch(table: str, rows: Sequence[Row]) -> pa.RecordBatch:
    """A batch of a table from at least one row."""
    names = TABLES[table].column_names()
    return make_batch(table, dict(zip(names, zip(*rows, strict=True), strict=True)))


def captures_batch(summaries: Iterable[FileSummary]) -> pa.RecordBatch:
    """The rows of the `captures` table."""
    files = list(summaries)
    names = TABLES["captures"].column_names()
    return make_batch("captures", {name: [getattr(file, name) for file in files] for name in names})


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
