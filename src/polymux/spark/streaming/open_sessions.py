"""Which sessions of a growing folder are over, and when that was decided.

Captures arrive one after another, perhaps out of order, late or twice. A session that is whole
(its start, both ends, no gap) is over as soon as its files have settled; any other is over when
the captures have gone on without it for a while, or nothing at all has come for a long time. What
comes for it after that is late, and left out. A decision depends only on what had arrived before
it, so that it is the same whenever it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from polymux.analysis.output.session_rows import session_id
from polymux.capture import FlowRefs, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits

NS_PER_MS = 1_000_000
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Waits:
    """How long to wait, in seconds. `linger`: after the last write to the files of a session that
    is whole. `idle`: for more of one that is not, both since its last part arrived and in the time
    of the captures. `patience`: since anything arrived at all. `remember`: how long what was read
    is known again if it comes once more."""

    linger: float = 1.0
    idle: float = 60.0
    patience: float = 3600.0
    remember: float = 3600.0


@dataclass(slots=True)
class Known:
    """What is known of one session of a flow that is not over."""

    name: str
    whole: bool
    last_at: int  # nanoseconds
    heard: int  # when its last part arrived
    moved: int  # when its files were last written to
    packets: int


@dataclass(slots=True)
class Course:
    """One flow: its references, and its sessions."""

    flow: bytes
    rows: list[FlowRefs] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    sessions: list[Known] = field(default_factory=list)  # those that are not over
    over: set[str] = field(default_factory=set)  # given out, or left out
    sealed: bool = False  # all its sessions are over
    last: int = -1  # the last instant of those that are over
    floor: int = -1  # the same when it was last sealed
    heard: int = 0


@dataclass(frozen=True, slots=True)
class Given:
    """Sessions of one flow, by name, with all references of the flow as they are now."""

    rows: tuple[FlowRefs, ...]
    names: frozenset[str]
    packets: int

    @property
    def held(self) -> int:
        """Octets of its references, which are all held, and of their order."""
        return sum(len(row.refs) for row in self.rows) * 5 // 4


class Flows:
    """All flows of the files that still matter.

    Call `arrive` with everything that came at one instant, then `look`; both give the sessions
    that are over now and were not before. Instants never go back.
    """

    def __init__(self, waits: Waits, limits: CaptureLimits, ports: Iterable[int]) -> None:
        self._waits = waits
        self._limits = limits
        self._ports = tuple(ports)
        self._courses: dict[bytes, Course] = {}
        self._open: dict[bytes, Course] = {}
        self._moved: dict[str, int] = {}
        self._heard: dict[str, int] = {}
        self.watermark = 0  # the newest instant of any packet
        self.newest = 0  # when anything arrived last
        self.late_packets = 0

    def arrive(self, at: int, parts: Sequence[tuple[str, int, Sequence[FlowRefs]]]) -> list[Given]:
        """Parts of files came: name of the file, when it was written to, its rows.

        What was over before the first of them was there is over, whenever they are read: the time
        in which nobody looked does not count as silence.
        """
        given = self.look(min((moved for _, moved, _ in parts), default=at))
        self.newest = at
        touched: dict[bytes, list[FlowRefs]] = {}
        for name, moved, rows in parts:
            self._moved[name] = max(moved, self._moved.get(name, 0))
            self._heard[name] = at
            for row in rows:
                self.watermark = max(self.watermark, row.last_at)
                touched.setdefault(row.flow, []).append(row)
        for flow, rows in touched.items():
            course = self._courses.setdefault(flow, Course(flow))
            course.heard = at
            course.files.update(row.file for row in rows)
            course.rows.extend(rows)
            course.sessions = self._known(course)
            course.sealed = not course.sessions
            if course.sealed:  # late, all of it
                course.rows = []
                self._open.pop(flow, None)
            else:
                self._open[flow] = course
        return given

    def look(self, clock: int) -> list[Given]:
        """The sessions that are over at this instant."""
        given = []
        for course in list(self._open.values()):
            over = [known for known in course.sessions if self._due(known) <= clock]
            if not over:
                continue
            names = frozenset(known.name for known in over)
            packets = sum(known.packets for known in over)
            given.append(Given(tuple(course.rows), names, packets))
            course.over |= names
            course.last = max(course.last, *(known.last_at for known in over))
            course.sessions = [known for known in course.sessions if known.name not in names]
            if not course.sessions:
                course.sealed = True
                course.floor = course.last
                course.rows = []
                del self._open[course.flow]
        return given

    def due(self) -> int:
        """When the next session will be over if nothing more comes."""
        found = (self._due(known) for course in self._open.values() for known in course.sessions)
        return min(found, default=NEVER)

    def still_open(self) -> list[tuple[Course, Known]]:
        return [(course, known) for course in self._open.values() for known in course.sessions]

    def forgettable(self, clock: int, names: Iterable[str]) -> set[str]:
        """Files of which nothing is needed any more, always together with those that share a
        flow with them."""
        limit = clock - int(self._waits.remember * 1000)
        found = {name for name in names if self._heard.get(name, 0) <= limit}
        while found:
            kept: set[str] = set()
            for course in self._courses.values():
                if not course.sealed or course.heard > limit or not course.files <= found:
                    kept |= course.files & found
            if not kept:
                break
            found -= kept
        return found

    def forget(self, names: set[str]) -> None:
        for flow in [flow for flow, each in self._courses.items() if each.files <= names]:
            del self._courses[flow]
        for name in names:
            self._moved.pop(name, None)
            self._heard.pop(name, None)

    # --- inside

    def _due(self, known: Known) -> int:
        waits = self._waits
        if known.whole:
            return known.moved + int(waits.linger * 1000)
        idle = int(waits.idle * 1000)
        at_last = self.newest + int(waits.patience * 1000)
        if self.watermark - known.last_at >= idle * NS_PER_MS:
            return min(known.heard + idle, at_last)
        return at_last

    def _known(self, course: Course) -> list[Known]:
        """The sessions of a flow that are not over. What belongs to one that is, or begins before
        the flow was sealed, is late."""
        found = []
        for session in self._sessions(course.rows):
            name = session_id(session.flow, session.started_at)
            if name in course.over:
                continue
            if course.floor >= 0 and not (session.saw_syn and session.started_at > course.floor):
                self.late_packets += session.packets
                course.over.add(name)
                continue
            session.survey()
            ended = "rst" in session.ends or None not in session.ends
            whole = session.saw_syn and ended and not any(session.gaps)
            heard = max(self._heard[file] for file in session.captures)
            moved = max(self._moved[file] for file in session.captures)
            found.append(Known(name, whole, session.ended_at, heard, moved, session.packets))
        return found

    def _sessions(self, rows: Iterable[FlowRefs]) -> list[TcpSession]:
        return sessions_of(rows, _unread, limits=self._limits, ports=self._ports)


def _unread(path: str) -> Callable[[int, int], bytes]:
    """Payload is not looked at here."""

    def read(offset: int, size: int) -> bytes:
        raise AssertionError("deciding what is over reads no payload")

    return read
