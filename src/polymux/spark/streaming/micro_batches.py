"""Planning of micro-batches: from one offset of a growing folder to the next.

Everything that a micro-batch emits is a function of its start and end offset and the files they
name. After a restart, `FolderFollower` replays the arrivals of the start offset to rebuild its
state, and then plans the same batch again.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polymux.analysis.tls.key_log import KeyLog
from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs, SensorNaming
from polymux.capture.io.sources import FileIdentity
from polymux.spark.streaming.capture_folder import CaptureFolder, NewData
from polymux.spark.streaming.index_store import IndexStore
from polymux.spark.streaming.offset import FilePart, FolderOffset
from polymux.spark.streaming.open_sessions import (
    NEVER_MS,
    OpenSessions,
    SessionSelection,
    SessionTimeouts,
)

LOG_GROWTH_STEP = math.log(1.25)  # an open session is analyzed again when it has grown by 1/4
MIN_TASK_PACKETS = 32_768  # fewest packets for which another task pays
DEFAULT_TASKS = 8  # most tasks of a micro-batch, if the session does not say


@dataclass
class BatchTask:
    """The input of one task of a micro-batch.

    Sessions are divided between tasks; `captures`, `unchanged` and `status` are set in the first
    task only.
    """

    finished: list[SessionSelection] = field(default_factory=list)  # their rows are emitted
    still_open: list[SessionSelection] = field(default_factory=list)  # for the snapshot
    captures: list[FileSummary] = field(default_factory=list)
    identities: dict[str, FileIdentity] = field(default_factory=dict)  # of its captures, by path
    unchanged: list[str] = field(default_factory=list)  # open sessions not to be analyzed again
    status: dict[str, int] = field(default_factory=dict)
    to_index: list[str] = field(default_factory=list)  # captures, by path, for the index store
    keys: KeyLog = field(default_factory=KeyLog)  # of sessions inside TLS

    @property
    def packets(self) -> int:
        return sum(selection.packets for selection in (*self.finished, *self.still_open))


@dataclass(frozen=True)
class AvailableFiles:
    """A time, in nanoseconds since the epoch, and the files that existed then."""

    time_ns: int
    names: frozenset[str]


class FolderFollower:
    """Follows a folder; runs on the driver.

    Its state belongs to one offset. Continuing from another offset replays everything up to that
    one first.
    """

    def __init__(
        self,
        path: str,
        *,
        timeouts: SessionTimeouts | None = None,
        ports: Sequence[int] = (),
        filters: Sequence[str] = (),
        sensors: SensorNaming | None = None,
        limits: CaptureLimits | None = None,
        clock: Callable[[], int] = time.time_ns,
        max_tasks: int = DEFAULT_TASKS,
        store: IndexStore | None = None,
    ) -> None:
        self.timeouts = timeouts or SessionTimeouts()
        self._limits = limits or CaptureLimits()
        self._ports = tuple(ports)
        self.folder = CaptureFolder(
            path,
            FlowFilter(ports, filters, sensors),
            self._limits,
            self.timeouts.session_timeout,
            store,
        )
        self._clock = clock
        self._max_tasks = max_tasks
        self._offset = FolderOffset()
        self._open_sessions = self._new_open_sessions()
        self._reported_files: set[str] = set()

    @property
    def flow_count(self) -> int:
        """How many flows are remembered."""
        return self._open_sessions.flow_count

    def next_offset(
        self, start: FolderOffset, max_bytes: int, available: AvailableFiles | None = None
    ) -> FolderOffset:
        """Return how far the folder can be read now; `start` if there is nothing to do.

        Args:
            start: The current offset.
            max_bytes: Most bytes of captures, but at least one file.
            available: Consider only these files, at that time. When they are read, what is
                complete ends at once: nothing more will arrive in this run.
        """
        self._replay_to(start)
        now_ns = self._clock() if available is None else available.time_ns
        only = None if available is None else available.names
        changed = self.folder.changed_files(start, now_ns, only)
        replaced = self._replaced_files()
        changed = [file for file in changed if file.name not in replaced]
        new_data: list[NewData] = []
        if start.indexing:
            indexed, changed = self.folder.divide_indexed(start, changed)
            new_data = self.folder.new_data(start, indexed, now_ns, max_bytes)
        if not new_data:
            waiting = self.folder.files_for_tasks(changed, start, max_bytes)
            if waiting:  # the clock stands still: nothing may end before these have been read
                return replace(start, indexing=waiting)
            new_data = self.folder.new_data(start, changed, now_ns, max_bytes)
        clock = now_ns // 1_000_000
        if (
            not new_data
            and not replaced
            and min(self._open_sessions.next_due_ms(), self._next_report_due_ms()) > clock
        ):
            clock = self._complete_due_ms() if available is not None else 0
            if not clock:
                return replace(start, indexing=frozenset())
        clock = max(clock, start.clock_ms + 1)
        files = dict(start.files)
        for data in new_data:
            # Not before the previous batch, whose decisions were made without this file.
            modified_ms = max(start.clock_ms, min(data.modified_ms, clock))
            part = FilePart(clock, modified_ms, data.end_offset, data.modified_ms)
            files[data.name] = (*files.get(data.name, ()), part)
        touched = {
            row.flow
            for data in new_data
            for row in self.folder.rows(data.name, files[data.name], len(files[data.name]) - 1)
        }
        forgotten = self._forgettable_files(start.clock_ms) - {data.name for data in new_data}
        ended = start.ended
        if forgotten or replaced:
            paths = set(map(self.folder.absolute_path, forgotten | replaced))
            ended = self._open_sessions.notes_without(paths, touched)
        for name in forgotten | replaced:
            del files[name]
        # What has taken the place of a file is read as a new one, and was not forgotten.
        remaining = self.folder.remaining(start, forgotten - replaced)
        return FolderOffset(clock, files, remaining, ended=ended)

    def available_files(self) -> AvailableFiles:
        """Return what exists now, for a run that ends when it has read that."""
        return AvailableFiles(self._clock(), self.folder.all_names())

    def secrets(self, offset: FolderOffset) -> list[bytes]:
        """Return the TLS key logs in the captures that were read up to `offset`."""
        return [
            text
            for name, parts in offset.files.items()
            for text in self.folder.secrets(name, parts)
        ]

    def plan_batch(self, start: FolderOffset, end: FolderOffset) -> list[BatchTask]:
        """Return the tasks of the micro-batch between two offsets.

        The `status` of the first has `clock` and `newest` (milliseconds since the epoch, the latter
        of the newest packet), `bytes`, `files`, `open` (sessions) and `late_packets`.
        """
        self._replay_to(start)
        self._forget(end)
        before = {
            session.session_id: session.packets for _, session in self._open_sessions.still_open()
        }
        late_before = self._open_sessions.late_packets
        finished: list[SessionSelection] = []
        size = part_count = 0
        for now_ms, parts in end.arrivals():
            if now_ms > start.clock_ms:
                finished += self._add_parts(end, now_ms, parts)
                size += sum(part_size(end.files[name], number) for name, number in parts)
                part_count += len(parts)
        finished += self._open_sessions.finish_due(end.clock_ms)
        captures = self._report_files(end)
        self._offset = end
        first = BatchTask(captures=captures)
        still_open: list[SessionSelection] = []
        for flow, session in self._open_sessions.still_open():
            if growth_level(before.get(session.session_id, 0)) == growth_level(session.packets):
                first.unchanged.append(session.session_id)
            else:
                session_ids = frozenset({session.session_id})
                still_open.append(SessionSelection(tuple(flow.rows), session_ids, session.packets))
        first.status = {
            "clock": end.clock_ms,
            "newest": self._open_sessions.watermark_ns // 1_000_000,
            "bytes": size,
            "files": part_count,
            "open": len(still_open) + len(first.unchanged),
            "late_packets": self._open_sessions.late_packets - late_before,
        }
        tasks = divide_into_tasks(first, finished, still_open, self._max_tasks)
        for task in tasks:
            self._add_identities(task)
        paths = [self.folder.absolute_path(name) for name in sorted(end.indexing)]
        count = min(len(paths), self._max_tasks)
        return tasks + [BatchTask(to_index=paths[number::count]) for number in range(count)]

    # Private helpers

    def _new_open_sessions(self, ended: Mapping[bytes, int] | None = None) -> OpenSessions:
        return OpenSessions(self.timeouts, self._limits, self._ports, ended)

    def _replay_to(self, offset: FolderOffset) -> None:
        """Rebuild the state at `offset`, unless it is the current one."""
        if self._offset == offset:
            return
        self.folder.look_anew()
        self._open_sessions = self._new_open_sessions(offset.ended)
        self._reported_files = set()
        self._offset = FolderOffset(forgotten=offset.forgotten)
        for now_ms, parts in offset.arrivals():
            self._add_parts(offset, now_ms, parts)
        self._open_sessions.finish_due(offset.clock_ms)
        self._report_files(offset)
        self._offset = offset

    def _add_parts(
        self, offset: FolderOffset, now_ms: int, parts: list[tuple[str, int]]
    ) -> list[SessionSelection]:
        """Add parts that arrived at the same time. Return the sessions that ended before them."""
        arrived: list[tuple[str, int, list[FlowRefs]]] = []
        for name, number in parts:
            rows = self.folder.rows(name, offset.files[name], number)
            modified_ms = offset.files[name][number].modified_ms
            arrived.append((self.folder.absolute_path(name), modified_ms, rows))
        return self._open_sessions.add_parts(now_ms, arrived)

    def _report_files(self, offset: FolderOffset) -> list[FileSummary]:
        """Return the summaries of files that became final; each is returned once."""
        final = [
            name
            for name, parts in offset.files.items()
            if name not in self._reported_files
            and self._report_due_ms(name, parts) <= offset.clock_ms
        ]
        self._reported_files.update(final)
        return [self.folder.summary(name, offset.files[name]) for name in sorted(final)]

    def _report_due_ms(self, name: str, parts: tuple[FilePart, ...]) -> int:
        if self.folder.is_incomplete(name, parts):
            return parts[-1].arrived_ms + int(self.timeouts.session_timeout * 1000)
        return parts[-1].modified_ms + int(self.timeouts.session_grace * 1000)

    def _next_report_due_ms(self) -> int:
        files = self._offset.files
        dues = (
            self._report_due_ms(name, files[name])
            for name in files
            if name not in self._reported_files
        )
        return min(dues, default=NEVER_MS)

    def _add_identities(self, task: BatchTask) -> None:
        selections = (*task.finished, *task.still_open)
        for path in {row.file for selection in selections for row in selection.rows}:
            identity = self.folder.identity(path)
            if identity is not None:
                task.identities[path] = identity

    def _complete_due_ms(self) -> int:
        """Return when the last complete session or file is due; 0 if there is none."""
        files = self._offset.files
        dues = [
            self._report_due_ms(name, files[name])
            for name in files
            if name not in self._reported_files and not self.folder.is_incomplete(name, files[name])
        ]
        return max([*dues, *self._open_sessions.complete_dues_ms()], default=0)

    def _forgettable_files(self, clock_ms: int) -> set[str]:
        """Return the names of the files that are no longer needed at this time."""
        by_path = {self.folder.absolute_path(name): name for name in self._reported_files}
        return {by_path[path] for path in self._open_sessions.forgettable(clock_ms, by_path)}

    def _replaced_files(self) -> set[str]:
        """Return the names of files that are others now, and in which no session is open.

        If one is, its bytes are lost, which is found out when they are read.
        """
        if not self.folder.replaced:
            return set()
        return self.folder.replaced & self._forgettable_files(NEVER_MS)

    def _forget(self, end: FolderOffset) -> None:
        """Drop the state of the files that are not needed from this offset on."""
        forgotten = {name for name in self._offset.files if name not in end.files}
        if forgotten:
            paths = {self.folder.absolute_path(name) for name in forgotten}
            self._open_sessions.forget(paths, end.ended)
            self.folder.forget(forgotten)
            self._reported_files -= forgotten


def part_size(parts: tuple[FilePart, ...], number: int) -> int:
    return parts[number].end_offset - (parts[number - 1].end_offset if number else 0)


def growth_level(packets: int) -> int:
    """Return a number that changes when a session has grown by about a quarter."""
    return int(math.log(packets) / LOG_GROWTH_STEP) if packets > 0 else -1


def divide_into_tasks(
    first: BatchTask,
    finished: list[SessionSelection],
    still_open: list[SessionSelection],
    max_tasks: int = DEFAULT_TASKS,
) -> list[BatchTask]:
    """Divide the sessions into at most `max_tasks` of about equal cost; `first` is one of them.

    The largest sessions are assigned first, each to the task with the fewest packets so far.
    """
    packets = sum(selection.packets for selection in (*finished, *still_open))
    count = max(1, min(max_tasks, packets // MIN_TASK_PACKETS))
    tasks = [first, *(BatchTask() for _ in range(count - 1))]
    costs = [(0, number) for number in range(count)]  # a heap
    for selection, is_finished in sorted(
        [(each, True) for each in finished] + [(each, False) for each in still_open],
        key=lambda pair: -pair[0].packets,
    ):
        cost, cheapest = heapq.heappop(costs)
        heapq.heappush(costs, (cost + selection.packets, cheapest))
        task = tasks[cheapest]
        (task.finished if is_finished else task.still_open).append(selection)
    return [first, *(task for task in tasks[1:] if task.packets)]
