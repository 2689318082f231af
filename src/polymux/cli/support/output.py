"""How commands speak: text to people, JSON lines or CSV to programs, and nothing unprintable."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from polymux.text.sanitize import escape_hidden

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GAP = 2  # columns between two cells
_PIPE_WIDTH = 10_000  # characters of a line that goes into a pipe
FORMATS = TABLE, JSON, CSV = "table", "json", "csv"


def chosen_format(as_json: bool, form: str | None) -> str:
    """What `--json` and `--format` say together; without them a terminal gets text, a pipe JSON."""
    if as_json and form not in (None, JSON):
        raise click.UsageError(f"--json and --format {form} contradict each other")
    return form or (TABLE if is_interactive(as_json) else JSON)


def is_interactive(as_json: bool) -> bool:
    """Tables or JSON lines? A pipe gets JSON, and so does who asks for it."""
    return not as_json and sys.stdout.isatty()


def json_line(row: Mapping[str, object]) -> None:
    """One object a line. Everything beyond ASCII is escaped, so no text can play tricks."""
    sys.stdout.write(json.dumps(row, ensure_ascii=True, default=_json_value) + "\n")


def _json_value(value: object) -> object:
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
    from polymux.analysis.arrow.batches import decode_dictionaries

    chosen = list(columns)
    exact = decode_dictionaries(table, batch)
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


class CsvWriter:
    """Rows of the same columns as CSV on standard output, a header before the first.

    Text is shown as a table shows it, and a cell that a spreadsheet would run as a formula begins
    with an apostrophe; `--format json` has every value exactly.
    """

    def __init__(self) -> None:
        self._writer = csv.writer(sys.stdout, lineterminator="\n")
        self._header_written = False

    def write(self, row: Mapping[str, object]) -> None:
        if not self._header_written:
            self._writer.writerow(row)
            self._header_written = True
        self._writer.writerow(map(_cell, row.values()))


def line_writer(form: str) -> Callable[[Mapping[str, object]], None]:
    """Writes rows of the same columns as they come, as CSV or as JSON lines."""
    return CsvWriter().write if form == CSV else json_line


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = escape_hidden(value if isinstance(value, str) else str(_json_value(value)))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table for people.

    Where the table is too wide, the columns of the highest `rank` are left out first; rank 0 stays.
    `least`: the column may be as narrow as this, and its text then wraps; 0: never narrower than
    its widest cell. `best`: columns of rank 2 and more are left out to give it as much as this.
    """

    name: str
    rank: int = 0
    right_aligned: bool = False
    min_width: int = 0
    preferred_width: int = 0

    def required_width(self, content_width: int, can_drop_columns: bool) -> int:
        """The width it must have, while there are columns to spare or not."""
        if not self.min_width:
            return content_width
        return min(
            content_width,
            max(self.min_width, self.preferred_width) if can_drop_columns else self.min_width,
        )


def print_table(
    title: str, columns: Iterable[str | TableColumn], rows: Iterable[Iterable[object]]
) -> None:
    """A table for people. Text is shown as it is, never read as markup or escape sequences."""
    out = console()
    heads = [TableColumn(each, min_width=8) if isinstance(each, str) else each for each in columns]
    cells = [[format_value(cell) for cell in row] for row in rows]
    kept = fitting_columns(heads, cells, out.width)
    table = Table(
        title=Text(title), title_justify="left", box=None, padding=(0, _GAP, 0, 0), pad_edge=False
    )
    for place in kept:
        head = heads[place]
        table.add_column(
            head.name, overflow="fold", justify="right" if head.right_aligned else "left",
            min_width=None if head.min_width else column_width(head, cells, place),
        )  # fmt: skip
    for row in cells:
        table.add_row(*(Text(row[place]) for place in kept))
    with out.capture() as drawn:
        out.print(table)
    for line in drawn.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def fitting_columns(columns: list[TableColumn], cells: list[list[str]], width: int) -> list[int]:
    """The places of the columns that fit beside one another; those of rank 0 in any case."""
    kept = list(range(len(columns)))
    wide = [column_width(column, cells, place) for place, column in enumerate(columns)]
    while True:
        last = max(kept, key=lambda place: (columns[place].rank, place))
        rank = columns[last].rank
        need = (
            sum(columns[place].required_width(wide[place], rank > 1) + _GAP for place in kept)
            - _GAP
        )
        if need <= width or rank == 0:
            return kept
        kept.remove(last)


def column_width(column: TableColumn, cells: list[list[str]], index: int) -> int:
    return max(cell_len(column.name), *(cell_len(row[index]) for row in cells), 0)


def console() -> Console:
    """Standard output, honouring NO_COLOR and COLUMNS; a pipe gets lines of any length."""
    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_WIDTH if piped else None)


def format_value(value: object, limit: int = 0) -> str:
    """A value for people: nothing for None, escaped where it came from the wire."""
    return "" if value is None else escape_hidden(str(value), limit)


def plural(count: int, word: str) -> str:
    """`1 stream`, `2 streams`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def warn(text: str) -> None:
    """One line to standard error, with nothing in it that a terminal would obey."""
    print(escape_hidden(text), file=sys.stderr)


def timestamp_text(us: int) -> str:
    """An instant in microseconds, as people and JSON have it."""
    try:
        moment = _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
