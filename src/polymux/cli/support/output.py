"""Output of commands: tables for a terminal, JSON lines or CSV for programs.

Everything that may come from the wire is escaped before it is printed, so that no name can contain
terminal control sequences.
"""

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

from polymux.text.sanitize import escape_hidden

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_WITHOUT_ZONE = datetime(1970, 1, 1)  # asking for a zone takes longer than all else
_GAP = 2  # spaces between two cells
_PIPE_WIDTH = 10_000  # characters; a table in a pipe is not wrapped
FORMATS = TABLE, JSON, CSV = "table", "json", "csv"


def chosen_format(as_json: bool, form: str | None) -> str:
    """Combine --json and --format. Without them: a table on a terminal, JSON in a pipe.

    Raises:
        click.UsageError: The two contradict each other.
    """
    if as_json and form not in (None, JSON):
        raise click.UsageError(f"--json and --format {form} contradict each other")
    return form or (TABLE if is_interactive(as_json) else JSON)


def is_interactive(as_json: bool) -> bool:
    """Whether to print text for a terminal: standard output is one, and --json was not given."""
    return not as_json and sys.stdout.isatty()


def json_text(row: Mapping[str, object]) -> str:
    """One object as one line. Everything beyond ASCII is escaped."""
    return _encode(row) + "\n"


def json_line(row: Mapping[str, object]) -> None:
    """Print one object on one line."""
    sys.stdout.write(json_text(row))


def _json_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return int(value)
    if isinstance(value, bytes):
        return value.hex()
    return str(value)


_encode = json.JSONEncoder(ensure_ascii=True, default=_json_value).encode


def rows_of(
    table: str, batch: pa.RecordBatch, columns: Iterable[str] = ()
) -> list[dict[str, object]]:
    """Convert a batch to dictionaries, with all columns or those named."""
    from polymux.analysis.output.arrow_batches import decode_dictionaries

    names = list(columns)
    decoded = decode_dictionaries(table, batch)
    if names:
        decoded = decoded.select(names)
    names = decoded.schema.names
    values = [_values(column) for column in decoded.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def _values(column: pa.Array) -> list[object]:
    """Like `to_pylist`, which would import pandas to convert timestamps."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    timestamps = column.view(pa.int64()).to_pylist()
    return [us if us is None else _EPOCH + timedelta(microseconds=us) for us in timestamps]


class CsvWriter:
    """Writes rows with the same columns as CSV to standard output, after a header.

    Text is escaped as in a table, and a cell that a spreadsheet would run as a formula gets a
    leading apostrophe; `--format json` has every value exactly.
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
    """Return the function that writes a row as CSV or as a JSON line."""
    return CsvWriter().write if form == CSV else json_line


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    text = escape_hidden(value if isinstance(value, str) else str(_json_value(value)))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of a table on a terminal.

    Args:
        name: The heading.
        rank: If the table is too wide, columns of the highest rank are left out first; a column of
            rank 0 is never left out.
        right_aligned: Whether cells are aligned to the right.
        min_width: The column may be this narrow, and its text then wraps; 0: never narrower than
            its widest cell.
        preferred_width: Columns of rank 2 and more are left out to give it this width.
    """

    name: str
    rank: int = 0
    right_aligned: bool = False
    min_width: int = 0
    preferred_width: int = 0

    def required_width(self, content_width: int, can_drop_columns: bool) -> int:
        """Return the width it must have, while other columns can still be left out or not."""
        if not self.min_width:
            return content_width
        return min(
            content_width,
            max(self.min_width, self.preferred_width) if can_drop_columns else self.min_width,
        )


def print_table(
    title: str, columns: Iterable[str | TableColumn], rows: Iterable[Iterable[object]]
) -> None:
    """Print a table. Text is escaped, and never interpreted as markup."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    heads = [
        TableColumn(column, min_width=8) if isinstance(column, str) else column
        for column in columns
    ]
    cells = [[format_value(cell) for cell in row] for row in rows]
    kept = fitting_columns(heads, cells, out.width)
    table = Table(
        title=Text(title), title_justify="left", box=None, padding=(0, _GAP, 0, 0), pad_edge=False
    )
    for index in kept:
        head = heads[index]
        table.add_column(
            head.name, overflow="fold", justify="right" if head.right_aligned else "left",
            min_width=None if head.min_width else column_width(head, cells, index),
        )  # fmt: skip
    for row in cells:
        table.add_row(*(Text(row[index]) for index in kept))
    with out.capture() as drawn:
        out.print(table)
    for line in drawn.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def fitting_columns(columns: list[TableColumn], cells: list[list[str]], width: int) -> list[int]:
    """Return the indexes of the columns that fit into `width`; those of rank 0 always do."""
    kept = list(range(len(columns)))
    widths = [column_width(column, cells, index) for index, column in enumerate(columns)]
    while True:
        last = max(kept, key=lambda index: (columns[index].rank, index))
        rank = columns[last].rank
        required = (
            sum(columns[index].required_width(widths[index], rank > 1) + _GAP for index in kept)
            - _GAP
        )
        if required <= width or rank == 0:
            return kept
        kept.remove(last)


def column_width(column: TableColumn, cells: list[list[str]], index: int) -> int:
    from rich.cells import cell_len

    return max(cell_len(column.name), *(cell_len(row[index]) for row in cells), 0)


def console() -> Console:
    """Standard output as a rich console, honouring NO_COLOR and COLUMNS; pipes are not wrapped."""
    from rich.console import Console  # takes long: JSON and CSV do without

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=_PIPE_WIDTH if piped else None)


def format_value(value: object, limit: int = 0) -> str:
    """Format a value for a terminal: escaped, empty for None, at most `limit` characters if set."""
    return "" if value is None else escape_hidden(str(value), limit)


def plural(count: int, word: str) -> str:
    """`1 stream`, `2 streams`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def warn(text: str) -> None:
    """Print one line to standard error, with control characters escaped."""
    print(escape_hidden(text), file=sys.stderr)


def timestamp_text(us: int) -> str:
    """Format microseconds since the epoch as an ISO 8601 timestamp in UTC."""
    try:
        moment = _EPOCH_WITHOUT_ZONE + timedelta(microseconds=us)
    except OverflowError:
        return f"{us} us"
    return moment.isoformat(timespec="microseconds") + "Z"
