"""Rows of a query as a table, JSON lines, CSV or Parquet."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Final

import pyarrow as pa

from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import open_private
from polymux.cli.support.output import (
    CSV,
    TABLE,
    TableColumn,
    console,
    line_writer,
    plural,
    print_table,
    timestamp_text,
)
from polymux.core.errors import UnwritableOutput

MAX_TABLE_ROWS: Final = 1000  # a terminal has no use for more
_MIN_TEXT_WIDTH: Final = 8


def print_rows(reader: pa.RecordBatchReader, form: str) -> None:
    """Print the rows: all of them as JSON or CSV, the first `MAX_TABLE_ROWS` as a table."""
    names = unique_names(reader.schema.names)
    rows = _rows(reader)
    if form != TABLE:
        write = line_writer(form)
        for row in rows:
            write(dict(zip(names, map(_cell, row) if form == CSV else row, strict=True)))
        return
    shown = list(islice(rows, MAX_TABLE_ROWS))
    columns = [
        TableColumn(name, right_aligned=True)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
        else TableColumn(name, min_width=_MIN_TEXT_WIDTH)
        for name, kind in zip(names, reader.schema.types, strict=True)
    ]
    print_table("", columns, [[_cell(value) for value in row] for row in shown])
    more = next(rows, None) is not None
    text = f"the first {MAX_TABLE_ROWS} rows; --json prints all" if more else ""
    console().print(text or plural(len(shown), "row"))


def write_parquet(reader: pa.RecordBatchReader, path: str) -> int:
    """Write the rows to a Parquet file, which appears complete or not at all. Return their number.

    Only its owner may read it: it may have payload.

    Raises:
        UnwritableOutput: The file cannot be written.
    """
    import pyarrow.parquet as pq

    temporary = Path(f"{path}.{secrets.token_hex(4)}{PART_SUFFIX}")
    count = 0
    try:
        with (
            open_private(temporary) as file,
            pq.ParquetWriter(file, reader.schema, compression="zstd") as writer,
        ):
            for batch in reader:
                writer.write_batch(batch)
                count += batch.num_rows
        os.replace(temporary, path)
    except OSError as problem:
        raise UnwritableOutput(f"{path}: cannot be written: {problem.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return count


def unique_names(names: list[str]) -> list[str]:
    """Names of columns with a number after those that occur again: `a`, `a_2`."""
    found: dict[str, None] = {}
    for name in names:
        number, unique = 2, name
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found[unique] = None
    return list(found)


def _rows(reader: pa.RecordBatchReader) -> Iterator[tuple[object, ...]]:
    for batch in reader:
        yield from zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[object]:
    """Values for JSON: times are text, as hostile ones do not fit a datetime; decimals numbers."""
    if pa.types.is_timestamp(column.type):
        numbers = column.cast(pa.timestamp("us"), safe=False).view(pa.int64()).to_pylist()
        return [us if us is None else timestamp_text(us) for us in numbers]
    return [_number(value) if isinstance(value, Decimal) else value for value in column.to_pylist()]


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _cell(value: object) -> object:
    """A value for a table or CSV: lists and structures as JSON, fractions as short as they are."""
    if isinstance(value, list | dict):
        return json.dumps(value, default=str)
    if isinstance(value, bytes):
        return value.hex()
    return f"{value:.6g}" if isinstance(value, float) else value
