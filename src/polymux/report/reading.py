"""The tables under an output directory, read in batches with only the columns asked for.

Memory does not grow with the tables: a batch is looked at and let go. Instants come as integers
(microseconds since 1970), because a hostile capture can hold instants Python's datetime cannot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymux.analysis.tables import TABLES, ColumnType
from polymux.core.errors import MissingExtra, PolymuxError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 1 << 16


class ReportError(PolymuxError):
    """The report cannot be made; the text says which file is wrong and what to do."""


class Tables:
    """The table folders of one analysis."""

    def __init__(self, folder: Path) -> None:
        try:
            import pyarrow.parquet  # noqa: F401  (only to learn early whether it is there)
        except ImportError:
            raise MissingExtra("report", "writing a report") from None
        if not (folder / "sessions").is_dir():
            raise ReportError(
                f"{folder}: no tables here (there is no folder 'sessions'); "
                "give the directory that 'polymux analyze --out' wrote"
            )
        self.folder = folder
        self.missing = [
            name for name in TABLES if name != "content" and not (folder / name).is_dir()
        ]

    def files(self, table: str) -> list[Path]:
        """The Parquet files of a table, in a fixed order; none if the folder is empty."""
        root = self.folder / table
        return sorted(
            path
            for path in root.rglob("*.parquet")
            if path.is_file() and not any(part[0] in "._" for part in path.relative_to(root).parts)
        )

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
                    if absent:
                        raise ReportError(
                            f"{path}: column {absent[0]!r} is missing; analyze the captures again "
                            "with this version of polymux"
                        )
                    for batch in file.iter_batches(batch_size=rows, columns=list(columns)):
                        yield pa.record_batch(
                            [_plain(batch.column(name), kinds[name]) for name in columns],
                            names=list(columns),
                        )
            except (pa.ArrowException, OSError) as failure:
                reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
                raise ReportError(
                    f"{path}: not a readable table file: {reason}; analyze the captures again"
                ) from None


def _plain(column: pa.Array, kind: ColumnType) -> pa.Array:
    import pyarrow as pa

    match kind:
        case ColumnType.INSTANT:
            stamped = column.cast(pa.timestamp("us", tz="UTC"), safe=False)
            return stamped.cast(pa.int64())
        case ColumnType.INTEGER:
            return column.cast(pa.int64())
        case ColumnType.TEXT | ColumnType.BIG:
            return column.cast(pa.string())
        case _:
            return column
