"""Tables as Parquet: one folder per table, which exists even if the table has no rows.

The rows of a row group are sorted by session, those of a session by time, so that its pages have
few sessions each; a Bloom filter says which sessions a row group has. If the `TableLayout` sorts
files, row groups have few sessions too: that holds back a bounded amount of rows and keeps the
others in a temporary file until the writer is closed; it then holds one row group. With a layout
that partitions, the files are in a folder for each date, and sensor. Files are renamed to their
final names complete, or not at all. The same batches in the same order give the same files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from polymux import __version__
from polymux.analysis.output.arrow_batches import SCHEMAS, captures_batch
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.manifest import table_files
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.output.sorted_rows import SESSION, SortedRows, joined, sort_by_session
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.capture import FileSummary
from polymux.capture.io.paths import PRIVATE_FOLDER, open_private
from polymux.core.errors import MissingExtra, UnwritableOutput
from polymux.malloc import trim

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

ROW_GROUP_ROWS: Final = 1 << 20
ROW_GROUP_BYTES: Final = 48 << 20  # of the rows in memory; in a file they are a tenth of it
PORTION_BYTES: Final = 8 << 20  # of a table's rows, which are sorted together
MAX_PENDING_BYTES: Final = 16 << 20  # of all tables together, until they are sorted
# The same where each row group is sorted by itself; and of a table, which then is a row group.
MAX_UNWRITTEN_BYTES: Final = 24 << 20
MAX_GROUP_BYTES: Final = 16 << 20
MERGED_BATCH_ROWS: Final = 65_536
BLOOM_FILTER_FPP: Final = 0.01  # share of the sessions that a row group wrongly seems to have
EMPTY_FILE_NAME: Final = "part-empty"
# Tables with payload: their files have mode 0600, their folders 0700.
PRIVATE_TABLES: Final = frozenset({"content"})
UNSORTED_TABLES: Final = frozenset({"captures"})  # it has no sessions; never partitioned
# Nearly every page has all values of these: their minimum and maximum never let a reader skip one,
# and cost an eighth of the writing time.
_COLUMNS_WITHOUT_STATISTICS: Final = ("sender", "kind", "stream")
_DELTA_ENCODED_TYPES: Final = (ColumnType.INTEGER, ColumnType.TIMESTAMP)


def make_table_folder(folder: Path, table: str = "") -> None:
    """Create a folder of a table, with its parents; private if the table has payload.

    Args:
        folder: The folder of the table, or of one of its partitions.
        table: The table; by default, the folder has its name.
    """
    table = table or folder.name
    if folder.name == table:
        folder.parent.mkdir(parents=True, exist_ok=True)
    else:
        make_table_folder(folder.parent, table)
    if table in PRIVATE_TABLES:
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
    else:
        folder.mkdir(exist_ok=True)


class OutputError(UnwritableOutput):
    """The tables cannot be written; the text says where and why."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that a `TableWriter` has completed. `name` is its path below the writer's folder."""

    table: str
    path: Path
    name: str
    rows: int


class _ParquetFile:
    """One Parquet file that is being written, a row group at a time."""

    def __init__(self, folder: Path, table: str, name: str, layout: TableLayout) -> None:
        self.table = table
        self.row_count = 0
        self.path = folder / f"{name}.parquet"
        self._temp_path = folder / f".{name}.parquet.part"
        self._layout = layout
        self._writer: pq.ParquetWriter | None = None
        self._pieces: list[pa.RecordBatch] = []
        self._piece_rows = self._piece_bytes = 0
        self._widths: tuple[int, list[str]] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; a row group is written when it is full."""
        left = ROW_GROUP_ROWS - self._piece_rows
        if batch.num_rows > left:
            self.add(batch.slice(0, left))
            self.add(batch.slice(left))
            return
        self._pieces.append(batch)
        self._piece_rows += batch.num_rows
        if self._widths is None:
            self._widths = _column_widths(batch.schema)
        width, others = self._widths
        self._piece_bytes += width * batch.num_rows
        self._piece_bytes += sum(batch.column(name).nbytes for name in others)
        if self._piece_rows >= ROW_GROUP_ROWS or self._piece_bytes >= ROW_GROUP_BYTES:
            self._write_group()

    def end_group(self) -> None:
        """Write the rows that were added since the last row group."""
        if self._pieces:
            self._write_group()

    def close(self) -> None:
        self.end_group()
        self._open(SCHEMAS[self.table], 1).close()
        os.replace(self._temp_path, self.path)

    def discard(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._temp_path.unlink(missing_ok=True)

    def _write_group(self) -> None:
        group = pa.Table.from_batches(self._pieces).unify_dictionaries()
        sessions = 1
        if self._writer is None and self.table not in UNSORTED_TABLES:
            sessions = sum(map(_session_runs, group.column(SESSION).chunks))
        self._open(group.schema, sessions).write_table(group, row_group_size=ROW_GROUP_ROWS)
        self.row_count += group.num_rows
        self._pieces, self._piece_rows, self._piece_bytes = [], 0, 0

    def _open(self, schema: pa.Schema, sessions: int) -> pq.ParquetWriter:
        """The writer. `sessions` are those of the first row group; the filters of all row groups
        are made for twice as many."""
        if self._writer is None:
            make_table_folder(self.path.parent, self.table)
            columns = TABLES[self.table].columns
            by_session = self.table not in UNSORTED_TABLES
            self._temp_path.unlink(missing_ok=True)
            if self.table in PRIVATE_TABLES:
                open_private(self._temp_path).close()
            self._writer = pq.ParquetWriter(
                self._temp_path,
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
                write_page_index=True,
                sorting_columns=[pq.SortingColumn(0)] if by_session else None,  # of a row group
                bloom_filter_options={SESSION: {"ndv": 2 * sessions, "fpp": BLOOM_FILTER_FPP}}
                if by_session
                else None,
            )
            self._writer.add_key_value_metadata(file_metadata(self._layout))
        return self._writer


def _column_widths(schema: pa.Schema) -> tuple[int, list[str]]:
    """Bytes of the columns of fixed width in a row, and the names of the other columns.

    A column with a dictionary has the width of its indices.
    """
    width, others = 0, []
    for field in schema:
        if pa.types.is_dictionary(field.type):
            width += field.type.index_type.bit_width // 8
        elif pa.types.is_primitive(field.type) or pa.types.is_decimal(field.type):
            width += field.type.bit_width // 8
        else:
            others.append(field.name)
    return width, others


def _session_runs(column: pa.Array) -> int:
    """How many sessions a sorted column has; no hash table of perhaps 300,000 ids is built."""
    ids = column.indices if pa.types.is_dictionary(column.type) else column
    return len(pc.run_end_encode(ids).values)


def file_metadata(layout: TableLayout) -> dict[str, str]:
    """The key-value metadata of every file: polymux's version, and the run and its options."""
    known = {
        "polymux.version": __version__,
        "polymux.run": layout.run,
        "polymux.options": layout.options,
    }
    return {name: value for name, value in known.items() if value}


def recorded_options(metadata: pq.FileMetaData) -> str:
    """The options of the run that wrote a file, as its layout had them; "" if it had none."""
    told: dict[bytes, bytes] = metadata.metadata or {}
    return told.get(b"polymux.options", b"").decode()


class _TableRows:
    """The rows of one table until the writer is closed: held, or in a temporary file."""

    def __init__(self, table: str, rows: SortedRows) -> None:
        self.table = table
        self.row_count = 0
        self.pending_bytes = 0  # of rows that are not sorted yet
        self._rows = rows
        self._pending: list[pa.RecordBatch] = []

    def add(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        # Of views, all that they keep alive; `nbytes` is slow.
        self.pending_bytes += batch.get_total_buffer_size()
        self.row_count += batch.num_rows
        if self.pending_bytes >= PORTION_BYTES and self.table not in UNSORTED_TABLES:
            self.spill()

    def spill(self) -> None:
        """Sort the held rows and move them to the temporary file."""
        if self.table not in UNSORTED_TABLES:
            self._rows.add(self._pending)
            self._pending, self.pending_bytes = [], 0
            self._rows.spill()

    def merged(self) -> Iterator[pa.RecordBatch]:
        """The rows in the order of the file; each batch has those of one partition."""
        pending, self._pending, self.pending_bytes = self._pending, [], 0
        if self.table in UNSORTED_TABLES:
            yield from pending
            return
        self._rows.add(pending)
        del pending
        yield from self._rows.merged()

    def close(self) -> None:
        self._rows.close()


class _GroupedRows:
    """The rows of one table until there are enough for a row group, which is sorted by itself."""

    def __init__(self, file: _ParquetFile) -> None:
        self.table = file.table
        self.file = file
        self.row_count = 0
        self._rows = 0  # that are not written yet
        self._compact: list[pa.RecordBatch] = []
        self._views: list[pa.RecordBatch] = []  # may be a few rows that keep a page alive
        self._compact_bytes = self._view_bytes = 0

    @property
    def pending_bytes(self) -> int:
        return self._compact_bytes + self._view_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        self._views.append(batch)
        self._view_bytes += batch.get_total_buffer_size()
        self._rows += batch.num_rows
        self.row_count += batch.num_rows
        if self._view_bytes >= PORTION_BYTES and len(self._views) > 1:
            self._compact.append(joined(self._views))
            self._compact_bytes += self._compact[-1].get_total_buffer_size()
            self._views, self._view_bytes = [], 0
        if self.pending_bytes >= MAX_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self.spill()

    def spill(self) -> None:
        """Write what is held as a row group."""
        held = [*self._compact, *self._views]
        self._compact, self._views = [], []
        self._rows = self._compact_bytes = self._view_bytes = 0
        for batch in held if self.table in UNSORTED_TABLES else sort_by_session(held):
            self.file.add(batch)
        del held
        self.file.end_group()

    def close(self) -> None:
        self.file.discard()


class TableWriter:
    """Writes `FOLDER/TABLE[/PARTITION]/NAME.parquet` for every table that receives rows.

    `emit` and `batcher` are the arguments of `analyze_session`. If the layout partitions the
    tables, `add_session` is called before the first row of each session. Use it as a context
    manager: if the block raises, no file appears. Every write error is an OutputError.
    """

    def __init__(
        self,
        folder: Path | str,
        name: str = "part-00000",
        layout: TableLayout | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.name = name
        self.files: list[WrittenFile] = []
        """The complete files, once the writer is closed."""
        self.batcher = RowBatcher(self.emit)
        self._layout = layout or TableLayout()
        self._sorts_files = self._layout.sorts_files or bool(self._layout.partition_by)
        self._tables: dict[str, _TableRows | _GroupedRows] = {}
        self._partitions: list[tuple[str, ...]] = []  # by place
        self._place_of_partition: dict[tuple[str, ...], int] = {}
        self._places: dict[str, int] = {}  # of sessions that are not in the first partition

    @property
    def pending_bytes(self) -> int:
        """Bytes of the rows that are held in memory, outside of the batcher."""
        return sum(rows.pending_bytes for rows in self._tables.values())

    def add_session(self, session_id: str, started_us: int, sensor: str) -> None:
        """Say in which partition a session's rows belong: see `TableLayout.partition_of`."""
        partition = self._layout.partition_of(started_us, sensor)
        place = self._place_of_partition.setdefault(partition, len(self._partitions))
        if place == len(self._partitions):
            self._partitions.append(partition)
        if place:
            self._places[session_id] = place

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        """Add a batch to a table; OutputError if it cannot be written."""
        if not batch.num_rows:
            return
        rows = self._tables.get(table)
        if rows is None:
            rows = self._tables[table] = self._new_rows(table)
        most = MAX_PENDING_BYTES if self._sorts_files else MAX_UNWRITTEN_BYTES
        try:
            rows.add(batch)
            if self.pending_bytes > most:
                rows = max(self._tables.values(), key=lambda each: each.pending_bytes)
                rows.spill()
        except OSError as problem:
            if isinstance(rows, _GroupedRows):
                raise _write_error(rows.file.path, problem) from None
            raise OutputError(
                f"rows of {table} cannot be written to a temporary file: "
                f"{problem.strerror or problem}; TMPDIR, or spark.local.dir of a worker, names the "
                "directory of these"
            ) from None

    def _new_rows(self, table: str) -> _TableRows | _GroupedRows:
        if self._sorts_files:
            return _TableRows(table, SortedRows(self._place_of))
        return _GroupedRows(_ParquetFile(self.folder / table, table, self.name, self._layout))

    def add_captures(self, summaries: Iterable[FileSummary]) -> None:
        """Add the rows of the `captures` table."""
        self.emit("captures", captures_batch(summaries))

    def row_counts(self) -> dict[str, int]:
        """Rows added so far, by table."""
        self.batcher.flush()
        return {table: rows.row_count for table, rows in self._tables.items()}

    def close(self) -> list[WrittenFile]:
        """Complete the files and return them."""
        self.batcher.flush()
        unfinished: list[_ParquetFile] = []
        try:
            for rows in self._tables.values():
                if isinstance(rows, _GroupedRows):
                    self._finish(rows)
                else:
                    pa.default_memory_pool().release_unused()
                    trim()
                    self._write(rows, unfinished)
        except BaseException:
            for file in unfinished:
                file.discard()
            for done in self.files:
                done.path.unlink(missing_ok=True)
            self.files.clear()
            raise
        finally:
            self._release()
        return self.files

    def _write(self, rows: _TableRows, unfinished: list[_ParquetFile]) -> None:
        """Write the files of a table. `unfinished` is the file that was begun, if it raises."""
        place = -1
        try:
            for batch in rows.merged():
                sorted_table = rows.table not in UNSORTED_TABLES
                found = self._place_of(str(batch.column(SESSION)[0])) if sorted_table else 0
                if found != place:
                    self._complete(unfinished)
                    place = found
                    partition = self._partition_folder(place) if sorted_table else ""
                    folder = self.folder / rows.table / partition
                    unfinished.append(_ParquetFile(folder, rows.table, self.name, self._layout))
                unfinished[-1].add(batch)
            self._complete(unfinished)
        except OSError as problem:
            raise _write_error(self.folder / rows.table, problem) from None
        rows.close()

    def _finish(self, rows: _GroupedRows) -> None:
        """Complete the file of a table whose row groups are sorted by themselves."""
        try:
            rows.spill()
            self._complete([rows.file])
        except OSError as problem:
            raise _write_error(rows.file.path, problem) from None

    def _complete(self, unfinished: list[_ParquetFile]) -> None:
        for file in unfinished:
            file.close()
            name = file.path.relative_to(self.folder).as_posix()
            self.files.append(WrittenFile(file.table, file.path, name, file.row_count))
        unfinished.clear()

    def _partition_folder(self, place: int) -> str:
        return self._layout.folder_of(self._partitions[place]) if self._partitions else ""

    def _place_of(self, session_id: str) -> int:
        return self._places.get(session_id, 0)

    def _release(self) -> None:
        for rows in self._tables.values():
            rows.close()
        self._tables = {}

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
            self._release()


def write_empty_tables(folder: Path | str, tables: Iterable[str] = ()) -> None:
    """Write an empty file for every table (all but `content`, or those named) without one."""
    for table in tables or [name for name in TABLES if name != "content"]:
        if not any((Path(folder) / table).rglob("*.parquet")):
            try:
                write_empty_table(Path(folder) / table / f"{EMPTY_FILE_NAME}.parquet", table)
            except OSError as problem:
                raise _write_error(Path(folder) / table, problem) from None


def write_empty_table(path: Path, table: str) -> None:
    """Write a file of a table without rows."""
    _ParquetFile(path.parent, table, path.stem, TableLayout()).close()


def merge_files(paths: Iterable[Path], table: str, target: Path) -> None:
    """Write the rows of these files of a table to one file, sorted, a row group at a time."""
    layout = TableLayout(sorts_files=True)
    with TableWriter(target.parent.parent, f"{target.stem}-merging", layout) as writer:
        for path in paths:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=MERGED_BATCH_ROWS):
                    writer.emit(table, batch.cast(SCHEMAS[table]))
    if writer.files:
        os.replace(writer.files[0].path, target)
    else:
        write_empty_table(target, table)


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


def _write_error(path: Path, problem: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written: {problem.strerror or problem}")
