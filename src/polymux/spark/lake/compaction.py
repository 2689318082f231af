"""Joining small files of a lake: fewer to open, larger row groups, sorted by session and time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter, recorded_options
from polymux.core.errors import MissingExtra
from polymux.spark.lake.store import DataFile

try:
    import pyarrow.parquet as pq
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

if TYPE_CHECKING:
    from polymux.spark.lake.lake import Lake, TaskOutput


def plan_joins(
    files: Iterable[DataFile], target_bytes: int, dates: frozenset[str] = frozenset()
) -> list[list[DataFile]]:
    """Which files are to be joined, in groups of one table and partition.

    Provisional files are left alone: a later run removes them.
    """
    folders: dict[str, list[DataFile]] = {}
    for file in files:
        small = file.size < target_bytes // 2
        if small and not file.provisional and (not dates or file.date in dates):
            folders.setdefault(file.path.rpartition("/")[0], []).append(file)
    joins = []
    for folder in sorted(folders):
        group: list[DataFile] = []
        size = 0
        for file in sorted(folders[folder], key=lambda file: file.path):
            if group and size + file.size > target_bytes:
                joins.append(group)
                group, size = [], 0
            group.append(file)
            size += file.size
        joins.append(group)
    return [group for group in joins if len(group) > 1]


def join_files(lake: Lake, output: TaskOutput, files: list[DataFile]) -> list[DataFile]:
    """Write the rows of files of one table and partition anew, sorted, and store them.

    They tell the options of the first: all runs of a lake share those that decide its rows.
    """
    table = files[0].table
    source = lake.storage.arrow_filesystem.open_input_file(lake.storage.arrow_path(files[0].path))
    with source:
        told = recorded_options(pq.read_metadata(source))
        layout = TableLayout(run=output.run, options=told, sorts_files=True)
    with output.folder() as folder:
        with TableWriter(folder / "joined", layout=layout) as writer:
            for batch in lake.batches(files):
                writer.emit(table, batch)
        # The partition is that of the files: their folder.
        place = folder / files[0].path.rpartition("/")[0]
        place.mkdir(parents=True)
        for number, file in enumerate(writer.files):
            file.path.rename(place / f"{number}.parquet")
        return output.store(folder)
