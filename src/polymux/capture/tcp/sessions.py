"""TCP sessions out of captures: what the analysis reads, from files or from packed references."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from librt.vecs import vec
from mypy_extensions import i64

from polymux.capture.io.file_pool import FileReader
from polymux.capture.io.read_ahead import ReadAhead
from polymux.capture.io.read_runs import ReadRun, read_run
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.flow_filter import endpoint_text, flow_endpoints
from polymux.capture.packets.indexer import FlowRefs
from polymux.capture.pcapng.comments import read_hint
from polymux.capture.tcp.events import FINISHED, GAP, PAYLOAD, TcpEvents
from polymux.capture.tcp.flow_order import FlowOrder
from polymux.capture.tcp.reassembly import Reassembler
from polymux.capture.tcp.ref_storage import SpoolFactory, StoredRefs
from polymux.capture.tcp.session_prescan import SessionPrescan

# Bytes of payload read at a time. Flows walked in turns share what they look at of a file: the
# less each takes, the less of it has to be brought anew for the next.
BATCH_BYTES = 256 * 1024
_MIN_EPHEMERAL_PORT = 32768
_NO_REFS = FlowRefs(b"", 0, "", 0, 0, 0, b"")

ReadAt = Callable[[int, int], bytes]


class StreamBatch:
    """Events in the order of capture, with their payload joined: made for one call into compiled
    code. Row `n` of the columns, `count` of them, is one event:

    `side[n]` 0 dialer, 1 acceptor; `kind[n]` BYTES, GAP, FINISHED (its FIN) or ABORTED (its
    RST); `at[n]` nanoseconds; `size[n]` bytes. The payload of the BYTES rows lies in `data`,
    one after another. `events` are the same columns as one compiled object.
    """

    __slots__ = ("timestamp", "count", "data", "events", "kind", "side", "size")

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
    """One event: bytes, or a gap of `size` (then `data` is empty), or an end (`end` is set)."""

    side: int
    timestamp: int
    size: int
    data: bytes = b""
    end: str | None = None

    @property
    def is_gap(self) -> bool:
        return self.end is None and not self.data


class TcpSession:
    """One TCP connection as captured. Times are nanoseconds since 1970.

    Known at once: endpoints, times, files, hints, `saw_syn`, `ordered`, `note`, `payload`.
    Known once `batches` or `pieces` was read to its end, or after `survey()`: `ends`, `bytes`,
    `gaps`, `zero_windows`, `retransmissions`, `rtt_ns`.
    """

    def __init__(
        self,
        flow: bytes,
        order: FlowOrder,
        prescan: SessionPrescan,
        begin: int,
        files: Sequence[str],
        hints: Sequence[tuple[str, ...]],
        readers: Sequence[ReadAt],
        limits: CaptureLimits,
        ports: frozenset[int],
        read_ahead: ReadAhead | None = None,
    ) -> None:
        self.flow = flow
        """The 36-byte flow key; with `started_at` it names the session."""
        self.started_at: int = prescan.first_at
        self.ended_at: int = prescan.last_at
        self.packets = int(prescan.packets)
        self.captures = [files[number] for number in prescan.files]
        self.saw_syn = prescan.syn_direction >= 0 or prescan.syn_ack_direction >= 0
        self.ordered = not (order.interleaved or prescan.disordered)
        """False if the order of the two directions against each other is not proven."""
        self._flip, self.note = _find_dialer(flow, prescan, ports)
        self.segment_bytes = (
            int(prescan.segment_bytes[self._flip]),
            int(prescan.segment_bytes[1 - self._flip]),
        )
        """Bytes carried by each side's packets, repeated ones counted again: 0 means silent."""
        heard = [prescan.has_packets(side ^ self._flip) for side in (0, 1)]
        self.unseen_side = heard.index(False) if any(heard) and not all(heard) else None
        """The side of which no packet was captured, 0 or 1: not one that only was silent."""
        hint = hints[prescan.hint_block][prescan.hint_index] if prescan.hint_block >= 0 else ""
        self.protocol_hint, self.vantage_hint = read_hint(hint)
        if not self.ordered:
            self.note = _append_note(self.note, "the order of its two directions is not proven")
        self.ends: tuple[str | None, str | None] = (None, None)
        """How each side was seen to end: "fin", "rst", or None. A RST ends both sides."""
        self.reassembled_bytes = self.missing_bytes = (0, 0)
        self.zero_windows: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans in which each side offered a window of 0, or too small a one for what followed."""
        self.retransmissions: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
        """Spans each side's bytes lost to retransmission."""
        self.rtt_ns: int | None = None
        self._order = order
        self._packet_range = (begin, begin + self.packets)
        self._files = files
        self._readers = readers
        self._read_ahead = read_ahead
        self._prefetched: Iterator[tuple[TcpEvents, bytes]] | None = None
        self._limits = limits

    def __repr__(self) -> str:
        return (
            f"<polymux TCP session of {self.dialer} with {self.acceptor}, {self.packets} packets>"
        )

    @property
    def dialer(self) -> str:
        """Address and port of the side that opened the connection."""
        return endpoint_text(*flow_endpoints(self.flow)[self._flip])

    @property
    def acceptor(self) -> str:
        return endpoint_text(*flow_endpoints(self.flow)[1 - self._flip])

    def batches(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamBatch]:
        """Everything that passed, about `bytes` of payload at a time (more after a hole)."""
        if not self.prefetch(batch_bytes):
            yield from self.unshared_batches(batch_bytes)
            return
        found, self._prefetched = self._prefetched, None
        yield from itertools.starmap(StreamBatch, found or ())  # which keeps none of them

    def unshared_batches(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamBatch]:
        """The same, read for this session only: those who are walked beside it hear nothing."""
        for events in self._events(batch_bytes):
            yield StreamBatch(events, read_payload(events, self._readers))

    def prefetch(self, batch_bytes: int = BATCH_BYTES) -> bool:
        """Say what `batches` will read first to those who are walked beside it; False if nobody is.

        Who then lets the others have a turn may find it read.
        """
        if self._read_ahead is None:
            return False
        if self._prefetched is None:
            found = self._events(batch_bytes, align_to_regions=True)
            self._prefetched = self._read_ahead.start(
                found, self._files, self._readers, read_payload
            )
        return True

    def pieces(self, batch_bytes: int = BATCH_BYTES) -> Iterator[StreamPiece]:
        """The same one by one, for reading by people and tests; `batches` is the fast way.

        Who wants only the first few should ask for small batches of `bytes`.
        """
        for batch in self.batches(batch_bytes):
            start = 0
            for n in range(batch.count):
                side, kind, at, size = (
                    batch.side[n],
                    batch.kind[n],
                    batch.timestamp[n],
                    batch.size[n],
                )
                if kind == PAYLOAD:
                    yield StreamPiece(side, at, size, batch.data[start : start + size])
                    start += size
                elif kind == GAP:
                    yield StreamPiece(side, at, size)
                else:
                    yield StreamPiece(side, at, 0, end="fin" if kind == FINISHED else "rst")

    def scan_packets(self) -> TcpSession:
        """Walk the packets without reading payload, so that everything is known."""
        for _ in self._events(1 << 40):
            pass
        return self

    def _events(self, batch_bytes: int, align_to_regions: bool = False) -> Iterator[TcpEvents]:
        limits = self._limits
        walk = Reassembler(
            self._order,
            *self._packet_range,
            self._flip,
            self.ordered,
            limits.max_out_of_order_bytes,
            limits.max_out_of_order_segments,
            limits.hole_timeout_ns,
        )
        while not walk.closed:
            events = walk.run(batch_bytes, align_to_regions)
            if walk.closed:
                self._store_totals(walk)
            if events.count:
                yield events

    def _store_totals(self, reassembler: Reassembler) -> None:
        dialer, acceptor = reassembler.dialer, reassembler.acceptor
        self.ends = (dialer.end_state(acceptor), acceptor.end_state(dialer))
        self.reassembled_bytes = (dialer.delivered_bytes, acceptor.delivered_bytes)
        self.missing_bytes = (dialer.missing_bytes, acceptor.missing_bytes)
        self.zero_windows = (
            dialer.receive_blocked_spans(acceptor),
            acceptor.receive_blocked_spans(dialer),
        )
        self.retransmissions = (dialer.retransmission_spans, acceptor.retransmission_spans)
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
    """The sessions of one flow, from all its rows in any order.

    `open_reader(path)` gives a function that reads `size` bytes at `offset` of that file;
    `Files(limits).reader` does. Rows given twice change nothing. `spool` opens a file for what a
    huge flow has to set aside; without it that stays in memory. `shared` reads payload together
    with that of the flows that are walked beside this one.
    """
    places: dict[tuple[str, int], list[FlowRefs]] = {}
    flow = b""
    for row in rows:
        flow, direction, file, start = row[:4]
        if (file, start) not in places:
            places[file, start] = [_NO_REFS, _NO_REFS]
        places[file, start][direction] = row
    order = FlowOrder(spool)
    hints: list[tuple[str, ...]] = []
    files: list[str] = []
    ranges: list[tuple[StoredRefs, StoredRefs]] = []
    for place in sorted(places):
        if files and place[0] != files[-1]:
            order.add_file(ranges)
            ranges = []
        if not ranges:
            files.append(place[0])
        forth, back = places[place]
        ranges.append((_stored(forth), _stored(back)))
        hints += (forth.hints, back.hints)
    if ranges:
        order.add_file(ranges)
    order.arrange()
    readers = [open_reader(file) for file in files]
    limits = limits or CaptureLimits()
    listening = frozenset(ports)
    return [
        TcpSession(flow, order, survey, begin, files, hints, readers, limits, listening, read_ahead)
        for begin, survey in zip(order.session_starts, order.prescans, strict=True)
    ]


def _stored(row: FlowRefs) -> StoredRefs:
    return row.refs, row.stored, row.packets


def read_payload(events: TcpEvents, readers: Sequence[ReadAt]) -> bytes:
    """Payload of all BYTES rows, in order, with as few calls as the files allow."""
    found: list[bytes] = []
    stop = 0
    while stop < events.count:
        run = ReadRun(events, stop)
        stop = run.stop
        if run.pieces == 0:
            break
        reader = readers[run.file]
        data = None
        if run.is_sparse() and isinstance(reader, FileReader):
            data = reader.gather(events, run)
        found.append(read_run(events, run, reader) if data is None else data)
    return found[0] if len(found) == 1 else b"".join(found)


def _find_dialer(
    flow: bytes, prescan: SessionPrescan, ports: frozenset[int]
) -> tuple[int, str | None]:
    """The direction of the dialer, and a note if it was only guessed."""
    if prescan.syn_direction >= 0:
        return prescan.syn_direction, None
    if prescan.syn_ack_direction >= 0:
        return 1 - prescan.syn_ack_direction, None
    (_, port1), (_, port2) = flow_endpoints(flow)
    note = "its start was not captured; who dialled is guessed: "
    if (port1 in ports) != (port2 in ports):
        return (1 if port1 in ports else 0), note + "the port named is the acceptor's"
    if (port1 < _MIN_EPHEMERAL_PORT) != (port2 < _MIN_EPHEMERAL_PORT):
        return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"
    if prescan.first_payload_direction >= 0:
        return prescan.first_payload_direction, note + "the dialer spoke first"
    return (1 if port1 < port2 else 0), note + "the lower port is the acceptor's"


def _append_note(note: str | None, more: str) -> str:
    return f"{note}; {more}" if note else more
