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

from polymux.capture.io.pipes import CapturePipe
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import WHOLE, FileSummary, merge_summaries
from polymux.capture.packets.flow_filter import FlowFilter
from polymux.capture.packets.indexer import (
    FileRange,
    FlowRefs,
    flow_rows,
    range_at,
    scanner_for,
    summary_of,
)
from polymux.capture.packets.packet_refs import (
    CAPTURED_BITS,
    CAPTURED_MASK,
    FIN,
    REF_BYTES,
    RST,
    SAME_PACKET_MASK,
    SYN,
)
from polymux.capture.pcapng.comments import read_hint
from polymux.capture.tcp.events import PAYLOAD, TcpEvents
from polymux.capture.tcp.flow_order import ConnectionSplitter, DuplicateFilter, FlowOrder
from polymux.capture.tcp.reassembly import Reassembler
from polymux.capture.tcp.ref_storage import RefBlock, RefWindowCache
from polymux.capture.tcp.session_prescan import SessionPrescan
from polymux.capture.tcp.sessions import StreamBatch, TcpSession

MAX_TRACKED_FLOWS: Final = (
    16_384  # flows whose state is kept; beyond it the one silent for longest is ended
)
_unpack_ref = struct.Struct("<qqqq").unpack_from
_EVENTS_PER_BATCH: Final = 256  # events of a batch


class LiveSession(TcpSession):
    """A session that goes on. `take_batches` gives what has come since the last call."""

    def __init__(
        self,
        flow: bytes,
        prescan: SessionPrescan,
        path: str,
        hints: tuple[str, ...],
        limits: CaptureLimits,
        ports: Iterable[int],
    ) -> None:
        super().__init__(
            flow, FlowOrder(), prescan, 0, [path], [hints], [], limits, frozenset(ports)
        )  # fmt: skip
        self.over = False
        """Both sides have ended, or it was given up: nothing more comes."""
        self._reassembler = Reassembler(
            self._order,
            0,
            0,
            self._flip,
            True,
            limits.max_out_of_order_bytes,
            limits.max_out_of_order_segments,
            limits.hole_timeout_ns,
        )
        self._out = self._reassembler.out = TcpEvents(_EVENTS_PER_BATCH)
        self._joined_rows = 0  # rows of it whose payload is in `_parts`
        self._parts: list[bytes] = []
        self._batches: list[StreamBatch] = []
        self._buffered_offsets: list[
            int
        ] = []  # where payload lies that waits behind holes, ascending
        self._buffered_payloads: list[bytes] = []
        self._buffered_bytes = 0  # bytes of it
        self._max_buffered_bytes = 2 * limits.max_out_of_order_bytes
        self._max_buffered_segments = 4 * limits.max_out_of_order_segments

    def take_batches(self) -> list[StreamBatch]:
        self._start_batch(0)
        found, self._batches = self._batches, []
        return found

    def add_packet(self, refs: bytes, pos: int, direction: int, data: bytes, base: int) -> None:
        """The next packet, by its reference; `data` is the capture from offset `base` on."""
        place, at, _, _ = _unpack_ref(refs, pos)
        walk = self._reassembler
        self._start_batch(int(walk.max_rows_per_packet()))
        self.ended_at = max(self.ended_at, at)
        side = direction ^ self._flip
        lane, peer = (walk.dialer, walk.acceptor) if side == 0 else (walk.acceptor, walk.dialer)
        walk.packet(refs, pos, lane, peer, 0)
        offset, size = place >> CAPTURED_BITS, place & CAPTURED_MASK
        payload = data[offset - base : offset - base + size]
        if size and lane.buffer_head < len(lane.buffered):
            self._buffered_offsets.append(int(offset))
            self._buffered_payloads.append(payload)
            self._buffered_bytes += size
        self._join_payload(int(offset), payload)
        if (
            self._buffered_bytes
            and peer.buffer_head >= len(peer.buffered)
            and lane.buffer_head >= len(lane.buffered)
        ):
            self._set_buffered([])
        elif (
            self._buffered_bytes > self._max_buffered_bytes
            or len(self._buffered_offsets) > self._max_buffered_segments
        ):
            self._drop_unneeded()
        ends = walk.dialer.end_state(walk.acceptor), walk.acceptor.end_state(walk.dialer)
        self.over = "rst" in ends or None not in ends

    def close(self) -> None:
        """Nothing more will come: holes are gaps now."""
        walk = self._reassembler
        if not walk.closed:
            walk.closed = True
            for lane in (walk.dialer, walk.acceptor):
                self._start_batch(int(walk.max_rows_per_packet()))
                walk.close_direction(lane)
                self._join_payload(0, b"")
            self._store_totals(walk)
        self.over = True

    def set_hint(self, text: str) -> None:
        """A comment of ours on one of its packets; the first one counts."""
        if not self.protocol_hint:
            self.protocol_hint, self.vantage_hint = read_hint(text)

    def _join_payload(self, offset: int, payload: bytes) -> None:
        """Join the payload of the events that the last packet made."""
        out = self._out
        count = int(out.count)
        if count == self._joined_rows:
            return
        kinds, sizes, offsets = out.kind, out.size, out.offset
        for n in range(self._joined_rows, count):
            if kinds[n] == PAYLOAD:
                start, size = int(offsets[n]), int(sizes[n])
                if offset <= start and start + size <= offset + len(payload):
                    self._parts.append(payload[start - offset : start - offset + size])
                else:
                    self._parts.append(self._buffered_payload(start, size))
        self._joined_rows = count

    def _buffered_payload(self, start: int, size: int) -> bytes:
        n = bisect_right(self._buffered_offsets, start) - 1
        payload = self._buffered_payloads[n]
        begin = start - self._buffered_offsets[n]
        assert begin + size <= len(payload), "a segment that is let out is new or was held"
        return payload[begin : begin + size]

    def _drop_unneeded(self) -> None:
        """Forget payload that nothing waits for any more."""
        walk = self._reassembler
        wanted = {
            bisect_right(self._buffered_offsets, held.offset) - 1
            for lane in (walk.dialer, walk.acceptor)
            for held in lane.buffered[lane.buffer_head :]
        }
        self._set_buffered(
            [
                (self._buffered_offsets[n], self._buffered_payloads[n])
                for n in sorted(wanted)
                if n >= 0
            ]
        )

    def _set_buffered(self, kept: list[tuple[int, bytes]]) -> None:
        self._buffered_offsets = [offset for offset, _ in kept]
        self._buffered_payloads = [payload for _, payload in kept]
        self._buffered_bytes = sum(map(len, self._buffered_payloads))

    def _start_batch(self, rows_needed: int) -> None:
        """Begin another batch unless this one has room for so many more events, and any at all."""
        out = self._out
        if out.count == 0 and out.capacity >= rows_needed:
            return
        if rows_needed and out.capacity - out.count >= rows_needed:
            return
        if out.count:
            self._batches.append(StreamBatch(out, b"".join(self._parts)))
        self._out = self._reassembler.out = TcpEvents(max(_EVENTS_PER_BATCH, rows_needed))
        self._joined_rows = 0
        self._parts = []


class _LiveFlow:
    """The two endpoints of a connection, and their latest session."""

    def __init__(self) -> None:
        self.splitter = ConnectionSplitter()
        self.duplicates = DuplicateFilter()
        self.packet_index = 0
        self.session: LiveSession | None = None
        self.started_at = (
            0  # the instant of its first packet, which may stand before its first payload
        )
        # A SYN that may begin another session: its reference and direction, its payload and offset.
        self.pending_syn: tuple[bytes, int, bytes, int] = (b"", 0, b"", 0)


class LiveCapture:
    """Reads a capture as it is written; iterate it once.

    It gives each session whenever something came for it, and a last time when it is `over`; None
    when nothing came for a while. `summary` says what the capture was like once that is done.
    """

    def __init__(
        self,
        pipe: CapturePipe,
        *,
        limits: CaptureLimits | None = None,
        wanted: FlowFilter | None = None,
    ) -> None:
        self.summary = FileSummary(pipe.path, None, WHOLE)
        self._pipe = pipe
        self._limits = limits or CaptureLimits()
        self._wanted = wanted or FlowFilter()
        self._scanner = scanner_for(FileRange(), self._limits)
        self._flows: OrderedDict[bytes, _LiveFlow] = OrderedDict()

    def __iter__(self) -> Iterator[LiveSession | None]:
        scanner = self._scanner
        held: list[bytes] = []
        size = base = begun = packets = 0
        parts: list[FileSummary] = []
        while not scanner.aborted:
            data = self._pipe.read()
            if data is None:
                yield None
                continue
            if not data:
                break
            held.append(data)
            size += len(data)
            if size < scanner.bytes_needed:
                continue
            window = b"".join(held)
            done = int(scanner.scan(window, base))
            packets += int(scanner.table.tcp_packets())
            yield from self._dispatch_window(window, base)
            base += done
            size = len(window) - done
            held = [window[done:]]
            if scanner.table.flows.count > MAX_TRACKED_FLOWS:
                # The table of flows only grows, and each window costs as much as it is long.
                parts.append(
                    summary_of(self._pipe, scanner, FileRange(begun), base, b"", None, packets)
                )
                scanner = self._scanner = scanner_for(range_at(scanner, base, -1), self._limits)
                begun, packets = base, 0
        left = b"".join(held)
        parts.append(summary_of(self._pipe, scanner, FileRange(begun), base, left, None, packets))
        self.summary = merge_summaries(parts)
        for flow in self._flows.values():
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                yield flow.session

    def _dispatch_window(self, window: bytes, base: int) -> Iterator[LiveSession]:
        """The packets of one window to their sessions."""
        touched: dict[LiveSession, None] = {}
        lanes: dict[bytes, list[FlowRefs]] = {}
        for row in flow_rows(self._pipe.path, base, self._scanner, self._wanted):
            lanes.setdefault(row.flow, []).append(row)
        for key, rows in lanes.items():
            flow = self._flows.setdefault(key, _LiveFlow())
            self._flows.move_to_end(key)
            records = sorted(
                (_unpack_ref(row.refs, pos)[0], row.direction, row.refs, pos)
                for row in rows
                for pos in range(0, len(row.refs), REF_BYTES)
            )
            for _, direction, refs, pos in records:
                self._dispatch_packet(
                    key, flow, refs[pos : pos + REF_BYTES], direction, window, base, touched
                )
        while len(self._flows) > MAX_TRACKED_FLOWS:
            oldest = self._flows.popitem(last=False)[1].session
            if oldest is not None and not oldest.over:
                oldest.close()
                touched[oldest] = None
        yield from touched

    def _dispatch_packet(
        self,
        key: bytes,
        flow: _LiveFlow,
        refs: bytes,
        direction: int,
        window: bytes,
        base: int,
        updated: dict[LiveSession, None],
    ) -> None:
        place, at, both, header = _unpack_ref(refs, 0)
        captured = place & CAPTURED_MASK
        if flow.duplicates.is_duplicate(
            at, captured * 2 + direction, both, header & SAME_PACKET_MASK
        ):
            return
        flags, size = (header >> 16) & 255, captured + (header >> 32)
        starts = int(flow.splitter.session_start(both, flags, size, direction, flow.packet_index))
        if starts >= 0:
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                updated[flow.session] = None
            flow.session = None
            flow.started_at = at
            if starts < flow.packet_index:  # with a SYN that is proven only now
                asked, towards, payload, offset = flow.pending_syn
                flow.started_at = _unpack_ref(asked, 0)[1]
                flow.session = self._start_session(key, asked, towards, flow.started_at)
                flow.session.add_packet(asked, 0, towards, payload, offset)
        elif flow.splitter.pending_isn >= 0 and flow.splitter.pending_index == flow.packet_index:
            offset = place >> CAPTURED_BITS
            payload = window[offset - base : offset - base + captured]
            flow.pending_syn = refs, direction, payload, offset
        flow.packet_index += 1
        # Where the beginning was not captured, nothing is known before the first payload.
        if flow.session is None and (flags & SYN or (size and not flags & (FIN | RST))):
            flow.session = self._start_session(key, refs, direction, flow.started_at)
        session = flow.session
        if session is None or session.over:
            return
        number = (header >> 24) & 255
        if number:
            session.set_hint(self._scanner.hints[number])
        session.add_packet(refs, 0, direction, window, base)
        if session.over:
            session.close()
        updated[session] = None

    def _start_session(
        self, key: bytes, refs: bytes, direction: int, started_at: int
    ) -> LiveSession:
        place, at, both, header = _unpack_ref(refs, 0)
        survey = SessionPrescan()
        blob = RefBlock((refs, None, 1), direction, 0, 0, RefWindowCache())
        survey.add_packet(blob, (place & CAPTURED_MASK) + (header >> 32), both, header, at)
        survey.first_at = started_at
        hints = tuple(self._scanner.hints)
        return LiveSession(key, survey, self._pipe.path, hints, self._limits, self._wanted.ports)
