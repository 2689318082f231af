"""Sessions of a capture that is still being written: a pipe read once, from front to back.

Nothing is spooled and nothing is read twice. What is held is bounded: a block that is not whole
yet, segments that wait behind a hole (`CaptureLimits.out_of_order` for each direction), and the
state of the flows that were heard of last (`FLOWS`).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from polymux.capture.io.pipes import Pipe
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import FileSummary, combine
from polymux.capture.packets.flow_filter import FlowFilter
from polymux.capture.packets.indexer import (
    FlowRefs,
    Range,
    flow_rows,
    range_at,
    scanner_for,
    summary_of,
)
from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    CAPTURED_MASK,
    FIN,
    RECORD,
    RST,
    SAME_PACKET,
    SYN,
)
from polymux.capture.pcapng.comments import read_hint
from polymux.capture.tcp.events import OCTETS, Events
from polymux.capture.tcp.flow_order import Flow, Recent, SessionCut
from polymux.capture.tcp.reassembly import Reassembler
from polymux.capture.tcp.ref_storage import Blob, Store
from polymux.capture.tcp.session_survey import Survey
from polymux.capture.tcp.sessions import Batch, TcpSession

FLOWS: Final = 16_384  # flows whose state is kept; beyond it the one silent for longest is ended
_WORDS = struct.Struct("<qqqq").unpack_from
_ROWS: Final = 256  # events of a batch


class LiveSession(TcpSession):
    """A session that goes on. `take_batches` gives what has come since the last call."""

    def __init__(
        self,
        flow: bytes,
        survey: Survey,
        path: str,
        hints: tuple[str, ...],
        limits: CaptureLimits,
        ports: Iterable[int],
    ) -> None:
        super().__init__(
            flow, Flow(), survey, 0, [path], [hints], [], limits, frozenset(ports)
        )  # fmt: skip
        self.over = False
        """Both sides have ended, or it was given up: nothing more comes."""
        self._walk = Reassembler(
            self._order, 0, 0, self._flip, True, limits.out_of_order, limits.held_segments,
            limits.hole_wait_ns,
        )  # fmt: skip
        self._out = self._walk.out = Events(_ROWS)
        self._seen = 0  # rows of it whose payload is in `_parts`
        self._parts: list[bytes] = []
        self._batches: list[Batch] = []
        self._offsets: list[int] = []  # where payload lies that waits behind holes, ascending
        self._payloads: list[bytes] = []
        self._waiting = 0  # octets of it
        self._most = 2 * limits.out_of_order
        self._many = 4 * limits.held_segments

    def take_batches(self) -> list[Batch]:
        self._turn(0)
        found, self._batches = self._batches, []
        return found

    def packet(self, refs: bytes, pos: int, direction: int, data: bytes, base: int) -> None:
        """The next packet, by its reference; `data` is the capture from offset `base` on."""
        place, at, _, _ = _WORDS(refs, pos)
        walk = self._walk
        self._turn(int(walk.room()))
        self.ended_at = max(self.ended_at, at)
        side = direction ^ self._flip
        lane, peer = (walk.dialer, walk.acceptor) if side == 0 else (walk.acceptor, walk.dialer)
        walk.packet(refs, pos, lane, peer, 0)
        offset, size = place >> CAPTURED_BITS, place & CAPTURED_MASK
        payload = data[offset - base : offset - base + size]
        if size and lane.head < len(lane.held):
            self._offsets.append(int(offset))
            self._payloads.append(payload)
            self._waiting += size
        self._collect(int(offset), payload)
        if self._waiting and peer.head >= len(peer.held) and lane.head >= len(lane.held):
            self._keep([])
        elif self._waiting > self._most or len(self._offsets) > self._many:
            self._prune()
        ends = walk.dialer.ended(walk.acceptor), walk.acceptor.ended(walk.dialer)
        self.over = "rst" in ends or None not in ends

    def close(self) -> None:
        """Nothing more will come: holes are gaps now."""
        walk = self._walk
        if not walk.closed:
            walk.closed = True
            for lane in (walk.dialer, walk.acceptor):
                self._turn(int(walk.room()))
                walk.close(lane)
                self._collect(0, b"")
            self._learn(walk)
        self.over = True

    def hint(self, text: str) -> None:
        """A comment of ours on one of its packets; the first one counts."""
        if not self.protocol_hint:
            self.protocol_hint, self.vantage_hint = read_hint(text)

    def _collect(self, offset: int, payload: bytes) -> None:
        """Join the payload of the events that the last packet made."""
        out = self._out
        count = int(out.count)
        if count == self._seen:
            return
        kinds, sizes, offsets = out.kind, out.size, out.offset
        for n in range(self._seen, count):
            if kinds[n] == OCTETS:
                start, size = int(offsets[n]), int(sizes[n])
                if offset <= start and start + size <= offset + len(payload):
                    self._parts.append(payload[start - offset : start - offset + size])
                else:
                    self._parts.append(self._held(start, size))
        self._seen = count

    def _held(self, start: int, size: int) -> bytes:
        n = bisect_right(self._offsets, start) - 1
        payload = self._payloads[n]
        begin = start - self._offsets[n]
        assert begin + size <= len(payload), "a segment that is let out is new or was held"
        return payload[begin : begin + size]

    def _prune(self) -> None:
        """Forget payload that nothing waits for any more."""
        walk = self._walk
        wanted = {
            bisect_right(self._offsets, held.offset) - 1
            for lane in (walk.dialer, walk.acceptor)
            for held in lane.held[lane.head :]
        }
        self._keep([(self._offsets[n], self._payloads[n]) for n in sorted(wanted) if n >= 0])

    def _keep(self, kept: list[tuple[int, bytes]]) -> None:
        self._offsets = [offset for offset, _ in kept]
        self._payloads = [payload for _, payload in kept]
        self._waiting = sum(map(len, self._payloads))

    def _turn(self, room: int) -> None:
        """Begin another batch unless this one has room for so many more events, and any at all."""
        out = self._out
        if out.count == 0 and out.rows >= room:
            return
        if room and out.rows - out.count >= room:
            return
        if out.count:
            self._batches.append(Batch(out, b"".join(self._parts)))
        self._out = self._walk.out = Events(max(_ROWS, room))
        self._seen = 0
        self._parts = []


class _LiveFlow:
    """The two endpoints of a connection, and their latest session."""

    def __init__(self) -> None:
        self.cut = SessionCut()
        self.recent = Recent()
        self.place = 0
        self.session: LiveSession | None = None
        self.began = 0  # the instant of its first packet, which may stand before its first payload
        # A SYN that may begin another session: its reference and direction, its payload and offset.
        self.asked: tuple[bytes, int, bytes, int] = (b"", 0, b"", 0)


class LiveCapture:
    """Reads a capture as it is written; iterate it once.

    It gives each session whenever something came for it, and a last time when it is `over`; None
    when nothing came for a while. `summary` says what the capture was like once that is done.
    """

    def __init__(
        self,
        pipe: Pipe,
        *,
        limits: CaptureLimits | None = None,
        wanted: FlowFilter | None = None,
    ) -> None:
        self.summary = FileSummary(pipe.path, None, "whole")
        self._pipe = pipe
        self._limits = limits or CaptureLimits()
        self._wanted = wanted or FlowFilter()
        self._scanner = scanner_for(Range(), self._limits)
        self._flows: OrderedDict[bytes, _LiveFlow] = OrderedDict()

    def __iter__(self) -> Iterator[LiveSession | None]:
        scanner = self._scanner
        held: list[bytes] = []
        octets = base = begun = packets = 0
        parts: list[FileSummary] = []
        while not scanner.broken:
            data = self._pipe.read()
            if data is None:
                yield None
                continue
            if not data:
                break
            held.append(data)
            octets += len(data)
            if octets < scanner.need:
                continue
            window = b"".join(held)
            done = int(scanner.scan(window, base))
            packets += int(scanner.table.tcp_packets())
            yield from self._hand_on(window, base)
            base += done
            octets = len(window) - done
            held = [window[done:]]
            if scanner.table.flows.count > FLOWS:
                # The table of flows only grows, and each window costs as much as it is long.
                parts.append(
                    summary_of(self._pipe, scanner, Range(begun), base, b"", None, packets)
                )
                scanner = self._scanner = scanner_for(range_at(scanner, base, -1), self._limits)
                begun, packets = base, 0
        left = b"".join(held)
        parts.append(summary_of(self._pipe, scanner, Range(begun), base, left, None, packets))
        self.summary = combine(parts)
        for flow in self._flows.values():
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                yield flow.session

    def _hand_on(self, window: bytes, base: int) -> Iterator[LiveSession]:
        """The packets of one window to their sessions."""
        touched: dict[LiveSession, None] = {}
        lanes: dict[bytes, list[FlowRefs]] = {}
        for row in flow_rows(self._pipe.path, base, self._scanner, self._wanted):
            lanes.setdefault(row.flow, []).append(row)
        for key, rows in lanes.items():
            flow = self._flows.setdefault(key, _LiveFlow())
            self._flows.move_to_end(key)
            records = sorted(
                (_WORDS(row.refs, pos)[0], row.direction, row.refs, pos)
                for row in rows
                for pos in range(0, len(row.refs), RECORD)
            )
            for _, direction, refs, pos in records:
                self._packet(key, flow, refs[pos : pos + RECORD], direction, window, base, touched)
        while len(self._flows) > FLOWS:
            oldest = self._flows.popitem(last=False)[1].session
            if oldest is not None and not oldest.over:
                oldest.close()
                touched[oldest] = None
        yield from touched

    def _packet(
        self,
        key: bytes,
        flow: _LiveFlow,
        refs: bytes,
        direction: int,
        window: bytes,
        base: int,
        touched: dict[LiveSession, None],
    ) -> None:
        place, at, both, header = _WORDS(refs, 0)
        captured = place & CAPTURED_MASK
        if flow.recent.seen(at, captured * 2 + direction, both, header & SAME_PACKET):
            return
        flags, size = (header >> 16) & 255, captured + (header >> 32)
        starts = int(flow.cut.starts_at(both, flags, size, direction, flow.place))
        if starts >= 0:
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                touched[flow.session] = None
            flow.session = None
            flow.began = at
            if starts < flow.place:  # with a SYN that is proven only now
                asked, towards, payload, offset = flow.asked
                flow.began = _WORDS(asked, 0)[1]
                flow.session = self._begin(key, asked, towards, flow.began)
                flow.session.packet(asked, 0, towards, payload, offset)
        elif flow.cut.asked >= 0 and flow.cut.asked_at == flow.place:
            offset = place >> CAPTURED_BITS
            payload = window[offset - base : offset - base + captured]
            flow.asked = refs, direction, payload, offset
        flow.place += 1
        # Where the beginning was not captured, nothing is known before the first payload.
        if flow.session is None and (flags & SYN or (size and not flags & (FIN | RST))):
            flow.session = self._begin(key, refs, direction, flow.began)
        session = flow.session
        if session is None or session.over:
            return
        number = (header >> 24) & 255
        if number:
            session.hint(self._scanner.hints[number])
        session.packet(refs, 0, direction, window, base)
        if session.over:
            session.close()
        touched[session] = None

    def _begin(self, key: bytes, refs: bytes, direction: int, began: int) -> LiveSession:
        place, at, both, header = _WORDS(refs, 0)
        survey = Survey()
        blob = Blob((refs, None, 1), direction, 0, 0, Store())
        survey.take(blob, (place & CAPTURED_MASK) + (header >> 32), both, header, at)
        survey.first_at = began
        hints = tuple(self._scanner.hints)
        return LiveSession(key, survey, self._pipe.path, hints, self._limits, self._wanted.ports)
