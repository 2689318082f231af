"""From one place in a growing folder to the next: which files are new, which sessions are over."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from polymux.capture import CaptureLimits, FileSummary, FlowFilter, FlowRefs
from polymux.spark.streaming.capture_folder import Folder, Fresh
from polymux.spark.streaming.offset import Part, Place
from polymux.spark.streaming.open_sessions import NEVER, Flows, Given, Waits

GROWN = math.log(1.25)  # an open session is walked anew when it has grown by a quarter
LEAST = 32_768  # packets that are worth a task of their own
MOST_TASKS = 8  # of a micro-batch


@dataclass
class Work:
    """What one task of a micro-batch does. `open` are sessions that are not over, for the
    snapshot; the rest stands in one of the tasks only."""

    over: list[Given] = field(default_factory=list)
    open: list[Given] = field(default_factory=list)
    captures: list[FileSummary] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)  # open sessions that are not walked anew
    status: dict[str, int] = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return sum(given.packets for given in (*self.over, *self.open))


@dataclass(frozen=True)
class Available:
    """An instant, in nanoseconds, and the files that were there."""

    at: int
    names: frozenset[str]


class Follower:
    """Stands at one place of a folder; going on from another means reading up to it again."""

    def __init__(
        self,
        path: str,
        *,
        waits: Waits | None = None,
        ports: Sequence[int] = (),
        filters: Sequence[str] = (),
        limits: CaptureLimits | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.waits = waits or Waits()
        self._limits = limits or CaptureLimits()
        self._ports = tuple(ports)
        self.folder = Folder(path, FlowFilter(ports, filters), self._limits, self.waits.idle)
        self._clock = clock
        self._place = Place()
        self._flows = self._new_flows()
        self._told: set[str] = set()

    def next(self, start: Place, most: int, until: Available | None = None) -> Place:
        """How far the folder can be read on now, or could be read on at an instant before; the
        same place if there is nothing to do."""
        self._stand_at(start)
        now_ns = self._clock() if until is None else until.at
        only = None if until is None else until.names
        fresh = self.folder.fresh(start, now_ns, most, only)
        clock = now_ns // 1_000_000
        if not fresh and min(self._flows.due(), self._untold_due()) > clock:
            return start
        clock = max(clock, start.clock + 1)
        files = dict(start.files)
        for each in fresh:
            # Not before the last batch: what that has decided was decided without this file.
            part = Part(clock, max(start.clock, min(each.moved, clock)), each.end)
            files[each.name] = (*files.get(each.name, ()), part)
        gone = self._forgotten(start, fresh)
        for name in gone:
            del files[name]
        listed = set(self.folder.names())
        return Place(clock, files, frozenset((start.gone | gone) & listed))

    def available(self) -> Available:
        """What there is now, for a run that ends when it has read it."""
        return Available(self._clock(), frozenset(self.folder.names()))

    def go_on(self, start: Place, end: Place) -> list[Work]:
        """Everything between two places, shared out to tasks; the first has what is said once."""
        self._stand_at(start)
        before = {known.name: known.packets for _, known in self._flows.still_open()}
        late = self._flows.late_packets
        over: list[Given] = []
        octets = taken = 0
        for at, parts in end.arrivals():
            if at > start.clock:
                over += self._arrive(end, at, parts)
                octets += sum(size_of(end.files[name], number) for name, number in parts)
                taken += len(parts)
        over += self._flows.look(end.clock)
        captures = self._tell(end)
        self._leave(end)
        first = Work(captures=captures)
        opened: list[Given] = []
        for course, known in self._flows.still_open():
            if level(before.get(known.name, 0)) == level(known.packets):
                first.unchanged.append(known.name)
            else:
                opened.append(Given(tuple(course.rows), frozenset({known.name}), known.packets))
        first.status = {
            "clock": end.clock,
            "newest": self._flows.watermark // 1_000_000,
            "bytes": octets,
            "files": taken,
            "open": len(opened) + len(first.unchanged),
            "late_packets": self._flows.late_packets - late,
        }
        return shared_out(first, over, opened)

    # --- inside

    def _new_flows(self) -> Flows:
        return Flows(self.waits, self._limits, self._ports)

    def _stand_at(self, place: Place) -> None:
        if self._place == place:
            return
        self._flows = self._new_flows()
        self._told = set()
        self._place = Place(gone=place.gone)
        for at, parts in place.arrivals():
            self._arrive(place, at, parts)
        self._flows.look(place.clock)
        self._tell(place)
        self._place = place

    def _arrive(self, place: Place, at: int, parts: list[tuple[str, int]]) -> list[Given]:
        found: list[tuple[str, int, list[FlowRefs]]] = []
        for name, number in parts:
            known = place.files[name][: number + 1]
            rows = self.folder.rows(name, place.files[name], number)
            found.append((self.folder.full(name), known[-1].moved, rows))
        return self._flows.arrive(at, found)

    def _tell(self, place: Place) -> list[FileSummary]:
        """The files of which a row can be given now, and could not before."""
        told = [
            name
            for name, parts in place.files.items()
            if name not in self._told and self._told_due(name, parts) <= place.clock
        ]
        self._told.update(told)
        return [self.folder.summary(name, place.files[name]) for name in sorted(told)]

    def _told_due(self, name: str, parts: tuple[Part, ...]) -> int:
        if self.folder.is_torn(name, parts):
            return parts[-1].arrived + int(self.waits.idle * 1000)
        return parts[-1].moved + int(self.waits.linger * 1000)

    def _untold_due(self) -> int:
        files = self._place.files
        dues = (self._told_due(name, files[name]) for name in files if name not in self._told)
        return min(dues, default=NEVER)

    def _forgotten(self, start: Place, fresh: list[Fresh]) -> frozenset[str]:
        """Files that do not matter any more, and have nothing to do with those that come now."""
        full = {self.folder.full(name): name for name in start.files if name in self._told}
        found = self._flows.forgettable(start.clock, full)
        if fresh and found:
            return frozenset()  # another time: they may be more of the same
        return frozenset(full[path] for path in found)

    def _leave(self, end: Place) -> None:
        lost = {name for name in self._place.files if name not in end.files}
        self._flows.forget({self.folder.full(name) for name in lost})
        self.folder.forget(lost)
        self._told -= lost
        self._place = end


def size_of(parts: tuple[Part, ...], number: int) -> int:
    return parts[number].end - (parts[number - 1].end if number else 0)


def level(packets: int) -> int:
    """Changes when a session has grown by about a quarter."""
    return int(math.log(packets) / GROWN) if packets > 0 else -1


def shared_out(first: Work, over: list[Given], opened: list[Given]) -> list[Work]:
    """Tasks of about equal weight, the heaviest sessions first; always one at least.

    One, two, four or eight of them, so that as many cores have about as much to do.
    """
    works = [first]
    packets = sum(given.packets for given in (*over, *opened))
    while len(works) < MOST_TASKS and packets >= LEAST * 2 * len(works):
        works += [Work() for _ in works]
    weights = [0] * len(works)
    for given, is_over in sorted(
        [(each, True) for each in over] + [(each, False) for each in opened],
        key=lambda pair: -pair[0].packets,
    ):
        lightest = weights.index(min(weights))
        weights[lightest] += given.packets
        work = works[lightest]
        (work.over if is_over else work.open).append(given)
    return [first, *(work for work in works[1:] if work.weight)]
