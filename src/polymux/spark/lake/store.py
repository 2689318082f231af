"""What a lake is made of: data files, state files, and the versions that name them.

A lake is a directory or URL. Each run that writes to it makes one new version, which names the
Parquet files of every table and the state files of the run. A version becomes current in one step,
for all tables together; a run that fails or is killed before that step changes nothing.

    LAKE/frames/date=2026-11-03/part-....parquet   data files; never changed, only added or removed
    LAKE/_lake/state/...                           state files; never changed either
    LAKE/_lake/records/...                         what a version has added and removed
    LAKE/_lake/versions/00000042...                the versions; creating version 42 commits it
    LAKE/_lake/tables/00000042...                  where Delta or Iceberg tables have version 42

How a run uses it (`open_lake` returns the `Lake`):

    lake = open_lake(url, "delta")
    staging = lake.begin()                         # builds on the version staging.parent
    with staging.output.folder() as folder:        # each task: `staging.output` is pickled to it
        with TableWriter(folder) as writer: ...    #   FOLDER/TABLE[/NAME=VALUE...]/*.parquet
        files = staging.output.store(folder)       #   into the lake, where nothing names them yet
    state = staging.output.store_state("ledger", data)
    lake.commit(staging, added=files, removed=old, state=[state], operation="append")

Files of task attempts that do not count (failed, repeated, speculative) are not passed to `commit`;
`Lake.vacuum` removes them later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from polymux.core.errors import PolymuxError, UnreadableInput

FORMATS: Final = ("parquet", "delta", "iceberg")
LAKE_FOLDER: Final = "_lake"  # in a lake: all but its tables
DATE_PARTITION: Final = "date"
SENSOR_PARTITION: Final = "sensor"
PARTITION_NAMES: Final = (DATE_PARTITION, SENSOR_PARTITION)
OPERATIONS: Final = ("append", "reprocess", "follow", "compact", "expire")


class LakeError(PolymuxError):
    """A lake cannot be opened, read or written; the text names it, the reason and the remedy."""


class NoLake(LakeError, UnreadableInput):
    """There is no lake where one should be read."""


class ConcurrentCommit(LakeError):
    """Another run has committed a version that this run did not build on; nothing was changed.

    The run has to begin again. Its files are removed by `Lake.discard`, or later by `Lake.vacuum`.
    """


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table.

    Attributes:
        table: The table's name.
        path: Where it is, relative to the lake, with "/" between folders. Unique for all time.
        size: Bytes.
        rows: Number of rows.
        partition: Values of the partition columns that all its rows share, as text: `date` (as
            YYYY-MM-DD) of the session's start, and `sensor` if asked for. Empty: not partitioned.
        run: The run that committed it; `Lake.commit` sets it.
        provisional: Whether its rows are of sessions that had not ended: a later run removes the
            file and writes their finished rows. Never joined with files that are not provisional.
    """

    table: str
    path: str
    size: int
    rows: int
    partition: Mapping[str, str] = field(default_factory=dict)
    run: str = ""
    provisional: bool = False

    @property
    def date(self) -> str:
        """The date of its sessions as YYYY-MM-DD; "" if it is not partitioned by date."""
        return self.partition.get(DATE_PARTITION, "")


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file that a run keeps for the next ones; a lake does not look into it.

    Attributes:
        name: What the run calls it, unique among those of a version.
        path: Where it is, relative to the lake. Unique for all time.
        size: Bytes.
    """

    name: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class LakeVersion:
    """One version of a lake: everything that a reader of it sees.

    Attributes:
        number: From 1, without holes.
        run: The run that committed it.
        time: When, in UTC, by the clock of that run's driver.
        operation: One of `OPERATIONS`.
        polymux_version: The version of polymux that ran.
        options: The run's options, as text.
        parent: The number of the version before; 0 for the first.
        files: The data files by table, sorted by path. Tables without files are absent.
        state: The state files by name.
        added_files: How many files it has added to its parent's.
        removed_files: How many of its parent's files it has removed.
        tables: Where each table of a Delta or Iceberg lake has this version: a Delta version, or
            the location of Iceberg metadata, by table. Empty for Parquet, and for a version whose
            run was killed before the tables had it; the next writer completes that.
    """

    number: int
    run: str
    time: datetime
    operation: str
    polymux_version: str
    options: Mapping[str, str]
    parent: int
    files: Mapping[str, tuple[DataFile, ...]]
    state: Mapping[str, StateFile]
    added_files: int = 0
    removed_files: int = 0
    tables: Mapping[str, str] = field(default_factory=dict)

    def all_files(self) -> list[DataFile]:
        """The data files of all tables."""
        return [file for files in self.files.values() for file in files]

    def files_of(
        self, table: str, *, date: str | None = None, sensor: str | None = None
    ) -> list[DataFile]:
        """The files of a table, by default of all dates and sensors."""
        return [
            file
            for file in self.files.get(table, ())
            if date in (None, file.date)
            and sensor in (None, file.partition.get(SENSOR_PARTITION, ""))
        ]
