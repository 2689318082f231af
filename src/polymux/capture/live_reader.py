"""Sessions of a capture that is still being written: a pipe, read once from front to back.

Nothing is spooled and nothing is read twice. Memory is bounded: an incomplete block, segments
buffered behind a hole (`CaptureLimits.max_out_of_order_bytes` for each direction), and the state
of the `MAX_TRACKED_FLOWS` most recently active flows.
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
from polymux.capture.packets.flows import FlowFilter
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
from polymux.capture.tcp.flow_order import (
    ConnectionSplitter,
    DuplicateFilter,
    FlowOrder,
    RefBlock,
    RefWindowCache,
    SessionPrescan,
)
from polymux.capture.tcp.reassembly import PAYLOAD, Reassembler, TcpEvents
from polymux.capture.tcp.sessions import StreamBatch, TcpSession

# Flows whose state is kept; beyond that, the one that was silent for longest is closed.
MAX_TRACKED_FLOWS: Final = 16_384
_unpack_ref = struct.Struct("<qqqq").unpack_from
_EVENTS_PER_BATCH: Final = 256
STILL_CLOSED: Final = 1 << 62  # end of a span that has not ended; later than any timestamp


class LiveSession(TcpSession):
    """A session that is still being captured.

    Its events come from `take_batches`, not from `batches` or `pieces`.
    """

    def __init__(
        self,
        flow: bytes,
        prescan: SessionPrescan,
        path: str,
        hints: tuple[str, ...],
        limits: CaptureLimits,
        ports: Iterable[int],
    ) -> None:
        block = FlowRefs(flow, 0, path, 0, 0, 0, b"", hints)
        super().__init__(
            flow, FlowOrder(), prescan, 0, [path], [block], [], limits, frozenset(ports)
        )
        self.over = False
        """Both sides have ended, or the session was closed: no more events follow."""
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
        self._joined_rows = 0  # rows of `_out` whose payload is in `_parts`
        self._parts: list[bytes] = []
        self._batches: list[StreamBatch] = []
        # Payload that the reassembler buffers behind holes, by ascending offset.
        self._buffered_offsets: list[int] = []
        self._buffered_payloads: list[bytes] = []
        self._buffered_bytes = 0
        self._max_buffered_bytes = 2 * limits.max_out_of_order_bytes
        self._max_buffered_segments = 4 * limits.max_out_of_order_segments

    def take_batches(self) -> list[StreamBatch]:
        """Remove and return the batches of events since the last call."""
        self._start_batch(0)
        batches, self._batches = self._batches, []
        return batches

    def add_packet(self, refs: bytes, pos: int, direction: int, data: bytes, base: int) -> None:
        """Reassemble the next packet, given by its reference at `refs[pos]`.

        `data` has the bytes of the capture from offset `base` on.
        """
        location, timestamp, _, _ = _unpack_ref(refs, pos)
        reassembler = self._reassembler
        self._start_batch(int(reassembler.max_rows_per_packet()))
        self.ended_at = max(self.ended_at, timestamp)
        own, peer = reassembler.dialer, reassembler.acceptor
        if direction ^ self._flip:
            own, peer = peer, own
        reassembler.packet(refs, pos, own, peer, 0)
        offset, size = location >> CAPTURED_BITS, location & CAPTURED_MASK
        payload = data[offset - base : offset - base + size]
        if size and own.buffer_head < len(own.buffered):
            self._buffered_offsets.append(int(offset))
            self._buffered_payloads.append(payload)
            self._buffered_bytes += size
        self._join_payload(int(offset), payload)
        if (
            self._buffered_bytes
            and peer.buffer_head >= len(peer.buffered)
            and own.buffer_head >= len(own.buffered)
        ):
            self._set_buffered([])
        elif (
            self._buffered_bytes > self._max_buffered_bytes
            or len(self._buffered_offsets) > self._max_buffered_segments
        ):
            self._drop_unneeded()
        dialer, acceptor = reassembler.dialer, reassembler.acceptor
        ends = dialer.end_state(acceptor), acceptor.end_state(dialer)
        self.over = "rst" in ends or None not in ends

    def close(self) -> None:
        """No more packets follow: holes become gaps."""
        reassembler = self._reassembler
        if not reassembler.closed:
            reassembler.closed = True
            for direction in (reassembler.dialer, reassembler.acceptor):
                self._start_batch(int(reassembler.max_rows_per_packet()))
                reassembler.close_direction(direction)
                self._join_payload(0, b"")
            self._store_totals(reassembler)
        self.over = True

    def update_tcp_facts(self) -> None:
        """Set `rtt_ns`, `zero_windows` and `retransmissions` to what the packets so far show.

        A window that is still closed counts as closed without end.
        """
        reassembler = self._reassembler
        dialer, acceptor = reassembler.dialer, reassembler.acceptor
        spans = [dialer.receive_blocked_spans(acceptor), acceptor.receive_blocked_spans(dialer)]
        for side, direction in enumerate((dialer, acceptor)):
            if direction.zero_window_since >= 0:
                spans[side].append((int(direction.zero_window_since), STILL_CLOSED))
        self.zero_windows = (spans[0], spans[1])
        self.retransmissions = (dialer.retransmission_spans, acceptor.retransmission_spans)
        round_trip = int(reassembler.round_trip())
        self.rtt_ns = round_trip if round_trip >= 0 else None

    def set_hint(self, text: str) -> None:
        """Use the hint of one of its packets, unless an earlier packet had one."""
        if not self.protocol_hint:
            self.protocol_hint, self.vantage_hint = read_hint(text)

    def _join_payload(self, offset: int, payload: bytes) -> None:
        """Append the payload of the events of the last packet, whose own payload is at `offset`."""
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
        assert begin + size <= len(payload), "an emitted segment is new or was buffered"
        return payload[begin : begin + size]

    def _drop_unneeded(self) -> None:
        """Drop buffered payload that the reassembler no longer refers to."""
        reassembler = self._reassembler
        needed = {
            bisect_right(self._buffered_offsets, segment.offset) - 1
            for direction in (reassembler.dialer, reassembler.acceptor)
            for segment in direction.buffered[direction.buffer_head :]
        }
        self._set_buffered(
            [
                (self._buffered_offsets[n], self._buffered_payloads[n])
                for n in sorted(needed)
                if n >= 0
            ]
        )

    def _set_buffered(self, kept: list[tuple[int, bytes]]) -> None:
        self._buffered_offsets = [offset for offset, _ in kept]
        self._buffered_payloads = [payload for _, payload in kept]
        self._buffered_bytes = sum(map(len, self._buffered_payloads))

    def _start_batch(self, rows_needed: int) -> None:
        """Start a new batch unless this one has room for `rows_needed` more events.

        With 0, start one unless this one is empty.
        """
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
    """The flow between two endpoints, and its latest session."""

    def __init__(self) -> None:
        self.splitter = ConnectionSplitter()
        self.duplicates = DuplicateFilter()
        self.packet_index = 0
        self.session: LiveSession | None = None
        # Timestamp of its first packet, which may come before the first payload.
        self.started_at = 0
        # A SYN that may start another session: its reference, direction, payload and offset.
        self.pending_syn: tuple[bytes, int, bytes, int] = (b"", 0, b"", 0)


class LiveCapture:
    """Reads a capture while it is being written; iterate over it once.

    It yields a session whenever packets of it have arrived, the last time when it is `over`, and
    None when no data arrived for a while. `summary` is valid after the iteration.

    Args:
        pipe: The capture.
        limits: By default `CaptureLimits()`.
        wanted: The flows to read; by default all.
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
        self._secrets: list[bytes] = []
        self._flows: OrderedDict[bytes, _LiveFlow] = OrderedDict()

    def __iter__(self) -> Iterator[LiveSession | None]:
        scanner = self._scanner
        unread: list[bytes] = []
        size = base = range_start = packets = 0
        parts: list[FileSummary] = []
        while not scanner.aborted:
            data = self._pipe.read()
            if data is None:
                yield None
                continue
            if not data:
                break
            unread.append(data)
            size += len(data)
            if size < scanner.bytes_needed:
                continue
            window = b"".join(unread)
            done = int(scanner.scan(window, base))
            packets += int(scanner.table.tcp_packets())
            self._secrets += scanner.secrets
            scanner.secrets = []
            yield from self._dispatch_window(window, base)
            base += done
            size = len(window) - done
            unread = [window[done:]]
            if scanner.table.flows.count > MAX_TRACKED_FLOWS:
                # The flow table never shrinks, and every window costs time in proportion to it:
                # start a new scanner, as for another range of the file.
                parts.append(
                    summary_of(
                        self._pipe, scanner, FileRange(range_start), base, b"", None, packets
                    )
                )
                scanner = self._scanner = scanner_for(range_at(scanner, base, -1), self._limits)
                range_start, packets = base, 0
        left = b"".join(unread)
        parts.append(
            summary_of(self._pipe, scanner, FileRange(range_start), base, left, None, packets)
        )
        self.summary = merge_summaries(parts)
        for flow in self._flows.values():
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                yield flow.session

    def take_secrets(self) -> list[bytes]:
        """Remove and return the TLS key logs of secrets blocks since the last call."""
        secrets, self._secrets = self._secrets, []
        return secrets

    def _dispatch_window(self, window: bytes, base: int) -> Iterator[LiveSession]:
        """Hand the packets of one window to their sessions; yields the sessions that got any."""
        updated: dict[LiveSession, None] = {}
        flow_rows_by_key: dict[bytes, list[FlowRefs]] = {}
        for row in flow_rows(self._pipe.path, base, self._scanner, self._wanted):
            flow_rows_by_key.setdefault(row.flow, []).append(row)
        for key, rows in flow_rows_by_key.items():
            flow = self._flows.setdefault(key, _LiveFlow())
            self._flows.move_to_end(key)
            records = sorted(
                (_unpack_ref(row.refs, pos)[0], row.direction, row.refs, pos)
                for row in rows
                for pos in range(0, len(row.refs), REF_BYTES)
            )
            for _, direction, refs, pos in records:
                self._dispatch_packet(
                    key, flow, refs[pos : pos + REF_BYTES], direction, window, base, updated
                )
        while len(self._flows) > MAX_TRACKED_FLOWS:
            oldest = self._flows.popitem(last=False)[1].session
            if oldest is not None and not oldest.over:
                oldest.close()
                updated[oldest] = None
        yield from updated

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
        """Hand one packet to the session of its flow, starting and closing sessions.

        Does for a packet what `FlowOrder.arrange` does for all packets of a flow.
        """
        location, timestamp, seq_ack, header = _unpack_ref(refs, 0)
        captured = location & CAPTURED_MASK
        if flow.duplicates.is_duplicate(
            timestamp, captured * 2 + direction, seq_ack, header & SAME_PACKET_MASK
        ):
            return
        flags, size = (header >> 16) & 255, captured + (header >> 32)
        index = flow.packet_index
        start = int(flow.splitter.session_start(seq_ack, flags, size, direction, index))
        if start >= 0:
            if flow.session is not None and not flow.session.over:
                flow.session.close()
                updated[flow.session] = None
            flow.session = None
            flow.started_at = timestamp
            if start < index:  # with an earlier SYN, which this packet confirms
                syn, syn_direction, payload, offset = flow.pending_syn
                flow.started_at = _unpack_ref(syn, 0)[1]
                flow.session = self._start_session(key, syn, syn_direction, flow.started_at)
                flow.session.add_packet(syn, 0, syn_direction, payload, offset)
        elif flow.splitter.pending_isn >= 0 and flow.splitter.pending_index == index:
            offset = location >> CAPTURED_BITS
            payload = window[offset - base : offset - base + captured]
            flow.pending_syn = refs, direction, payload, offset
        flow.packet_index += 1
        # If the start was not captured, a session starts with the first payload.
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
        location, timestamp, seq_ack, header = _unpack_ref(refs, 0)
        prescan = SessionPrescan()
        block = RefBlock((refs, None, 1), direction, 0, 0, RefWindowCache())
        size = (location & CAPTURED_MASK) + (header >> 32)
        prescan.add_packet(block, size, seq_ack, header, timestamp)
        prescan.first_at = started_at
        hints = tuple(self._scanner.hints)
        return LiveSession(key, prescan, self._pipe.path, hints, self._limits, self._wanted.ports)
