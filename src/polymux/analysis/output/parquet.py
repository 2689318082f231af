"""Tables as Parquet: one folder per table, which exists even if the table has no rows.

A writer holds at most one row group of each table and the rows that its batcher collects. Its files
are renamed to their final names when it is closed, complete, or not at all. The same batches in the
same order give the same files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from polymux.analysis.output.arrow_batches import SCHEMAS, captures_batch
from polymux.analysis.output.manifest import table_files
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.capture import FileSummary
from polymux.capture.io.paths import PRIVATE_FOLDER, open_private
from polymux.core.errors import MissingExtra, UnwritableOutput

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

ROW_GROUP_ROWS: Final = 65_536
ROW_GROUP_BYTES: Final = 16 << 20
MAX_PENDING_BYTES: Final = 32 << 20  # of all tables together, until their row groups are full
# A batch may be a few rows that keep a whole page alive: beyond this size, batches are copied.
COMPACT_AFTER_BYTES: Final = 8 << 20
EMPTY_FILE_NAME: Final = "part-empty"
# Tables with payload: their files have mode 0600, their folders 0700.
PRIVATE_TABLES: Final = frozenset({"content"})
# Nearly every row group has all values of these: their minimum and maximum never let a reader skip
# a group, and cost an eighth of the writing time.
_COLUMNS_WITHOUT_STATISTICS: Final = ("sender", "kind", "stream")
_DELTA_ENCODED_TYPES: Final = (ColumnType.INTEGER, ColumnType.TIMESTAMP)


def make_table_folder(folder: Path) -> None:
    """Create the folder of a table, named after it; private if the table has payload."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.name in PRIVATE_TABLES:
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    else:
        folder.mkdir(exist_ok=True)


class OutputError(UnwritableOutput):
    """The tables cannot be written; the text says where and why."""


class _TableFile:
    """One Parquet file that is being written."""

    def __init__(self, folder: Path, table: str, name: str) -> None:
        self.table = table
        self.row_count = 0
        self.path = folder / table / f"{name}.parquet"
        self.temp_path = folder / table / f".{name}.parquet.part"
        self.compacted: list[pa.RecordBatch] = []
        self.uncompacted: list[pa.RecordBatch] = []
        self._pending_rows = self._compacted_bytes = self._uncompacted_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes of the rows that are not written yet."""
        return self._compacted_bytes + self._uncompacted_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self.uncompacted.append(batch)
        self._uncompacted_bytes += batch.get_total_buffer_size()  # `nbytes` is slow
        self._pending_rows += batch.num_rows
        self.row_count += batch.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS or self.pending_bytes >= ROW_GROUP_BYTES:
            self.flush()
        elif self._uncompacted_bytes >= COMPACT_AFTER_BYTES and len(self.uncompacted) > 1:
            dense = _combine(self.uncompacted)
            self.compacted += dense.to_batches()
            self._compacted_bytes += dense.get_total_buffer_size()
            self.uncompacted, self._uncompacted_bytes = [], 0

    def flush(self) -> None:
        if self.compacted or self.uncompacted:
            group = _combine([*self.compacted, *self.uncompacted])
            # Few rows exceed a full group, and a group of their own would cost as much.
            self._open(group.schema).write_table(group, row_group_size=2 * ROW_GROUP_ROWS)
            self.compacted, self.uncompacted = [], []
            self._pending_rows = self._compacted_bytes = self._uncompacted_bytes = 0

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        if self._writer is None:
            make_table_folder(self.path.parent)
            columns = TABLES[self.table].columns
            self.temp_path.unlink(missing_ok=True)
            if self.table in PRIVATE_TABLES:
                open_private(self.temp_path).close()
            self._writer = pq.ParquetWriter(
                self.temp_path,
                schema,
                compression="zstd",
                # Counters and timestamps grow: delta encoding takes half the time and half the
                # space of a dictionary.
                use_dictionary=[c.name for c in columns if c.type is ColumnType.TEXT],
                column_encoding={
                    c.name: "DELTA_BINARY_PACKED" for c in columns if c.type in _DELTA_ENCODED_TYPES
                },
                write_statistics=[
                    c.name for c in columns if c.name not in _COLUMNS_WITHOUT_STATISTICS
                ],
                store_schema=False,  # readers see text, not dictionaries
            )
        return self._writer

    def close(self) -> None:
        self.flush()
        self._open(SCHEMAS[self.table]).close()
        os.replace(self.temp_path, self.path)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.temp_path.unlink(missing_ok=True)


class TableWriter:
    """Writes `FOLDER/TABLE/NAME.parquet` for every table that receives rows.

    `emit` and `batcher` are the arguments of `analyze_session`. Use it as a context manager: if the
    block raises, no file appears. Every write error is an OutputError.
    """

    def __init__(self, folder: Path | str, name: str = "part-00000") -> None:
        self.folder = Path(folder)
        self.name = name
        self.files: dict[str, _TableFile] = {}
        self.batcher = RowBatcher(self.emit)

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        """Add a batch to a table's file; OutputError if it cannot be written."""
        file = self.files.get(table)
        if file is None:
            file = self.files[table] = _TableFile(self.folder, table, self.name)
        try:
            file.add(batch)
            if sum(each.pending_bytes for each in self.files.values()) > MAX_PENDING_BYTES:
                file = max(self.files.values(), key=lambda each: each.pending_bytes)
                file.flush()
        except OSError as problem:
            raise _write_error(file.path, problem) from None

    def add_captures(self, summaries: Iterable[FileSummary]) -> None:
        """Add the rows of the `captures` table."""
        batch = captures_batch(summaries)
        if batch.num_rows:
            self.emit("captures", batch)

    def row_counts(self) -> dict[str, int]:
        """Rows added so far, by table."""
        self.batcher.flush()
        return {table: file.row_count for table, file in self.files.items()}

    def close(self) -> list[Path]:
        """Complete the files and return their paths."""
        self.batcher.flush()
        for file in self.files.values():
            try:
                file.close()
            except OSError as problem:
                raise _write_error(file.path, problem) from None
        return [file.path for file in self.files.values()]

    def __enter__(self) -> TableWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            for file in self.files.values():
                file.discard()


def write_empty_tables(folder: Path | str, tables: Iterable[str] = ()) -> None:
    """Write an empty file for every table (all but `content`, or those named) without one."""
    for table in tables or [name for name in TABLES if name != "content"]:
        if not any((Path(folder) / table).glob("*.parquet")):
            try:
                _TableFile(Path(folder), table, EMPTY_FILE_NAME).close()
            except OSError as problem:
                raise _write_error(Path(folder) / table, problem) from None


def merge_files(paths: Iterable[Path], table: str, target: Path) -> None:
    """Write the rows of these files of a table to one file, a row group at a time."""
    writer = TableWriter(target.parent.parent, f"{target.stem}-merging")
    with writer:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS):
                    writer.emit(table, batch.cast(SCHEMAS[table]))
    os.replace(writer.files[table].path, target)


def read_table(folder: Path | str, table: str) -> pa.Table:
    """All rows of a table in its exact schema, for tests and small outputs.

    The tables may be those of an analysis that goes on: files that it merges meanwhile are read
    merged.
    """
    while True:
        paths = table_files(folder, table)
        try:
            return pa.Table.from_batches(list(_batches_of(paths, table)), SCHEMAS[table])
        except FileNotFoundError:
            if table_files(folder, table) == paths:
                raise


def read_batches(folder: Path | str, table: str) -> Iterator[pa.RecordBatch]:
    """The batches of a table, its files in order of their names; see `manifest.table_files`."""
    yield from _batches_of(table_files(folder, table), table)


def _batches_of(paths: Iterable[Path], table: str) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield batch.cast(SCHEMAS[table])


def _combine(batches: list[pa.RecordBatch]) -> pa.Table:
    """The rows of these batches as one contiguous table."""
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()


def _write_error(path: Path, problem: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written: {problem.strerror or problem}")
