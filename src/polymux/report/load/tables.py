"""The tables under an output directory, read in batches of the requested columns.

Memory does not grow with the tables: no batch is kept. Timestamps are integers (microseconds since
1970), because a hostile capture can contain times that Python's datetime cannot represent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymux.analysis.output.manifest import Manifest, TableFile, read_manifest, table_files
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.core.errors import MissingExtra, PolymuxError, UnreadableInput
from polymux.spark.lake.store import LAKE_FOLDER, LakeError

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS: Final = 1 << 16
OPTIONAL_COLUMNS: Final = {
    "sessions": (
        "tls",
        "server_name",
        "alpn",
        "tls_records",
        "tls_unopened",
        "tls_handshake_us",
    ),
    "streams": ("hol_blocked_us_dialer", "hol_blocked_us_acceptor"),
    "requests": (),
}
"""Columns that older analyses lack (null is read instead), and tables that they lack (empty)."""


class ReportError(PolymuxError):
    """The report cannot be written; the message names the file and the remedy."""


class UnreadableTables(ReportError, UnreadableInput):
    """The tables are missing or damaged."""


def is_tables_folder(path: str | os.PathLike[str]) -> bool:
    """Whether this is the output directory of an analysis."""
    return (Path(path) / "sessions").is_dir()


def lake_manifest(folder: Path) -> Manifest | None:
    """The tables of the newest version of a lake; None if the folder is no lake.

    Raises:
        UnreadableTables: The lake is damaged, or a newer polymux has written it.
    """
    if not (folder / LAKE_FOLDER).is_dir():
        return None
    from polymux.spark.lake.lake import open_lake

    try:
        version = open_lake(str(folder)).current()
    except LakeError as problem:
        raise UnreadableTables(str(problem)) from None
    if version is None:
        return Manifest("", {}, folder)
    tables = {
        table: [TableFile(file.path, file.size, file.rows) for file in files]
        for table, files in version.files.items()
    }
    return Manifest(version.run, tables, folder)


class Tables:
    """The tables of one analysis, or of one version of a lake.

    They are those of its manifest, if it has one, for as long as this object is used; those of the
    version that is current when it is made.
    """

    def __init__(self, folder: Path, progress: Callable[[int], None] | None = None) -> None:
        self.progress = progress
        try:
            import pyarrow.parquet  # noqa: F401  (checks that it is installed)
        except ImportError:
            raise MissingExtra("report", "writing a report") from None
        if not is_tables_folder(folder):
            raise UnreadableTables(
                f"{folder}: no tables here (there is no folder 'sessions'); "
                "give the directory that 'polymux analyze --out' wrote"
            )
        self.folder = folder
        self._manifest = lake_manifest(folder) or read_manifest(folder)
        self.missing_tables = [
            name
            for name in TABLES
            if name != "content"
            and OPTIONAL_COLUMNS.get(name) != ()
            and not (folder / name).is_dir()
        ]

    def files(self, table: str) -> list[Path]:
        """The Parquet files of a table, sorted; see `manifest.table_files`."""
        return table_files(self.folder, table, self._manifest)

    def datasets(self) -> dict[str, pa.dataset.Dataset]:
        """The tables that are there, in their exact schemas, as Arrow datasets by name.

        Columns and tables that older analyses lack are null and empty. Nothing is read yet.
        """
        import pyarrow.dataset as ds

        found = {}
        for name in TABLES:
            if (self.folder / name).is_dir() or OPTIONAL_COLUMNS.get(name) == ():
                files = [str(path) for path in self.files(name)]
                schema = TABLES[name].to_arrow()
                found[name] = (
                    ds.dataset(files, schema, format="parquet")
                    if files
                    else ds.dataset(schema.empty_table())
                )
        return found

    def check_readable(self) -> None:
        """Look at the metadata of every file.

        Raises:
            UnreadableTables: a file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        for path in (path for name in TABLES for path in self.files(name)):
            try:
                pq.read_metadata(path)
            except (pa.ArrowException, OSError) as failure:
                raise _unreadable(path, failure) from None

    def row_count(self, table: str) -> int:
        """The number of rows of a table, from the metadata of its files."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = 0
        for path in self.files(table):
            try:
                found += pq.read_metadata(path).num_rows
            except (pa.ArrowException, OSError):
                continue  # `batches` reports it
        return found

    def batches(
        self, table: str, columns: Sequence[str], rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Yield the table's rows with these columns in batches.

        Integers and timestamps are int64, decimals are text, text is not dictionary encoded.

        Raises:
            UnreadableTables: a file cannot be read, or lacks a column.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {name: TABLES[table].column(name).type for name in columns}
        for path in self.files(table):
            try:
                with pq.ParquetFile(path, pre_buffer=False) as file:
                    missing = sorted(set(columns) - set(file.schema_arrow.names))
                    required = [
                        name for name in missing if name not in OPTIONAL_COLUMNS.get(table, ())
                    ]
                    if required:
                        raise UnreadableTables(
                            f"{path}: column {required[0]!r} is missing; "
                            "analyze the captures again with this version of polymux"
                        )
                    present = [name for name in columns if name not in missing]
                    for batch in file.iter_batches(batch_size=rows, columns=present):
                        if self.progress is not None:
                            self.progress(batch.num_rows)
                        yield pa.record_batch(
                            [
                                _normalize(batch.column(name), kinds[name])
                                if name in present
                                else pa.nulls(batch.num_rows, pa.int64())
                                for name in columns
                            ],
                            names=list(columns),
                        )
            except (pa.ArrowException, OSError) as failure:
                raise _unreadable(path, failure) from None


def _unreadable(path: Path, failure: Exception) -> UnreadableTables:
    reason = str(failure).splitlines()[0] if str(failure) else type(failure).__name__
    return UnreadableTables(
        f"{path}: not a readable table file: {reason}; analyze the captures again"
    )


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
