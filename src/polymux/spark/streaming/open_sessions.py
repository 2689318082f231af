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

from polymux.analysis.output.session_rows import make_session_id
from polymux.capture import FlowRefs, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits

NS_PER_MS = 1_000_000
NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """How long to wait, in seconds. `linger`: after the last write to the files of a session that
    is whole. `idle`: for more of one that is not, both since its last part arrived and in the time
    of the captures. `patience`: since anything arrived at all. `remember`: how long what was read
    is known again if it comes once more."""

    session_grace: float = 1.0
    session_timeout: float = 60.0
    idle_timeout: float = 3600.0
    dedup_window: float = 3600.0


@dataclass(slots=True)
class OpenSession:
    """What is known of one session of a flow that is not over."""

    session_id: str
    complete: bool
    last_packet_ns: int  # nanoseconds
    arrived_ms: int  # when its last part arrived
    modified_ms: int  # when its files were last written to
    packets: int


@dataclass(slots=True)
class TrackedFlow:
    """One flow: its references, and its sessions."""

    flow: bytes
    rows: list[FlowRefs] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    open_sessions: list[OpenSession] = field(default_factory=list)  # those that are not over
    finished_ids: set[str] = field(default_factory=set)  # given out, or left out
    all_finished: bool = False  # all its sessions are over
    finished_until_ns: int = -1  # the last instant of those that are over
    late_before_ns: int = -1  # the same when it was last sealed
    arrived_ms: int = 0


@dataclass(frozen=True, slots=True)
class SessionSelection:
    """Sessions of one flow, by name, with all references of the flow as they are now."""

    rows: tuple[FlowRefs, ...]
    session_ids: frozenset[str]
    packets: int

    @property
    def held_bytes(self) -> int:
        """Bytes of its references, which are all held, and of their order."""
        return sum(len(row.refs) for row in self.rows) * 5 // 4


class OpenSessions:
    """All flows of the files that still matter.

    Call `arrive` with everything that came at one instant, then `look`; both give the sessions
    that are over now and were not before. Instants never go back.
    """

    def __init__(
        self, timeouts: SessionTimeouts, limits: CaptureLimits, ports: Iterable[int]
    ) -> None:
        self._timeouts = timeouts
        self._limits = limits
        self._ports = tuple(ports)
        self._flows: dict[bytes, TrackedFlow] = {}
        self._open_flows: dict[bytes, TrackedFlow] = {}
        self._modified_ms: dict[str, int] = {}
        self._arrived_ms: dict[str, int] = {}
        self.watermark_ns = 0  # the newest instant of any packet
        self.last_arrival_ms = 0  # when anything arrived last
        self.late_packets = 0

    def add_parts(
        self, now_ms: int, parts: Sequence[tuple[str, int, Sequence[FlowRefs]]]
    ) -> list[SessionSelection]:
        """Parts of files came: name of the file, when it was written to, its rows.

        What was over before the first of them was there is over, whenever they are read: the time
        in which nobody looked does not count as silence.
        """
        given = self.finish_due(min((moved for _, moved, _ in parts), default=now_ms))
        self.last_arrival_ms = now_ms
        touched: dict[bytes, list[FlowRefs]] = {}
        for name, moved, rows in parts:
            self._modified_ms[name] = max(moved, self._modified_ms.get(name, 0))
            self._arrived_ms[name] = now_ms
            for row in rows:
                self.watermark_ns = max(self.watermark_ns, row.last_at)
                touched.setdefault(row.flow, []).append(row)
        for flow, rows in touched.items():
            course = self._flows.setdefault(flow, TrackedFlow(flow))
            course.arrived_ms = now_ms
            course.files.update(row.file for row in rows)
            course.rows.extend(rows)
            course.open_sessions = self._open_sessions_of(course)
            course.all_finished = not course.open_sessions
            if course.all_finished:  # late, all of it
                course.rows = []
                self._open_flows.pop(flow, None)
            else:
                self._open_flows[flow] = course
        return given

    def finish_due(self, now_ms: int) -> list[SessionSelection]:
        """The sessions that are over at this instant."""
        given = []
        for course in list(self._open_flows.values()):
            over = [known for known in course.open_sessions if self._due_ms(known) <= now_ms]
            if not over:
                continue
            names = frozenset(known.session_id for known in over)
            packets = sum(known.packets for known in over)
            given.append(SessionSelection(tuple(course.rows), names, packets))
            course.finished_ids |= names
            course.finished_until_ns = max(
                course.finished_until_ns, *(known.last_packet_ns for known in over)
            )
            course.open_sessions = [
                known for known in course.open_sessions if known.session_id not in names
            ]
            if not course.open_sessions:
                course.all_finished = True
                course.late_before_ns = course.finished_until_ns
                course.rows = []
                del self._open_flows[course.flow]
        return given

    def next_due_ms(self) -> int:
        """When the next session will be over if nothing more comes."""
        found = (
            self._due_ms(known)
            for course in self._open_flows.values()
            for known in course.open_sessions
        )
        return min(found, default=NEVER_MS)

    def still_open(self) -> list[tuple[TrackedFlow, OpenSession]]:
        return [
            (course, known)
            for course in self._open_flows.values()
            for known in course.open_sessions
        ]

    def forgettable(self, now_ms: int, files: Iterable[str]) -> set[str]:
        """Files of which nothing is needed any more, always together with those that share a
        flow with them."""
        limit = now_ms - int(self._timeouts.dedup_window * 1000)
        found = {name for name in files if self._arrived_ms.get(name, 0) <= limit}
        while found:
            kept: set[str] = set()
            for course in self._flows.values():
                if (
                    not course.all_finished
                    or course.arrived_ms > limit
                    or not course.files <= found
                ):
                    kept |= course.files & found
            if not kept:
                break
            found -= kept
        return found

    def forget(self, files: set[str]) -> None:
        for flow in [flow for flow, each in self._flows.items() if each.files <= files]:
            del self._flows[flow]
        for name in files:
            self._modified_ms.pop(name, None)
            self._arrived_ms.pop(name, None)

    # --- inside

    def _due_ms(self, session: OpenSession) -> int:
        waits = self._timeouts
        if session.complete:
            return session.modified_ms + int(waits.session_grace * 1000)
        idle = int(waits.session_timeout * 1000)
        at_last = self.last_arrival_ms + int(waits.idle_timeout * 1000)
        if self.watermark_ns - session.last_packet_ns >= idle * NS_PER_MS:
            return min(session.arrived_ms + idle, at_last)
        return at_last

    def _open_sessions_of(self, flow: TrackedFlow) -> list[OpenSession]:
        """The sessions of a flow that are not over. What belongs to one that is, or begins before
        the flow was sealed, is late."""
        found = []
        for session in self._sessions(flow.rows):
            name = make_session_id(session.flow, session.started_at)
            if name in flow.finished_ids:
                continue
            if flow.late_before_ns >= 0 and not (
                session.saw_syn and session.started_at > flow.late_before_ns
            ):
                self.late_packets += session.packets
                flow.finished_ids.add(name)
                continue
            session.scan_packets()
            ended = "rst" in session.ends or None not in session.ends
            whole = session.saw_syn and ended and not any(session.missing_bytes)
            heard = max(self._arrived_ms[file] for file in session.captures)
            moved = max(self._modified_ms[file] for file in session.captures)
            found.append(OpenSession(name, whole, session.ended_at, heard, moved, session.packets))
        return found

    def _sessions(self, rows: Iterable[FlowRefs]) -> list[TcpSession]:
        return sessions_of(rows, _no_payload_reader, limits=self._limits, ports=self._ports)


def _no_payload_reader(path: str) -> Callable[[int, int], bytes]:
    """Payload is not looked at here."""

    def read(offset: int, size: int) -> bytes:
        raise AssertionError("deciding what is over reads no payload")

    return read
