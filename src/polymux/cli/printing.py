"""How commands speak: tables to people, JSON lines to programs, nothing unprintable to anybody."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..report.visible import visible

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def for_people(as_json: bool) -> bool:
    """Tables or JSON lines? A pipe gets JSON, and so does who asks for it."""
    return not as_json and sys.stdout.isatty()


def json_line(row: Mapping[str, object]) -> None:
    """One object a line. Everything beyond ASCII is escaped, so no text can play tricks."""
    sys.stdout.write(json.dumps(row, ensure_ascii=True, default=_plain) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


def rows_of(
    table: str, batch: pa.RecordBatch, columns: Iterable[str] = ()
) -> list[dict[str, object]]:
    """A batch as plain rows, all columns or those named."""
    from ..analysis.arrow_rows import plain

    chosen = list(columns)
    exact = plain(table, batch)
    if chosen:
        exact = exact.select(chosen)
    names = exact.schema.names
    values = [_values(column) for column in exact.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(column: pa.Array) -> list[object]:
    """As `to_pylist`, which would import pandas to make an instant."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    instants = column.view(pa.int64()).to_pylist()
    return [us if us is None else _EPOCH + timedelta(microseconds=us) for us in instants]


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """A table for people. Text is shown as it is, never read as markup or escape sequences."""
    table = Table(title=Text(title), title_justify="left")
    for name in columns:
        right = name.endswith((">", "<")) or name in (
            "frames",
            "streams",
            "octet",
            "size",
            "lasted",
        )
        table.add_column(name, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console().print(table)


def console() -> Console:
    """Standard output, honouring NO_COLOR."""
    return Console(highlight=False)


def shown(value: object, limit: int = 0) -> str:
    """A value for people: nothing for None, escaped where it came from the wire."""
    return "" if value is None else visible(str(value), limit)


def counted(count: int, word: str) -> str:
    """`1 stream`, `2 streams`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def warn(text: str) -> None:
    """One line to standard error, with nothing in it that a terminal would obey."""
    print(visible(text), file=sys.stderr)


def instant_text(us: int) -> str:
    """An instant in microseconds, as people and JSON have it."""
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
