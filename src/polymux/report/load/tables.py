"""The tables under an output directory, read in batches with only the columns asked for.

Memory does not grow with the tables: a batch is looked at and let go. Instants come as integers
(microseconds since 1970), because a hostile capture can hold instants Python's datetime cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.errors import MissingExtra, PolymuxError, UnreadableInput

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 1 << 16
OPTIONAL_COLUMNS: Final = {
    "streams": ("hol_blocked_us_dialer", "hol_blocked_us_acceptor"),
    "requests": (),
}
"""Tables and columns that older analyses do not have: what they hold is then null, or not shown."""


class ReportError(PolymuxError):
    """The report cannot be made; the text says which file is wrong and what to do."""


class UnreadableTables(ReportError, UnreadableInput):
    """The tables are missing or damaged."""


class Tables:
    """The table folders of one analysis."""

    def __init__(self, folder: Path, progress: Callable[[int], None] | None = None) -> None:
        self.progress = progress
        try:
            import pyarrow.parquet  # noqa: F401  (only to learn early whether it is there)
        except ImportError:
            raise MissingExtra("report", "writing a report") from None
        if not (folder / "sessions").is_dir():
            raise UnreadableTables(
                f"{folder}: no tables here (there is no folder 'sessions'); "
                "give the directory that 'polymux analyze --out' wrote"
            )
        self.folder = folder
        self.missing_tables = [
            name
            for name in TABLES
            if name != "content"
            and OPTIONAL_COLUMNS.get(name) != ()
            and not (folder / name).is_dir()
        ]

    def files(self, table: str) -> list[Path]:
        """The Parquet files of a table, in a fixed order; none if the folder is empty."""
        root = self.folder / table
        return sorted(
            path
            for path in root.rglob("*.parquet")
            if path.is_file() and not any(part[0] in "._" for part in path.relative_to(root).parts)
        )

    def row_count(self, table: str) -> int:
        """How many rows a table has, from what its files say of themselves."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = 0
        for path in self.files(table):
            try:
                found += pq.read_metadata(path).num_rows
            except (pa.ArrowException, OSError):
                continue  # whoever reads it will say so
        return found

    def batches(
        self, table: str, columns: Sequence[str], rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """The table's rows with these columns, a batch at a time.

        Integers and instants come as int64, decimals as text, text plain. ReportError if a file
        cannot be read or lacks a column.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {name: TABLES[table].column(name).type for name in columns}
        for path in self.files(table):
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    absent = sorted(set(columns) - set(file.schema_arrow.names))
                    lost = [name for name in absent if name not in OPTIONAL_COLUMNS.get(table, ())]
                    if lost:
                        raise UnreadableTables(
                            f"{path}: column {lost[0]!r} is missing; analyze the captures again "
                            "with this version of polymux"
                        )
                    there = [name for name in columns if name not in absent]
                    for batch in file.iter_batches(batch_size=rows, columns=there):
                        if self.progress is not None:
                            self.progress(batch.num_rows)
                        yield pa.record_batch(
                            [
                                _normalize(batch.column(name), kinds[name])
                                if name in there
                                else pa.nulls(batch.num_rows, pa.int64())
                                for name in columns
                            ],
                            names=list(columns),
                        )
            except (pa.ArrowException, OSError) as failure:
                reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
                raise UnreadableTables(
                    f"{path}: not a readable table file: {reason}; analyze the captures again"
                ) from None


def _normalize(column: pa.Array, column_type: ColumnType) -> pa.Array:
    import pyarrow as pa

    match column_type:
        case ColumnType.TIMESTAMP:
            stamped = column.cast(pa.timestamp("us", tz="UTC"), safe=False)
            return stamped.cast(pa.int64())
        case ColumnType.INTEGER:
            return column.cast(pa.int64())
        case ColumnType.TEXT | ColumnType.DECIMAL:
            return column.cast(pa.string())
        case _:
            return column
