"""Batches that end where a cell of the file ends, so that flows side by side stay together."""

import struct

from hypothesis import given
from hypothesis import strategies as st
from tests.capture.capture_builder import START
from tests.capture.conftest import in_memory

from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.packet_refs import ACK, CAPTURED_BITS
from polymux.capture.tcp.flow_order import FlowOrder
from polymux.capture.tcp.reassembly import BATCH_ROWS, REGION_SHIFT, Reassembler

LIMITS = CaptureLimits()
CELL = 1 << int(REGION_SHIFT - CAPTURED_BITS)
SIZE = 1000


def walker(offsets: list[int]) -> Reassembler:
    """A session with a packet of SIZE bytes at each of these places."""
    refs = b"".join(
        struct.pack("<4q", offset << 20 | SIZE, START + n, (SIZE * n) << 32, ACK << 16 | 500)
        for n, offset in enumerate(offsets)
    )
    flow = FlowOrder()
    flow.add_file([(in_memory(refs), in_memory(b""))])
    flow.arrange()
    return Reassembler(
        flow,
        0,
        flow.count,
        0,
        True,
        LIMITS.max_out_of_order_bytes,
        LIMITS.max_out_of_order_segments,
        LIMITS.hole_timeout_ns,
    )


def batches(walk: Reassembler, size: int, cells: bool) -> list[list[int]]:
    """Where the bytes of each batch lie."""
    found = []
    while not walk.closed:
        events = walk.run(size, cells)
        found.append([int(events.offset[n]) for n in range(events.count)])
    return [each for each in found if each]


def test_a_batch_ends_with_its_cell() -> None:
    offsets = [n * (CELL // 10 + 1) for n in range(35)]
    found = batches(walker(offsets), 10 * SIZE, True)
    assert [len(each) for each in found] == [10, 10, 10, 5]
    assert batches(walker(offsets), 10 * SIZE, False) == found  # by its bytes


def test_a_cell_with_a_little_more_than_a_batch_is_one_batch() -> None:
    offsets = [n * (CELL // 15 + 1) for n in range(45)]
    assert [len(each) for each in batches(walker(offsets), 10 * SIZE, True)] == [15, 15, 15]


def test_a_cell_with_much_is_several_batches() -> None:
    offsets = [n * (CELL // 50 + 1) for n in range(100)]
    found = batches(walker(offsets), 10 * SIZE, True)
    assert [len(each) for each in found] == [20, 20, 10] * 2


def test_cells_with_few_packets_are_put_together() -> None:
    offsets = [n * CELL for n in range(12)]
    assert [len(each) for each in batches(walker(offsets), 16 * SIZE, True)] == [4, 4, 4]


@given(st.lists(st.integers(1, CELL), min_size=1, max_size=60), st.integers(1, 20 * SIZE))
def test_however_it_is_cut_everything_is_there(gaps: list[int], size: int) -> None:
    offsets = [sum(gaps[:n]) for n in range(1, len(gaps) + 1)]
    found = batches(walker(offsets), size, True)
    assert [offset for each in found for offset in each] == offsets
    for each in found[:-1]:
        assert size // 4 <= len(each) * SIZE < 2 * size + SIZE


def test_a_small_batch_makes_at_most_the_next_one_small() -> None:
    walk = walker([n * 10 for n in range(2 * int(BATCH_ROWS))])
    assert walk.run(SIZE).count == 1
    assert walk.run(1 << 40).count < BATCH_ROWS // 2
    assert walk.run(1 << 40).count >= BATCH_ROWS
