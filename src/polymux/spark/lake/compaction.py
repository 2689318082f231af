"""Joining small files of a lake: fewer to open, larger row groups, sorted by session and time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.spark.lake.store import DataFile

if TYPE_CHECKING:
    from polymux.spark.lake.lake import Lake, TaskOutput

MAX_JOINED_ROWS: Final = 8_000_000  # sorted in memory: about 1 GiB of frames


def plan_joins(
    files: Iterable[DataFile], target_bytes: int, dates: frozenset[str] = frozenset()
) -> list[list[DataFile]]:
    """Which files are to be joined, in groups of one table and partition.

    Provisional files are left alone: a later run removes them.
    """
    folders: dict[str, list[DataFile]] = {}
    for file in files:
        small = file.size < target_bytes // 2 and file.rows < MAX_JOINED_ROWS
        if small and not file.provisional and (not dates or file.date in dates):
            folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    joins = []
    for folder in sorted(folders):
        group: list[DataFile] = []
        for file in sorted(folders[folder], key=lambda file: file.path):
            size = sum(each.size for each in group) + file.size
            rows = sum(each.rows for each in group) + file.rows
            if group and (size > target_bytes or rows > MAX_JOINED_ROWS):
                joins.append(group)
                group = []
            group.append(file)
        joins.append(group)
    return [group for group in joins if len(group) > 1]


def join_files(lake: Lake, output: TaskOutput, files: list[DataFile]) -> list[DataFile]:
    """Write the rows of files of one table and partition anew, sorted, and store them."""
    import pyarrow as pa

    table = files[0].table
    with output.folder() as folder:
        rows = pa.Table.from_batches(list(lake.batches(files)), SCHEMAS[table])
        rows = rows.sort_by([(name, "ascending") for name in sort_columns(table)])
        with TableWriter(folder / "joined") as writer:
            for batch in rows.to_batches():
                writer.emit(table, batch)
        # The partition is that of the files: their folder.
        place = folder / files[0].path.rpartition("/")[0]
        place.mkdir(parents=True)
        for number, path in enumerate(sorted((folder / "joined" / table).glob("*.parquet"))):
            path.rename(place / f"{number}.parquet")
        return output.store(folder)


def sort_columns(table: str) -> list[str]:
    """The columns by which the rows of a table are sorted: its session, then its time."""
    columns = TABLES[table].columns
    session = [column.name for column in columns if column.name == "session_id"]
    times = [column.name for column in columns if column.type is ColumnType.TIMESTAMP]
    return [*session, *times[:1]] or list(TABLES[table].key)
