# mypyc: compiled
"""TCP sessions from packed references: endpoints, facts, and the two byte streams."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from polymux.capture.io.file_pool import FileReader
from polymux.capture.io.paths import is_url
from polymux.capture.io.read_ahead import ReadAhead
from polymux.capture.io.read_runs import ReadRun, read_run
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.flows import (
    FLOW_KEY_BYTES,
    endpoint_text,
    flow_endpoints,
    sensor_of_flow,
)
from polymux.capture.packets.indexer import FlowRefs
from polymux.capture.packets.packet_refs import REF_BYTES
from polymux.capture.pcapng.comments import read_hint
from polymux.capture.tcp.conversations import lane_numbers, lanes_of
from polymux.capture.tcp.file_groups import group_rows
from polymux.capture.tcp.flow_order import FlowOrder, SessionPrescan, SpoolFactory, StoredRefs
from polymux.capture.tcp.reassembly import FINISHED, GAP, PAYLOAD, Reassembler, TcpEvents
from polymux.capture.tcp.repeated_bytes import RepeatedBytes, find_repeated_bytes
from polymux.core.urls import without_credentials

# Bytes of payload in a batch. Flows that are analyzed side by side share the pages of a file: the
# smaller the batches, the more pages are still in the caches for the next flow.
BATCH_BYTES = 256 * 1024
# The events of a scanned session with at most this many are kept for the next that reads them.
MAX_KEPT_EVENTS = 256
_MIN_EPHEMERAL_PORT = 32768
# Copies compared in a session of captures that are not local files: each may take two requests.
MAX_REMOTE_COMPARISONS = 64
KEPT_APART = (
    "other captures have a different connection with these addresses at the same time, and were "
    "kept apart; name their sensors with --sensor-from"
)
TOLD_APART = (
    "another connection has these addresses at the same time in the same capture, and was told "
    "apart by its sequence numbers; give the captures of each host alone, with --sensor-from"
)
_NO_REFS = FlowRefs(b"", 0, "", 0, 0, 0, b"")  # of the other direction, without packets

ReadAt = Callable[[int, int], bytes]


class StreamBatch:
    """Events in the order of capture, as columns, with their payload joined in `data`.

    Row `n` of `count`: `side[n]` is 0 for the dialer, 1 for the acceptor; `kind[n]` is PAYLOAD,
    GAP, FINISHED (a FIN) or ABORTED (a RST); `timestamp[n]` is in nanoseconds since 1970;
    `size[n]` in bytes. `data` has the payload of the PAYLOAD rows, concatenated. `events` has the
    same columns as one compiled object.
    """

    def __init__(self, events: TcpEvents, data: bytes) -> None:
        self.events = events
        self.count: int = events.count
        self.side: vec[i64] = events.side
        self.kind: vec[i64] = events.kind
        self.timestamp: vec[i64] = events.timestamp
        self.size: vec[i64] = events.size
        self.data = data


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """One event: payload, a gap of `size` bytes without `data`, or an end ("fin" or "rst")."""

    side: int
    timestamp: int
    size: int
    data: bytes = b""
    end: str | None = None

    @property
    def is_gap(self) -> bool:
        """Whether bytes are missing here."""
        return self.end is None and not self.data


@dataclass(frozen=True, slots=True)
class Conflict:
    """Bytes of `side` that were captured again with other content; the first copy was taken.

    `position` is that of the first differing byte in the side's stream, `timestamp` that of the
    later packet in nanoseconds.
    """

    side: int
    position: int
    timestamp: int


@mypyc_attr(allow_interpreted_subclasses=True)
class TcpSession:
    """One TCP connection as captured. Times are in nanoseconds since 1970.

    Known from the start: endpoints, times, `captures`, hints, `saw_syn`, `ordered`, `note`,
    `segment_bytes`, `unseen_side`. Known once `batches` or `pieces` was read to its end, or after
    `scan_packets`: `ends`, `reassembled_bytes`, `missing_bytes`, `zero_windows`,
    `retransmissions`, `rtt_ns`. Pairs are (dialer, acceptor).

    Sessions are made by `read_sessions` and `sessions_of`.
    """

    def __init__(
        self,
        flow: bytes,
        order: FlowOrder,
        prescan: SessionPrescan,
        begin: int,
        files: Sequence[str],
        blocks: Sequence[FlowRefs],
        readers: Sequence[ReadAt],
        limits: CaptureLimits,
        ports: frozenset[int],
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self.flow = flow
        """The flow key (`flows`); together with `started_at` it identifies the session."""
        self.sensor = sensor_of_flow(flow)
        """Where it was captured."""
        self.connection_id = _connection_id(flow, int(prescan.dialer_isn))
        """The same for all sessions of one TCP connection, captured at different sensors; None if
        its SYN was not captured."""
        self.started_at: int = prescan.first_at
        self.ended_at: int = prescan.last_at
        self.packets = int(prescan.packets)
        self.captures = [capture_of(files[number]) for number in prescan.files]
        self.saw_syn = prescan.syn_direction >= 0 or prescan.syn_ack_direction >= 0
        self.ordered = not (prescan.interleaved or prescan.disordered)
        """False if the relative order of the two directions is not proven."""
        self._flip, self.note = _find_dialer(flow, prescan, ports)
        self.segment_bytes = (
            int(prescan.segment_bytes[self._flip]),
            int(prescan.segment_bytes[1 - self._flip]),
        )
        """Payload bytes of each side's packets, retransmissions included."""
        captured = [prescan.has_packets(side ^ self._flip) for side in (0, 1)]
        self.unseen_side = captured.index(False) if any(captured) and not all(captured) else None
        """The side of which no packet was captured, 0 or 1; None if both were captured."""
        hinted = prescan.hint_block >= 0
        hint = blocks[prescan.hint_block].hints[prescan.hint_index] if hinted else ""
        self.protocol_hint, self.vantage_hint = read_hint(hint) if hint else (None, None)
        if not self.ordered:
            self.note = _append_note(self.note, "the order of its two directions is not proven")
        self.ends: tuple[str | None, str | None] = (None, None)
        """How each side ended: "fin", "rst", or None if that was not captured. A RST ends both."""
        self.reassembled_bytes = self.missing_bytes = (0, 0)
        self.zero_windows: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans in which each side offered a zero window, or one too small for what followed."""
        self.retransmissions: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans in which each side waited for a retransmission of its bytes."""
        self._repeated: list[tuple[int, int, int, int]] = []
        self._totals_known = False
        self.rtt_ns: int | None = None
        """Round-trip time; None if it could not be measured."""
        self._order = order
        self._packet_range = (begin, begin + self.packets)
        self._blocks = blocks
        self._files = files
        self._readers = readers
        self._read_ahead = read_ahead
        self._prefetched: Iterator[tuple[TcpEvents, bytes]] | None = None
        self._all_events: TcpEvents | None = None  # of a short session, scanned and not read yet
        self._limits = limits

    def __repr__(self) -> str:
        return (
            f"<polymux TCP session of {self.dialer} with {self.acceptor}, {self.packets} packets>"
        )

    @property
    def is_last(self) -> bool:
        """Whether it is the last session of its files, so that later packets may belong to it."""
        return self._packet_range[1] == int(self._order.count)

    @property
    def dialer(self) -> str:
        """Address and port of the side that opened the connection."""
        return endpoint_text(*flow_endpoints(self.flow)[self._flip])

    @property
    def acceptor(self) -> str:
        """Address and port of the side that accepted the connection."""
        return endpoint_text(*flow_endpoints(self.flow)[1 - self._flip])

    def batches(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamBatch]:
        """All events of the session, in batches of about `batch_bytes` of payload.

        A batch may be larger after a hole.

        Raises:
            CaptureError: The payload cannot be read.
        """
        if not self.prefetch(batch_bytes):
            yield from self.unshared_batches(batch_bytes)
            return
        prefetched, self._prefetched = self._prefetched, None
        # starmap keeps no reference to a batch, so that its memory is reused for the next.
        yield from itertools.starmap(StreamBatch, prefetched or ())

    def unshared_batches(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamBatch]:
        """Like `batches`, but without sharing reads with sessions analyzed side by side."""
        for events in self._events(batch_bytes):
            yield StreamBatch(events, read_payload(events, self._readers))

    def prefetch(self, batch_bytes: int = BATCH_BYTES) -> bool:
        """Request the first batch from the shared `ReadAhead`; False if there is none.

        If other sessions read in the same region before `batches` is called, the payload is read
        along with theirs.
        """
        if self._read_ahead is None:
            return False
        if self._prefetched is None:
            events = self._events(batch_bytes, align_to_regions=True)
            self._prefetched = self._read_ahead.start(
                events, self._files, self._readers, read_payload
            )
        return True

    def pieces(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamPiece]:
        """All events one by one, for interactive use and tests; `batches` is faster.

        To get only the first few, pass a small `batch_bytes`: a batch is read as a whole.
        """
        for batch in self.batches(batch_bytes):
            start = 0
            for n in range(batch.count):
                side, kind, size = batch.side[n], batch.kind[n], batch.size[n]
                timestamp = batch.timestamp[n]
                if kind == PAYLOAD:
                    yield StreamPiece(side, timestamp, size, batch.data[start : start + size])
                    start += size
                elif kind == GAP:
                    yield StreamPiece(side, timestamp, size)
                else:
                    end = "fin" if kind == FINISHED else "rst"
                    yield StreamPiece(side, timestamp, 0, end=end)

    def events(self, batch_bytes: int = BATCH_BYTES) -> Iterator[TcpEvents]:
        """All events with the places of their payload in the files, which is not read."""
        return self._events(batch_bytes)

    def scan_packets(self) -> TcpSession:
        """Reassemble without reading payload, so that all attributes are known; returns self.

        Does nothing if they are known already. The events of a short session are kept until they
        are read once; the next time it is reassembled again.
        """
        if self._totals_known:
            return self
        for number, events in enumerate(self._events(0x10000000000)):
            self._all_events = events if number == 0 else None
        if self._all_events is not None and self._all_events.count > MAX_KEPT_EVENTS:
            self._all_events = None
        return self

    def packet_rows(self) -> list[FlowRefs]:
        """Rows with the references of this session's packets only, without duplicates.

        `sessions_of` makes the same session of them.
        """
        packed = self._order.packed_packets(*self._packet_range)
        return [
            self._blocks[number]._replace(
                first_at=_timestamp(refs, 0),
                last_at=_timestamp(refs, len(refs) - REF_BYTES),
                refs=refs,
                stored=None,
                records=0,
            )
            for number, refs in sorted(packed.items())
        ]

    def conflicts(self) -> list[Conflict]:
        """Compare the bytes that packets repeat with the copies captured before.

        One conflict at most for each packet; of a session, the first 4,096 packets that repeat
        bytes are compared. In captures that are not local files, only the first
        `MAX_REMOTE_COMPARISONS` copies are compared. Known once the session was read to its end, or
        after `scan_packets`.

        Raises:
            CaptureError: The payload cannot be read.
        """
        found = []
        remote = 0  # comparisons of copies that are not in local files
        for index, side, position, timestamp in self._repeated:
            differing = []
            for copy in self._copies(index):
                readers = self._readers[copy.file], self._readers[copy.earlier_file]
                if not all(isinstance(reader, FileReader) for reader in readers):
                    if remote == MAX_REMOTE_COMPARISONS:
                        continue
                    remote += 1
                one = readers[0](copy.offset, copy.size)
                other = readers[1](copy.earlier_offset, copy.size)
                if one != other:
                    differing.append(copy.skipped + first_difference(one, other))
            if differing:
                found.append(Conflict(side, position + min(differing), timestamp))
        return found

    def repeated_bytes(self) -> Iterator[tuple[RepeatedBytes, bytes, bytes]]:
        """Bytes that packets repeat: their places, the bytes, and those captured before.

        Of the packets that `conflicts` compares, in the order of capture. Known once the session
        was read to its end, or after `scan_packets`.

        Raises:
            CaptureError: The payload cannot be read.
        """
        for index, _, _, _ in self._repeated:
            for copy in self._copies(index):
                one = self._readers[copy.file](copy.offset, copy.size)
                yield copy, one, self._readers[copy.earlier_file](copy.earlier_offset, copy.size)

    def _copies(self, index: int) -> list[RepeatedBytes]:
        return find_repeated_bytes(self._order, self._packet_range[0], index)

    def _events(self, batch_bytes: int, align_to_regions: bool = False) -> Iterator[TcpEvents]:
        kept = self._take_kept_events()
        if kept is not None and kept.payload_bytes <= batch_bytes:
            yield kept
            return
        limits = self._limits
        reassembler = Reassembler(
            self._order,
            *self._packet_range,
            self._flip,
            self.ordered,
            limits.max_out_of_order_bytes,
            limits.max_out_of_order_segments,
            limits.hole_timeout_ns,
        )
        while not reassembler.closed:
            events = reassembler.run(batch_bytes, align_to_regions)
            if reassembler.closed:
                self._store_totals(reassembler)
            if events.count:
                yield events

    def _take_kept_events(self) -> TcpEvents | None:
        """The events that were kept, which the session holds no longer."""
        kept = self._all_events
        self._all_events = None
        return kept

    def _store_totals(self, reassembler: Reassembler) -> None:
        self._totals_known = True
        dialer, acceptor = reassembler.dialer, reassembler.acceptor
        self.ends = (dialer.end_state(acceptor), acceptor.end_state(dialer))
        self.reassembled_bytes = (dialer.delivered_bytes, acceptor.delivered_bytes)
        self.missing_bytes = (dialer.missing_bytes, acceptor.missing_bytes)
        self.zero_windows = (
            dialer.receive_blocked_spans(acceptor),
            acceptor.receive_blocked_spans(dialer),
        )
        self.retransmissions = (dialer.retransmission_spans, acceptor.retransmission_spans)
        self._repeated = reassembler.repeated
        round_trip = reassembler.round_trip()
        self.rtt_ns = round_trip if round_trip >= 0 else None


def sessions_of(
    rows: Iterable[FlowRefs],
    open_reader: Callable[[str], ReadAt],
    *,
    limits: CaptureLimits | None = None,
    ports: Iterable[int] = (),
    spool: SpoolFactory | None = None,
    read_ahead: ReadAhead | None = None,
) -> list[TcpSession]:
    """The sessions of one flow, from all its rows.

    Args:
        rows: All rows of the flow, in any order. Duplicate rows have no effect.
        open_reader: Called with a path; returns a function that reads `size` bytes at `offset` of
            that file. `FilePool(limits).reader` is one.
        limits: By default `CaptureLimits()`.
        ports: Listening ports, which identify the acceptor if no SYN was captured.
        spool: Opens a temporary file for the packet order of a huge flow; by default it stays in
            memory.
        read_ahead: Shares reads with flows that are analyzed side by side.

    Raises:
        CaptureError: A file cannot be opened.
    """
    rows = list(rows)
    groups = [rows] if _are_of_one_file(rows) else group_rows(rows)
    found: list[tuple[int, TcpSession]] = []
    for number, group in enumerate(groups):
        lanes = _sessions_by_lane(group, open_reader, limits, ports, spool, read_ahead)
        sessions = _by_start(lanes)
        _note_overlapping(sessions, TOLD_APART)
        found += [(number, session) for _, session in sessions]
    if len(groups) > 1:
        found.sort(key=_started_at)
        _note_overlapping(found, KEPT_APART)
    return [session for _, session in found]


def consume_sessions(sessions: list[TcpSession]) -> Iterator[TcpSession]:
    """Yield the sessions in their order and empty the list: each can be freed after its use.

    One pair of endpoints can have a hundred thousand short connections.
    """
    sessions.reverse()
    while sessions:
        yield sessions.pop()


def _started_at(numbered: tuple[int, TcpSession]) -> int:
    return numbered[1].started_at


def _by_start(lanes: list[list[TcpSession]]) -> list[tuple[int, TcpSession]]:
    """The sessions of all lanes by their start, each with the number of its lane."""
    found = [(number, session) for number, lane in enumerate(lanes) for session in lane]
    if len(lanes) > 1:  # otherwise they are in the order of capture
        found.sort(key=_started_at)
    return found


def _note_overlapping(sessions: list[tuple[int, TcpSession]], note: str) -> None:
    """Note it for the sessions that have others at the same time, of another number.

    They are given by their start, each with the number of its group of files, or of its lane.
    """
    apart: set[int] = set()
    latest: dict[int, int] = {}  # of each group, the session that ends last so far
    for n, (group, session) in enumerate(sessions):
        for other, m in latest.items():
            if other != group and sessions[m][1].ended_at >= session.started_at:
                apart |= {n, m}
        m = latest.get(group, n)
        if session.ended_at >= sessions[m][1].ended_at:
            latest[group] = n
    for n in apart:
        session = sessions[n][1]
        session.note = _append_note(session.note, note)


def _are_of_one_file(rows: list[FlowRefs]) -> bool:
    return all(row.file == rows[0].file for row in rows)


class _GroupFiles:
    """The files of one group, as `FlowOrder` takes them; `blocks` are rows without references."""

    def __init__(self, rows: Iterable[FlowRefs]) -> None:
        self.flow = b""
        self.names: list[str] = []
        self.blocks: list[FlowRefs] = []
        self._ranges: list[list[tuple[StoredRefs, StoredRefs]]] = []  # of each file
        self._places: list[tuple[str, int]] = []  # of each file, in a recording
        by_start: dict[tuple[str, int], list[FlowRefs]] = {}
        for row in rows:
            self.flow, direction, file, start = row[:4]
            if (file, start) not in by_start:
                by_start[file, start] = [_NO_REFS, _NO_REFS]
            by_start[file, start][direction] = row
        for file, start in sorted(by_start):
            forward, backward = by_start[file, start]
            if not self.names or file != self.names[-1]:
                self.names.append(file)
                self._ranges.append([])
                first = forward if forward.packets else backward
                self._places.append((first.recording, first.file_number))
            self._ranges[-1].append((_stored(forward), _stored(backward)))
            self.blocks += (forward._replace(refs=b""), backward._replace(refs=b""))

    def arranged(
        self, spool: SpoolFactory | None, lanes: list[bytes] | None = None, lane: int = -1
    ) -> FlowOrder:
        """The packets of all files in order, or of one lane of them."""
        order = FlowOrder(spool, lanes, lane)
        for ranges, (recording, number) in zip(self._ranges, self._places, strict=True):
            order.add_file(ranges, recording, number)
        order.arrange()
        return order


def _sessions_by_lane(
    rows: Iterable[FlowRefs],
    open_reader: Callable[[str], ReadAt],
    limits: CaptureLimits | None,
    ports: Iterable[int],
    spool: SpoolFactory | None,
    read_ahead: ReadAhead | None,
) -> list[list[TcpSession]]:
    """The sessions of files that can hold the same connections, by lane; mostly there is one."""
    files = _GroupFiles(rows)
    order = files.arranged(spool)
    orders = [order]
    if order.mixed:
        lanes = lanes_of(order)
        orders = [files.arranged(spool, lanes, number) for number in lane_numbers(lanes)] or orders
    readers = [open_reader(file) for file in files.names]
    checked = limits or CaptureLimits()
    listening = frozenset(ports)
    lanes_found: list[list[TcpSession]] = []
    for arranged in orders:
        prescans = arranged.take_prescans()
        prescans.reverse()
        lanes_found.append(
            [
                TcpSession(
                    files.flow, arranged, prescans.pop(), begin, files.names, files.blocks,
                    readers, checked, listening, read_ahead,
                )
                for begin in arranged.session_starts
            ]
        )  # fmt: skip
    return lanes_found


def capture_of(file: str) -> str:
    """The capture that the `file` of a row names, as in the tables: a URL without credentials.

    Rows of packets that are kept outside of their capture name it with a mark behind a NUL.
    """
    name = file.partition("\0")[0]
    return without_credentials(name) if is_url(name) else name


def _timestamp(refs: bytes, position: int) -> int:
    """The timestamp of the reference at `position`, in nanoseconds."""
    return int.from_bytes(refs[position + 8 : position + 16], "little", signed=True)


def _stored(row: FlowRefs) -> StoredRefs:
    return row.refs, row.stored, row.packets


def read_payload(events: TcpEvents, readers: Sequence[ReadAt]) -> bytes:
    """Payload of all PAYLOAD rows, in order, with as few system calls as possible."""
    parts: list[bytes] = []
    stop = 0
    while stop < events.count:
        run = ReadRun(events, stop)
        stop = run.stop
        if run.pieces == 0:
            break
        reader = readers[run.file]
        if not isinstance(reader, FileReader):
            parts.append(read_run(events, run, reader))
            continue
        data = reader.gather(events, run) if run.is_sparse() else None
        parts.append(reader.read_run(events, run) if data is None else data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def first_difference(one: bytes, other: bytes) -> int:
    """The index of the first byte in which two texts differ; they do."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _find_dialer(
    flow: bytes, prescan: SessionPrescan, ports: frozenset[int]
) -> tuple[int, str | None]:
    """The direction of the dialer in the flow, and a note if it is a guess."""
    if prescan.syn_direction >= 0:
        return prescan.syn_direction, None
    if prescan.syn_ack_direction >= 0:
        return 1 - prescan.syn_ack_direction, None
    (_, port1), (_, port2) = flow_endpoints(flow)
    note = "its start was not captured; the dialer is a guess: "
    if (port1 in ports) != (port2 in ports):
        return (1 if port1 in ports else 0), note + "the given listening port is the acceptor's"
    if (port1 < _MIN_EPHEMERAL_PORT) != (port2 < _MIN_EPHEMERAL_PORT):
        return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"
    if prescan.first_payload_direction >= 0:
        return prescan.first_payload_direction, note + "the dialer sends first"
    return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"


def _connection_id(flow: bytes, dialer_isn: int) -> str | None:
    """A hash of a connection's endpoints and the dialer's initial sequence number."""
    if dialer_isn < 0:
        return None
    digest = hashlib.blake2b(flow[:FLOW_KEY_BYTES], digest_size=8)
    digest.update(dialer_isn.to_bytes(4, "little"))
    return digest.hexdigest()


def _append_note(note: str | None, more: str) -> str:
    return f"{note}; {more}" if note else more
