"""Deciding when the sessions of a growing folder have ended.

Captures arrive one after another, possibly out of order, late or twice. A complete session (its
start, both ends, nothing missing) has ended as soon as its files have not changed for a moment. Any
other session has ended when later captures contain nothing of it for a while, or when nothing has
arrived at all for a long time; see `SessionTimeouts`. Packets that arrive after that are late, and
ignored.

Invariant: a decision depends only on what arrived before it. It is therefore the same when a
micro-batch is repeated or replayed after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from polymux.analysis.output.session_rows import make_session_id
from polymux.capture import FlowRefs, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits

NS_PER_MS = 1_000_000
NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class SessionTimeouts:
    """When a session counts as ended. All values are seconds.

    Args:
        session_grace: After the last change of its files, for a complete session.
        session_timeout: Without a packet, for an incomplete session: both since its last part
            arrived, and by the timestamps of later captures.
        idle_timeout: Since any data arrived: then all sessions end.
        dedup_window: How long data that was read is recognised if it arrives again.
    """

    session_grace: float = 1.0
    session_timeout: float = 60.0
    idle_timeout: float = 3600.0
    dedup_window: float = 3600.0


@dataclass(slots=True)
class OpenSession:
    """A session of a flow that has not ended. Times are since the epoch."""

    session_id: str
    complete: bool
    last_packet_ns: int
    arrived_ms: int  # when its last part arrived
    modified_ms: int  # last modification of its files
    packets: int


@dataclass(slots=True)
class TrackedFlow:
    """A flow: its packet references and its sessions."""

    flow: bytes
    rows: list[FlowRefs] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    open_sessions: list[OpenSession] = field(default_factory=list)
    finished_ids: set[str] = field(default_factory=set)  # of sessions that ended or were late
    all_finished: bool = False  # it has no open session
    finished_until_ns: int = -1  # last packet of the sessions that have ended
    late_before_ns: int = -1  # `finished_until_ns` when all had ended: earlier packets are late
    arrived_ms: int = 0


@dataclass(frozen=True, slots=True)
class SessionSelection:
    """Sessions of one flow, by id, with all current references of the flow."""

    rows: tuple[FlowRefs, ...]
    session_ids: frozenset[str]
    packets: int

    @property
    def held_bytes(self) -> int:
        """Memory in bytes for its references, all of which are held, and their order."""
        return sum(len(row.refs) for row in self.rows) * 5 // 4


class OpenSessions:
    """All flows of the files that are still needed.

    Call `add_parts` with everything that arrived at one time, then `finish_due`; both return the
    sessions that have ended since the last call. Times must not decrease.
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
        self.watermark_ns = 0  # newest timestamp of any packet
        self.last_arrival_ms = 0
        self.late_packets = 0

    @property
    def flow_count(self) -> int:
        """How many flows are remembered."""
        return len(self._flows)

    def add_parts(
        self, now_ms: int, parts: Sequence[tuple[str, int, Sequence[FlowRefs]]]
    ) -> list[SessionSelection]:
        """Add parts of files: path, last modification in milliseconds, and rows of each.

        First ends the sessions that were due before the earliest of these modifications. Later
        ones are not ended yet, because the time between a modification and its reading does not
        count as silence.
        """
        finished = self.finish_due(min((modified for _, modified, _ in parts), default=now_ms))
        self.last_arrival_ms = now_ms
        touched: dict[bytes, list[FlowRefs]] = {}
        for name, modified_ms, rows in parts:
            self._modified_ms[name] = max(modified_ms, self._modified_ms.get(name, 0))
            self._arrived_ms[name] = now_ms
            for row in rows:
                self.watermark_ns = max(self.watermark_ns, row.last_at)
                touched.setdefault(row.flow, []).append(row)
        for key, rows in touched.items():
            flow = self._flows.setdefault(key, TrackedFlow(key))
            flow.arrived_ms = now_ms
            flow.files.update(row.file for row in rows)
            flow.rows.extend(rows)
            flow.open_sessions = self._open_sessions_of(flow)
            flow.all_finished = not flow.open_sessions
            if flow.all_finished:  # everything was late
                flow.rows = []
                self._open_flows.pop(key, None)
            else:
                self._open_flows[key] = flow
        return finished

    def finish_due(self, now_ms: int) -> list[SessionSelection]:
        """End the sessions that are due at this time, and return them."""
        finished = []
        for flow in list(self._open_flows.values()):
            due = [session for session in flow.open_sessions if self._due_ms(session) <= now_ms]
            if not due:
                continue
            ids = frozenset(session.session_id for session in due)
            packets = sum(session.packets for session in due)
            finished.append(SessionSelection(tuple(flow.rows), ids, packets))
            flow.finished_ids |= ids
            flow.finished_until_ns = max(
                flow.finished_until_ns, *(session.last_packet_ns for session in due)
            )
            flow.open_sessions = [
                session for session in flow.open_sessions if session.session_id not in ids
            ]
            if not flow.open_sessions:
                flow.all_finished = True
                flow.late_before_ns = flow.finished_until_ns
                flow.rows = []
                del self._open_flows[flow.flow]
        return finished

    def next_due_ms(self) -> int:
        """Return when the next session ends if nothing more arrives."""
        return min((self._due_ms(session) for _, session in self.still_open()), default=NEVER_MS)

    def still_open(self) -> list[tuple[TrackedFlow, OpenSession]]:
        """Return the sessions that have not ended, each with its flow."""
        return [
            (flow, session) for flow in self._open_flows.values() for session in flow.open_sessions
        ]

    def complete_dues_ms(self) -> list[int]:
        """Return when each complete session is due."""
        return [self._due_ms(session) for _, session in self.still_open() if session.complete]

    def forgettable(
        self, now_ms: int, files: Iterable[str], touched: Container[bytes] = ()
    ) -> set[str]:
        """Return the files that are no longer needed; files that share a flow go together.

        Files of the flows in `touched` are needed: more of those has arrived.
        """
        limit = now_ms - int(self._timeouts.dedup_window * 1000)
        candidates = {name for name in files if self._arrived_ms.get(name, 0) <= limit}
        while candidates:
            needed: set[str] = set()
            for flow in self._flows.values():
                if (
                    not flow.all_finished
                    or flow.arrived_ms > limit
                    or flow.flow in touched
                    or not flow.files <= candidates
                ):
                    needed |= flow.files & candidates
            if not needed:
                break
            candidates -= needed
        return candidates

    def forget(self, files: set[str]) -> None:
        """Drop these files and the flows that are only in them."""
        for key in [key for key, flow in self._flows.items() if flow.files <= files]:
            del self._flows[key]
        for name in files:
            self._modified_ms.pop(name, None)
            self._arrived_ms.pop(name, None)

    # Private helpers

    def _due_ms(self, session: OpenSession) -> int:
        """When the session ends if nothing more arrives, in milliseconds since the epoch."""
        if session.complete:
            return session.modified_ms + int(self._timeouts.session_grace * 1000)
        timeout = int(self._timeouts.session_timeout * 1000)
        idle_end = self.last_arrival_ms + int(self._timeouts.idle_timeout * 1000)
        if self.watermark_ns - session.last_packet_ns >= timeout * NS_PER_MS:
            return min(session.arrived_ms + timeout, idle_end)
        return idle_end

    def _open_sessions_of(self, flow: TrackedFlow) -> list[OpenSession]:
        """Return the sessions of a flow that have not ended.

        Packets of a session that has ended are late, and so is a session that began before
        `late_before_ns`.
        """
        open_sessions = []
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
            complete = session.saw_syn and ended and not any(session.missing_bytes)
            arrived = max(self._arrived_ms[file] for file in session.captures)
            modified = max(self._modified_ms[file] for file in session.captures)
            open_sessions.append(
                OpenSession(name, complete, session.ended_at, arrived, modified, session.packets)
            )
        return open_sessions

    def _sessions(self, rows: Iterable[FlowRefs]) -> list[TcpSession]:
        return sessions_of(rows, _no_payload_reader, limits=self._limits, ports=self._ports)


def _no_payload_reader(path: str) -> Callable[[int, int], bytes]:
    """A reader for sessions whose payload must not be read."""

    def read(offset: int, size: int) -> bytes:
        raise AssertionError("deciding which sessions have ended reads no payload")

    return read
