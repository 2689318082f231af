"""Deciding when the sessions of a growing folder have ended.

Captures arrive one after another, possibly out of order, late or twice. A complete session (its
start, both ends, nothing missing) has ended as soon as its files have not changed for a moment. Any
other session has ended when later captures contain nothing of it for a while, or when nothing has
arrived at all for a long time; see `SessionTimeouts`. Packets that arrive after that are late, and
ignored.

A file is needed while it is young, or has packets of a session that is open. Other files are
forgotten. A flow that was in one of them and is in files that stay leaves a note: its sessions
ended, the last of them then. Without the note, a replay would take what is left of them for
sessions of which the start is missing. A flow in no file that stays leaves nothing.

Invariant: a decision depends only on what arrived before it. It is therefore the same when a
micro-batch is repeated or replayed after a restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    saw_syn: bool
    complete: bool
    first_packet_ns: int
    last_packet_ns: int
    arrived_ms: int  # when its last part arrived
    modified_ms: int  # last modification of its files
    packets: int


@dataclass(slots=True)
class TrackedFlow:
    """A flow: its packet references and its sessions."""

    flow: bytes
    late_before_ns: int = -1  # sessions that began at this time or before it are late
    noted: bool = False  # it was in files that are forgotten
    rows: list[FlowRefs] = field(default_factory=list)  # of open sessions
    files: set[str] = field(default_factory=set)  # all it is in that are not forgotten
    open_sessions: list[OpenSession] = field(default_factory=list)
    finished_ids: set[str] = field(default_factory=set)  # of sessions that ended or were late
    finished_until_ns: int = -1  # last packet of the sessions that have ended


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
    sessions that have ended since the last call. Times must not decrease. `ended` are the notes of
    flows that were also in files that are forgotten; see `notes_without`.
    """

    def __init__(
        self,
        timeouts: SessionTimeouts,
        limits: CaptureLimits,
        ports: Iterable[int],
        ended: Mapping[bytes, int] | None = None,
    ) -> None:
        self._timeouts = timeouts
        self._limits = limits
        self._ports = tuple(ports)
        self._ended = ended or {}
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
            flow = self._flows.get(key) or self._new_flow(key)
            flow.files.update(row.file for row in rows)
            flow.rows.extend(rows)
            flow.open_sessions = self._open_sessions_of(flow)
            if flow.open_sessions:
                self._open_flows[key] = flow
            else:  # everything was late
                flow.rows = []
                self._open_flows.pop(key, None)
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
            self._drop_ended_rows(flow)
            if not flow.open_sessions:
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

    def forgettable(self, now_ms: int, files: Iterable[str]) -> set[str]:
        """Return those of the files that are old and in which no session is open."""
        limit = now_ms - int(self._timeouts.dedup_window * 1000)
        old = {name for name in files if self._arrived_ms.get(name, 0) <= limit}
        for flow in self._open_flows.values() if old else ():
            old.difference_update(row.file for row in flow.rows)
        return old

    def notes_without(self, files: set[str], touched: Collection[bytes]) -> dict[bytes, int]:
        """Return the notes that a replay without these forgettable files needs.

        By a digest of the flow: the time, in nanoseconds, up to which its sessions have ended.
        Of the flows in `touched`, more has arrived in files that stay.
        """
        return {
            _digest(flow.flow): flow.late_before_ns
            for flow in self._flows.values()
            if (flow.noted or not flow.files.isdisjoint(files))
            and (flow.flow in touched or not flow.files <= files)
        }

    def forget(self, files: set[str], ended: Mapping[bytes, int]) -> None:
        """Drop these files and the flows that are only in them; `ended` are the notes from now on,
        with those of flows that are dropped of which more will be added now."""
        self._ended = ended
        for flow in list(self._flows.values()):
            if flow.files.isdisjoint(files):
                continue
            flow.files -= files
            flow.noted = True
            if not flow.files:
                del self._flows[flow.flow]
            else:  # ids of sessions of which nothing is kept would add up
                of_rows = self._sessions(flow.rows) if flow.rows else ()
                flow.finished_ids &= {_session_id(session) for session in of_rows}
        for name in files:
            self._modified_ms.pop(name, None)
            self._arrived_ms.pop(name, None)

    # Private helpers

    def _new_flow(self, key: bytes) -> TrackedFlow:
        noted_ns = self._ended.get(_digest(key)) if self._ended else None
        flow = TrackedFlow(key) if noted_ns is None else TrackedFlow(key, noted_ns, noted=True)
        self._flows[key] = flow
        return flow

    def _drop_ended_rows(self, flow: TrackedFlow) -> None:
        """Drop what lies before the open sessions, if these began after all others had ended.

        Addresses and ports may be used again and again: some session is always open then.
        """
        if not all(
            session.saw_syn and session.first_packet_ns > flow.finished_until_ns
            for session in flow.open_sessions
        ):
            return
        flow.late_before_ns = max(flow.late_before_ns, flow.finished_until_ns)
        if not flow.open_sessions:
            flow.rows = []
            return
        rows = [row for row in flow.rows if row.last_at > flow.late_before_ns]
        if len(rows) == len(flow.rows):
            return
        flow.rows = rows
        late_packets = self.late_packets
        flow.open_sessions = self._open_sessions_of(flow)
        self.late_packets = late_packets  # what is left of the others in these rows is not late

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
            name = _session_id(session)
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
                OpenSession(
                    name, session.saw_syn, complete, session.started_at, session.ended_at, arrived,
                    modified, session.packets,
                )
            )  # fmt: skip
        return open_sessions

    def _sessions(self, rows: Iterable[FlowRefs]) -> list[TcpSession]:
        return sessions_of(rows, _no_payload_reader, limits=self._limits, ports=self._ports)


def _session_id(session: TcpSession) -> str:
    return make_session_id(session.flow, session.started_at)


def _digest(flow: bytes) -> bytes:
    """Eight bytes that stand for a flow in a note."""
    return hashlib.blake2b(flow, digest_size=8).digest()


def _no_payload_reader(path: str) -> Callable[[int, int], bytes]:
    """A reader for sessions whose payload must not be read."""

    def read(offset: int, size: int) -> bytes:
        raise AssertionError("deciding which sessions have ended reads no payload")

    return read
