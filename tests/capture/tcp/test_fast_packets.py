"""The fast path for packets in order gives the same result as the slow path."""

from __future__ import annotations

import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.capture.capture_builder import MS, START
from tests.capture.conftest import in_memory

from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.packet_refs import ACK, FIN, LOW32, REF_BYTES, RST, SYN
from polymux.capture.tcp.flow_order import FlowOrder
from polymux.capture.tcp.reassembly import Reassembler, TcpDirection, TcpEvents

LIMITS = CaptureLimits()
FACTS = (
    "started", "base_seq", "next_position", "lost_until", "highest_ack", "ack_beyond_captured",
    "buffer_head", "buffered_bytes", "has_hole", "hole_since", "fin_position", "finished",
    "aborted", "sent_rst", "delivered_bytes", "missing_bytes", "bytes_after_fin", "progress_at",
    "rtt_probe_end", "rtt_probe_at", "min_ack_delay", "zero_window_since", "zero_window_spans",
    "retransmission_spans",
)  # fmt: skip


@st.composite
def packets(draw: st.DrawFn) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """(side, at, step, ack, flags, window, captured, missing): mostly in order, often not."""
    few = st.sampled_from
    return draw(
        st.lists(
            st.tuples(
                few([0, 0, 0, 1]),
                few([0, MS, MS, 5 * MS, 4000 * MS, -MS]),
                few([0, 0, 0, 0, 0, -1, 1, 10, -10, 1000]),
                few([0, 0, 0, 1, 10, -10, -1000, 500]),
                few([ACK, ACK, ACK, ACK, 0, SYN, SYN | ACK, FIN | ACK, RST, RST | ACK]),
                few([500, 500, 500, 0]),
                few([0, 1, 10, 10, 10, 100]),
                few([0, 0, 0, 0, 5]),
            ),
            max_size=40,
        )
    )


def references(
    made: list[tuple[int, int, int, int, int, int, int, int]], start: int
) -> tuple[bytes, bytes]:
    """Packets as references: `step` and `ack` are relative to the positions of the sides."""
    refs = [b"", b""]
    reached = [start, start ^ 0x80000000]
    at, offset = START, 100
    for side, later, step, ack, flags, window, captured, missing in made:
        at += later
        offset += 200
        seq = (reached[side] + step) & LOW32
        acked = (reached[1 - side] + ack) & LOW32
        word = missing << 32 | flags << 16 | window
        refs[side] += struct.pack("<4q", offset << 20 | captured, at, _signed(seq, acked), word)
        size = captured + missing + (1 if flags & (SYN | FIN) else 0)
        reached[side] = max(reached[side], reached[side] + step + size)
    return refs[0], refs[1]


def _signed(seq: int, ack: int) -> int:
    both = seq << 32 | ack
    return both - (1 << 64) if both >> 63 else both


def reassembler(forth: bytes, back: bytes, ordered: bool) -> Reassembler:
    flow = FlowOrder()
    flow.add_file([(in_memory(forth), in_memory(back))])
    flow.arrange()
    return Reassembler(
        flow,
        0,
        flow.count,
        0,
        ordered,
        LIMITS.max_out_of_order_bytes,
        LIMITS.max_out_of_order_segments,
        LIMITS.hole_timeout_ns,
    )


def rows(events: TcpEvents) -> list[tuple[int, ...]]:
    columns = (events.side, events.kind, events.timestamp, events.size, events.file, events.offset)
    return [tuple(int(column[n]) for column in columns) for n in range(events.count)]


def facts(walk: Reassembler) -> list[object]:
    lanes: list[TcpDirection] = [walk.dialer, walk.acceptor]
    return [walk.handshake_ns, *(getattr(lane, name) for lane in lanes for name in FACTS)]


def by_the_fast_path(walk: Reassembler) -> list[tuple[int, ...]]:
    found = []
    while not walk.closed:
        found += rows(walk.run(7))
    return found


def by_the_slow_path(walk: Reassembler) -> list[tuple[int, ...]]:
    walk.out = TcpEvents(20_000)
    flow = walk.flow
    for place in range(flow.count):
        blob = flow.ref_blocks[flow.order[place] >> 32]
        lanes = (walk.dialer, walk.acceptor)
        pos = (flow.order[place] & LOW32) * REF_BYTES
        walk.packet(blob.refs, pos, lanes[blob.direction], lanes[1 - blob.direction], blob.file)
    walk.close_direction(walk.dialer)
    walk.close_direction(walk.acceptor)
    return rows(walk.out)


@settings(max_examples=300, deadline=None)
@given(packets(), st.sampled_from([1000, 0xFFFFFFF0, 0x7FFFFFF8]), st.booleans())
@example([(0, 0, 0, 0, ACK, 500, 10, 0)] * 5, 0xFFFFFFF0, True)
@example(  # payload of one side while a hole of the other has waited too long
    [(0, 0, 0, 0, 0, 500, 10, 0), (1, 0, 0, 0, 0, 500, 10, 0), (0, 0, 10, 0, 0, 500, 10, 0),
     (1, 4000 * MS, 0, 0, 0, 500, 10, 0)], 1000, True,
)  # fmt: skip
def test_the_fast_path_gives_the_same_result_as_the_slow_path(
    made: list[tuple[int, int, int, int, int, int, int, int]], start: int, ordered: bool
) -> None:
    forth, back = references(made, start)
    if not made:
        return
    short, long = reassembler(forth, back, ordered), reassembler(forth, back, ordered)
    assert by_the_fast_path(short) == by_the_slow_path(long)
    assert facts(short) == facts(long)


def test_packets_in_order_take_the_fast_path() -> None:
    opening = [(0, 0, 0, 0, SYN, 500, 0, 0), (1, MS, 0, 0, SYN | ACK, 500, 0, 0)]
    made = [*opening, (0, MS, 0, 0, ACK, 500, 0, 0), *[(0, MS, 0, 0, ACK, 500, 10, 0)] * 50]
    walk = reassembler(*references(made, 1000), True)
    walk.out = TcpEvents(100)
    taken = 0
    for place in range(walk.flow.count):
        blob = walk.flow.ref_blocks[walk.flow.order[place] >> 32]
        pos = (walk.flow.order[place] & LOW32) * REF_BYTES
        lanes = (walk.dialer, walk.acceptor)
        given = (blob.refs, pos, lanes[blob.direction], lanes[1 - blob.direction], blob.file)
        if walk.fast_packet(*given):
            taken += 1
        else:
            walk.packet(*given)
    assert taken == 50
