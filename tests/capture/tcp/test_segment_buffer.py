"""Segments buffered behind a hole: in order, without overlaps, the first copy of each byte."""

from __future__ import annotations

from collections.abc import Iterable
from time import process_time

from hypothesis import given
from hypothesis import strategies as st

from polymux.capture.tcp.reassembly import TcpDirection

# Start, size, and how many of its bytes were cut off by the snap length.
SEGMENTS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 12), st.integers(0, 4)))


@given(segments=SEGMENTS, released=st.integers(0, 3))
def test_every_byte_is_buffered_once_as_it_came_first(
    segments: list[tuple[int, int, int]], released: int
) -> None:
    lane = TcpDirection(0)
    lane.begin(0)
    expected: dict[int, tuple[int, int]] = {}
    for number, (start, size, cut) in enumerate(segments):
        captured = max(size - cut, 0)
        lane.buffer(start, captured, size, 7, 1000 * number, number)
        for n in range(size):
            copy = (1000 * number + n if n < captured else -1, number)
            expected.setdefault(start + n, copy)
    for _ in range(min(released, len(lane.buffered))):
        first = lane.buffered[lane.buffer_head]
        for n in range(first.size):
            del expected[first.start + n]
        lane.pop_buffered()
    found: dict[int, tuple[int, int]] = {}
    for held in lane.buffered[lane.buffer_head :]:
        assert not found or max(found) < held.start
        for n in range(held.size):
            found[held.start + n] = (-1 if held.missing else held.offset + n, held.timestamp)
    assert found == expected
    assert lane.buffered_bytes == sum(offset >= 0 for offset, _ in found.values())


def test_segments_in_descending_order_are_not_compared_with_all_that_wait() -> None:
    def took(starts: Iterable[int]) -> float:
        lane = TcpDirection(0)
        lane.begin(0)
        began = process_time()
        for start in starts:
            lane.buffer(start, 1, 1, 0, 0, 0)
        return process_time() - began

    up = min(took(range(10, 16_010, 2)) for _ in range(3))
    down = min(took(range(16_010, 10, -2)) for _ in range(2))
    assert down < 20 * up
