"""The output of an analyze task that writes to a lake.

Rows are divided by the date of their session's start, and by sensor if asked for; those of sessions
that are not over go to files of their own, which the next run replaces.
"""

from __future__ import annotations

import os
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from polymux.analysis.output.layout import PARTITION_COLUMNS, TableLayout
from polymux.analysis.output.parquet import TableWriter, make_table_folder
from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import TcpSession
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.paths import open_private
from polymux.spark.incremental.carried_packets import CarriedWriter
from polymux.spark.incremental.open_rule import OpenRule
from polymux.spark.lake.lake import TaskOutput
from polymux.spark.lake.store import DataFile, StateFile

MAX_WRITERS = 4  # each holds at most a row group of each table
CARRIED_PREFIX = "carried/"
SECRETS_PREFIX = "secrets/"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Partition(NamedTuple):
    """Whose rows share files: whether sessions are over, the date of their start, the sensor."""

    provisional: bool
    date: str
    sensor: str = ""


@dataclass
class StoredFiles:
    """What a task has stored in the lake."""

    data: list[DataFile] = field(default_factory=list)
    state: list[StateFile] = field(default_factory=list)
    open_sessions: int = 0
    left_out: int = 0  # packets of the time of sessions that stay as they were written

    def add(self, other: StoredFiles) -> None:
        """Add what another task has stored."""
        self.data += other.data
        self.state += other.state
        self.open_sessions += other.open_sessions
        self.left_out += other.left_out


def start_date(started_ns: int) -> str:
    """The UTC date of an instant in nanoseconds since 1970, as YYYY-MM-DD."""
    return (_EPOCH + timedelta(seconds=started_ns // 1_000_000_000)).date().isoformat()


class PartitionWriters:
    """Writers of tables by partition, below `folder`; use as a context manager.

    At most `MAX_WRITERS` that no session uses are kept open; those used last. `layout` says what
    the files tell of their run.
    """

    def __init__(self, folder: Path, layout: TableLayout) -> None:
        self._folder = folder
        self._layout = layout
        self._open: OrderedDict[Partition, TableWriter] = OrderedDict()
        self._users: dict[Partition, int] = {}

    def begin(self, partition: Partition) -> TableWriter:
        """Return the writer of a partition, which stays open until `end`."""
        writer = self._open.pop(partition, None)
        if writer is None:
            writer = TableWriter(self._folder, f"part-{uuid.uuid4().hex}", self._layout)
        self._open[partition] = writer
        self._users[partition] = self._users.get(partition, 0) + 1
        return writer

    def end(self, partition: Partition) -> None:
        """Give back what `begin` returned."""
        self._users[partition] -= 1
        idle = [key for key in self._open if not self._users[key]]
        for key in idle[: max(0, len(self._open) - MAX_WRITERS)]:
            self._finish(key)

    def folder_of(self, provisional: bool) -> Path:
        """The folder with the files of finished or of provisional rows, as a lake takes them."""
        return self._folder / ("open" if provisional else "over")

    def _finish(self, partition: Partition) -> None:
        """Complete the files of a partition and put them where a lake takes them from."""
        for path in [written.path for written in self._open.pop(partition).close()]:
            place = partition_folder(
                self.folder_of(partition.provisional), path.parent.name, partition
            )
            os.replace(path, place / path.name)

    def __enter__(self) -> PartitionWriters:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            for partition in list(self._open):
                self._finish(partition)
        else:
            for writer in self._open.values():
                writer.__exit__(kind, error, trace)


def partition_folder(folder: Path, table: str, partition: Partition) -> Path:
    """Make and return the folder of a partition of a table below `folder`."""
    make_table_folder(folder / table)
    values = (partition.date, partition.sensor) if partition.sensor else (partition.date,)
    layout = TableLayout(PARTITION_COLUMNS[: len(values)])
    place = folder / table / layout.folder_of(values)
    place.mkdir(parents=True, exist_ok=True)
    return place


class LakeOutput:
    """Where the sessions of an analyze task go: rows by partition, and the packets of open ones.

    Use as a context manager; then call `store`.

    Args:
        folder: A local folder for the files of this attempt.
        rule: Which sessions are not over.
        by_sensor: Whether rows are divided by sensor too.
        layout: What the files tell of their run; it divides nothing.
        keys: The secrets of TLS sessions.
    """

    def __init__(
        self,
        folder: Path,
        rule: OpenRule,
        by_sensor: bool,
        layout: TableLayout,
        keys: KeyLog | None = None,
    ) -> None:
        self._folder = folder
        self._rule = rule
        self._by_sensor = by_sensor
        (folder / "state").mkdir()
        (folder / "rows").mkdir()
        self._rows = PartitionWriters(folder / "rows", layout)
        self._carried = CarriedWriter(folder / "state", keys)
        self._open: set[tuple[bytes, int]] = set()
        self._open_count = 0

    def begin_flow(self, sessions: Sequence[TcpSession], files: UrlFilePool) -> None:
        found = self._rule.open_sessions(sessions)
        self._open_count += len(found)
        self._open |= {(session.flow, session.started_at) for session in found}
        self._carried.add(found, files)

    def begin_session(self, session: TcpSession) -> TableWriter:
        return self._rows.begin(self._partition(session))

    def end_session(self, session: TcpSession) -> None:
        self._rows.end(self._partition(session))
        self._open.discard((session.flow, session.started_at))

    def store(self, output: TaskOutput) -> StoredFiles:
        """Store everything in the lake."""
        stored = StoredFiles(open_sessions=self._open_count)
        for provisional in (False, True):
            folder = self._rows.folder_of(provisional)
            if folder.exists():
                stored.data += output.store(folder, provisional=provisional)
        for path in self._carried.files:
            stored.state.append(output.store_state(CARRIED_PREFIX + path.name, path))
        if self._carried.secrets:
            path = self._folder / "state" / uuid.uuid4().hex
            with open_private(path) as file:
                file.write(self._carried.secrets)
            stored.state.append(output.store_state(SECRETS_PREFIX + path.name, path))
        return stored

    def __enter__(self) -> LakeOutput:
        self._carried.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._rows.__exit__(kind, error, trace)
        finally:
            self._carried.__exit__(kind, error, trace)

    def _partition(self, session: TcpSession) -> Partition:
        return Partition(
            (session.flow, session.started_at) in self._open,
            start_date(session.started_at),
            session.sensor if self._by_sensor else "",
        )
