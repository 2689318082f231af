"""From one place in a growing folder to the next: which files are new, which sessions are over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs
from polymux.spark.streaming.capture_folder import CaptureFolder, NewData
from polymux.spark.streaming.offset import FilePart, FolderOffset
from polymux.spark.streaming.open_sessions import (
    NEVER_MS,
    OpenSessions,
    SessionSelection,
    SessionTimeouts,
)

LOG_GROWTH_STEP = math.log(1.25)  # an open session is walked anew when it has grown by a quarter
MIN_TASK_PACKETS = 32_768  # packets that are worth a task of their own
MAX_TASKS = 8  # of a micro-batch


@dataclass
class BatchTask:
    """What one task of a micro-batch does. `open` are sessions that are not over, for the
    snapshot; the rest stands in one of the tasks only."""

    finished: list[SessionSelection] = field(default_factory=list)
    still_open: list[SessionSelection] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)  # open sessions that are not walked anew
    status: dict[str, int] = field(default_factory=dict)

    @property
    def packets(self) -> int:
        return sum(given.packets for given in (*self.finished, *self.still_open))


@dataclass(frozen=True)
class AvailableFiles:
    """An instant, in nanoseconds, and the files that were there."""

    time_ns: int
    names: frozenset[str]


class FolderFollower:
    """Stands at one place of a folder; going on from another means reading up to it again."""

    def __init__(
        self,
        path: str,
        *,
        timeouts: SessionTimeouts | None = None,
        ports: Sequence[int] = (),
        filters: Sequence[str] = (),
        limits: CaptureLimits | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.timeouts = timeouts or SessionTimeouts()
        self._limits = limits or CaptureLimits()
        self._ports = tuple(ports)
        self.folder = CaptureFolder(
            path, FlowFilter(ports, filters), self._limits, self.timeouts.session_timeout
        )
        self._clock = clock
        self._offset = FolderOffset()
        self._open_sessions = self._new_open_sessions()
        self._reported_files: set[str] = set()

    def next_offset(
        self, start: FolderOffset, max_bytes: int, available: AvailableFiles | None = None
    ) -> FolderOffset:
        """How far the folder can be read on now, or could be read on at an instant before; the
        same place if there is nothing to do."""
        self._replay_to(start)
        now_ns = self._clock() if available is None else available.time_ns
        only = None if available is None else available.names
        fresh = self.folder.new_data(start, now_ns, max_bytes, only)
        clock = now_ns // 1_000_000
        if not fresh and min(self._open_sessions.next_due_ms(), self._next_report_due_ms()) > clock:
            return start
        clock = max(clock, start.clock_ms + 1)
        files = dict(start.files)
        for each in fresh:
            # Not before the last batch: what that has decided was decided without this file.
            part = FilePart(
                clock, max(start.clock_ms, min(each.modified_ms, clock)), each.end_offset
            )
            files[each.name] = (*files.get(each.name, ()), part)
        gone = self._forgettable_files(start, fresh)
        for name in gone:
            del files[name]
        listed = set(self.folder.file_names())
        return FolderOffset(clock, files, frozenset((start.forgotten | gone) & listed))

    def available_files(self) -> AvailableFiles:
        """What there is now, for a run that ends when it has read it."""
        return AvailableFiles(self._clock(), frozenset(self.folder.file_names()))

    def plan_batch(self, start: FolderOffset, end: FolderOffset) -> list[BatchTask]:
        """Everything between two places, shared out to tasks; the first has what is said once."""
        self._replay_to(start)
        before = {known.session_id: known.packets for _, known in self._open_sessions.still_open()}
        late = self._open_sessions.late_packets
        over: list[SessionSelection] = []
        size = taken = 0
        for at, parts in end.arrivals():
            if at > start.clock_ms:
                over += self._add_parts(end, at, parts)
                size += sum(part_size(end.files[name], number) for name, number in parts)
                taken += len(parts)
        over += self._open_sessions.finish_due(end.clock_ms)
        captures = self._report_files(end)
        self._advance_to(end)
        first = BatchTask(captures=captures)
        opened: list[SessionSelection] = []
        for course, known in self._open_sessions.still_open():
            if growth_level(before.get(known.session_id, 0)) == growth_level(known.packets):
                first.unchanged.append(known.session_id)
            else:
                opened.append(
                    SessionSelection(
                        tuple(course.rows), frozenset({known.session_id}), known.packets
                    )
                )
        first.status = {
            "clock": end.clock_ms,
            "newest": self._open_sessions.watermark_ns // 1_000_000,
            "bytes": size,
            "files": taken,
            "open": len(opened) + len(first.unchanged),
            "late_packets": self._open_sessions.late_packets - late,
        }
        return divide_into_tasks(first, over, opened)

    # --- inside

    def _new_open_sessions(self) -> OpenSessions:
        return OpenSessions(self.timeouts, self._limits, self._ports)

    def _replay_to(self, offset: FolderOffset) -> None:
        if self._offset == offset:
            return
        self._open_sessions = self._new_open_sessions()
        self._reported_files = set()
        self._offset = FolderOffset(forgotten=offset.forgotten)
        for at, parts in offset.arrivals():
            self._add_parts(offset, at, parts)
        self._open_sessions.finish_due(offset.clock_ms)
        self._report_files(offset)
        self._offset = offset

    def _add_parts(
        self, offset: FolderOffset, now_ms: int, parts: list[tuple[str, int]]
    ) -> list[SessionSelection]:
        found: list[tuple[str, int, list[FlowRefs]]] = []
        for name, number in parts:
            known = offset.files[name][: number + 1]
            rows = self.folder.rows(name, offset.files[name], number)
            found.append((self.folder.absolute_path(name), known[-1].modified_ms, rows))
        return self._open_sessions.add_parts(now_ms, found)

    def _report_files(self, offset: FolderOffset) -> list[FileSummary]:
        """The files of which a row can be given now, and could not before."""
        told = [
            name
            for name, parts in offset.files.items()
            if name not in self._reported_files
            and self._report_due_ms(name, parts) <= offset.clock_ms
        ]
        self._reported_files.update(told)
        return [self.folder.summary(name, offset.files[name]) for name in sorted(told)]

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

    def _forgettable_files(self, start: FolderOffset, new_data: list[NewData]) -> frozenset[str]:
        """Files that do not matter any more, and have nothing to do with those that come now."""
        full = {
            self.folder.absolute_path(name): name
            for name in start.files
            if name in self._reported_files
        }
        found = self._open_sessions.forgettable(start.clock_ms, full)
        if new_data and found:
            return frozenset()  # another time: they may be more of the same
        return frozenset(full[path] for path in found)

    def _advance_to(self, end: FolderOffset) -> None:
        lost = {name for name in self._offset.files if name not in end.files}
        self._open_sessions.forget({self.folder.absolute_path(name) for name in lost})
        self.folder.forget(lost)
        self._reported_files -= lost
        self._offset = end


def part_size(parts: tuple[FilePart, ...], number: int) -> int:
    return parts[number].end_offset - (parts[number - 1].end_offset if number else 0)


def growth_level(packets: int) -> int:
    """Changes when a session has grown by about a quarter."""
    return int(math.log(packets) / LOG_GROWTH_STEP) if packets > 0 else -1


def divide_into_tasks(
    first: BatchTask, finished: list[SessionSelection], still_open: list[SessionSelection]
) -> list[BatchTask]:
    """Tasks of about equal weight, the heaviest sessions first; always one at least.

    One, two, four or eight of them, so that as many cores have about as much to do.
    """
    works = [first]
    packets = sum(given.packets for given in (*finished, *still_open))
    while len(works) < MAX_TASKS and packets >= MIN_TASK_PACKETS * 2 * len(works):
        works += [BatchTask() for _ in works]
    weights = [0] * len(works)
    for given, is_over in sorted(
        [(each, True) for each in finished] + [(each, False) for each in still_open],
        key=lambda pair: -pair[0].packets,
    ):
        lightest = weights.index(min(weights))
        weights[lightest] += given.packets
        work = works[lightest]
        (work.finished if is_over else work.still_open).append(given)
    return [first, *(work for work in works[1:] if work.packets)]
