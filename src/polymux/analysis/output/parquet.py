"""Tables as Parquet: one folder a table, every folder there even if it is empty.

A writer holds at most a row group of each table, and a few thousand rows that wait to become a
batch. Its files appear under their names when it is closed, whole, or not at all. The same batches
in the same order give the same files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Final

from polymux.analysis.arrow.batches import SCHEMAS, batch_of
from polymux.analysis.output.row_batcher import Gathering
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.capture import FileSummary
from polymux.capture.io.paths import open_private
from polymux.core.errors import MissingExtra, UnwritableOutput

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

GROUP_ROWS: Final = 65_536
GROUP_OCTETS: Final = 16 << 20
# A batch may be a few rows of a page with room for many: so many octets of pages are kept.
LOOSE_OCTETS: Final = 8 << 20
EMPTY: Final = "part-empty"
PRIVATE: Final = frozenset({"content"})  # tables of payload: their files are the owner's alone
# Nearly every group of rows has all of these: what comes first and last among them lets no reader
# skip it, and takes an eighth of the time to find.
_EVERYWHERE: Final = ("sender", "kind", "stream")
_GROW: Final = (ColumnType.INTEGER, ColumnType.INSTANT)


class OutputError(UnwritableOutput):
    """The tables cannot be written; the text says where and why."""


class _File:
    """One Parquet file on its way."""

    def __init__(self, folder: Path, table: str, name: str) -> None:
        self.table = table
        self.rows = 0
        self.path = folder / table / f"{name}.parquet"
        self.hidden = folder / table / f".{name}.parquet.part"
        self._waiting: list[pa.RecordBatch] = []
        self._loose: list[pa.RecordBatch] = []
        self._rows = self._octets = self._held = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._loose.append(batch)
        self._held += batch.get_total_buffer_size()  # for what they take, `nbytes` takes long
        self._rows += batch.num_rows
        self.rows += batch.num_rows
        if self._rows >= GROUP_ROWS or self._octets + self._held >= GROUP_OCTETS:
            self.flush()
        elif self._held >= LOOSE_OCTETS and len(self._loose) > 1:
            dense = _joined(self._loose)
            self._waiting += dense.to_batches()
            self._octets += dense.get_total_buffer_size()
            self._loose, self._held = [], 0

    def flush(self) -> None:
        if self._waiting or self._loose:
            group = _joined([*self._waiting, *self._loose])
            # Rows beyond a full group are mostly few, and a group of their own costs as much.
            self._open(group.schema).write_table(group, row_group_size=2 * GROUP_ROWS)
            self._waiting, self._loose = [], []
            self._rows = self._octets = self._held = 0

    def _open(self, schema: pa.Schema) -> pq.ParquetWriter:
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            columns = TABLES[self.table].columns
            self.hidden.unlink(missing_ok=True)
            if self.table in PRIVATE:
                open_private(self.hidden).close()
            self._writer = pq.ParquetWriter(
                self.hidden,
                schema,
                compression="zstd",
                # Counters and instants do not repeat, they grow: their differences are small, and
                # writing those takes half the time and half the room.
                use_dictionary=[c.name for c in columns if c.type is ColumnType.TEXT],
                column_encoding={c.name: "DELTA_BINARY_PACKED" for c in columns if c.type in _GROW},
                write_statistics=[c.name for c in columns if c.name not in _EVERYWHERE],
                store_schema=False,  # readers see text, however it was encoded here
                use_compliant_nested_type=False,
            )
        return self._writer

    def close(self) -> None:
        self.flush()
        self._open(SCHEMAS[self.table]).close()
        os.replace(self.hidden, self.path)

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self.hidden.unlink(missing_ok=True)


class TableWriter:
    """Writes `FOLDER/TABLE/NAME.parquet` for every table it is given rows of.

    `emit` and `gathering` are what `walk` wants. Use it as a context: on an error nothing appears.
    Every write error is an OutputError.
    """

    def __init__(self, folder: Path | str, name: str = "part-00000") -> None:
        self.folder = Path(folder)
        self.name = name
        self._files: dict[str, _File] = {}
        self.gathering = Gathering(self.emit)

    def emit(self, table: str, batch: pa.RecordBatch) -> None:
        file = self._files.get(table)
        if file is None:
            file = self._files[table] = _File(self.folder, table, self.name)
        try:
            file.add(batch)
        except OSError as problem:
            raise _cannot(file.path, problem) from None

    def captures(self, summaries: Iterable[FileSummary]) -> None:
        """The rows of the `captures` table."""
        rows = [asdict(summary) for summary in summaries]
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self.emit("captures", batch_of("captures", columns))

    def rows(self) -> dict[str, int]:
        """Rows given so far, by table."""
        self.gathering.flush()
        return {table: file.rows for table, file in self._files.items()}

    def close(self) -> list[Path]:
        """Finish the files; returns them."""
        self.gathering.flush()
        for file in self._files.values():
            try:
                file.close()
            except OSError as problem:
                raise _cannot(file.path, problem) from None
        return [file.path for file in self._files.values()]

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
            for file in self._files.values():
                file.abandon()


def fill_empty(folder: Path | str, tables: Iterable[str] = ()) -> None:
    """Give every table (all but `content`, or those named) that has no file one without rows."""
    for table in tables or [name for name in TABLES if name != "content"]:
        if not any((Path(folder) / table).glob("*.parquet")):
            try:
                _File(Path(folder), table, EMPTY).close()
            except OSError as problem:
                raise _cannot(Path(folder) / table, problem) from None


def read_table(folder: Path | str, table: str) -> pa.Table:
    """All rows of a table, for tests and small outputs; the exact schema."""
    return pa.Table.from_batches(list(read_batches(folder, table)), SCHEMAS[table])


def read_batches(folder: Path | str, table: str) -> Iterator[pa.RecordBatch]:
    """A table's rows batch by batch, its files in the order of their names."""
    for path in sorted((Path(folder) / table).glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield batch.cast(SCHEMAS[table])


def _joined(batches: list[pa.RecordBatch]) -> pa.Table:
    """The rows of these batches in one piece of their own; a single one stays as it is."""
    return pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()


def _cannot(path: Path, problem: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written: {problem.strerror or problem}")
