"""Pieces of many batches read in one pass: the same bytes with far fewer calls."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.capture.io.read_coalescing import MAX_WINDOW_BYTES, SequentialRun, read_interleaved
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, TcpEvents
from polymux.core.errors import CaptureError

SIZE = 5 * 1024 * 1024
DATA = Random(3).randbytes(SIZE)

Pieces = list[tuple[int, int]]  # offset, size; a size of 0 makes a gap


class File:
    """A file in memory that records the calls it is read by."""

    def __init__(self, broken_from: int = SIZE) -> None:
        self.calls: list[tuple[int, int]] = []
        self.broken_from = broken_from

    def __call__(self, offset: int, size: int) -> bytes:
        self.calls.append((offset, size))
        if offset + size > self.broken_from:
            raise CaptureError("the file shrank while it was being read", "f", offset)
        return DATA[offset : offset + size]


def events_of(pieces: Pieces) -> TcpEvents:
    events = TcpEvents(len(pieces) + 1)
    for offset, size in pieces:
        events.add(0, PAYLOAD if size else GAP, 0, size or 7, 0, offset)
    return events


def runs_of(pieces: Pieces) -> list[SequentialRun]:
    """All pieces of a batch, as sequential runs."""
    events, found, stop = events_of(pieces), [], 0
    while stop < events.count:
        stretch = SequentialRun(events, stop)
        stop = int(stretch.stop)
        if stretch.pieces:
            found.append(stretch)
    return found


def raw_bytes(pieces: Pieces) -> bytes:
    return b"".join(DATA[offset : offset + size] for offset, size in pieces)


NEAR = st.tuples(st.integers(0, 60_000), st.integers(0, 3000))
FAR = st.tuples(st.integers(0, SIZE - 600_000), st.sampled_from([0, 1, 500, 70_000, 600_000]))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(NEAR | FAR, max_size=25), max_size=8))
def test_any_batches_are_read_as_if_piece_by_piece(batches: list[Pieces]) -> None:
    stretches = [runs_of(pieces) for pieces in batches]
    read_interleaved([one for batch in stretches for one in batch], File())
    for pieces, batch in zip(batches, stretches, strict=True):
        assert all(one.is_read() for one in batch)
        assert b"".join(one.take() for one in batch) == raw_bytes(pieces)


def test_interleaved_batches_are_read_window_by_window() -> None:
    batches: list[Pieces] = [[(n * 8000 + 500 * b, 400) for n in range(600)] for b in range(16)]
    stretches = [one for pieces in batches for one in runs_of(pieces)]
    file = File()
    read_interleaved(stretches, file)
    assert len(file.calls) == -(-600 * 8000 // MAX_WINDOW_BYTES)
    assert [one.take() for one in stretches] == [raw_bytes(pieces) for pieces in batches]


def test_pieces_far_apart_are_not_read_with_what_lies_between() -> None:
    batches: list[Pieces] = [[(b * 40_000 + n * 800_000, 100) for n in range(5)] for b in range(4)]
    file = File()
    read_interleaved([one for pieces in batches for one in runs_of(pieces)], file)
    assert sorted(file.calls) == sorted(piece for pieces in batches for piece in pieces)


def test_the_largest_piece_is_read_whole_whatever_window_it_begins_in() -> None:
    largest = (1 << 20) - 1
    (long,) = runs_of([(MAX_WINDOW_BYTES - 1, largest)])
    (short,) = runs_of([(90, 20), (MAX_WINDOW_BYTES, 20)])
    read_interleaved([short, long], File())
    assert long.take() == raw_bytes([(MAX_WINDOW_BYTES - 1, largest)])
    assert short.take() == raw_bytes([(90, 20), (MAX_WINDOW_BYTES, 20)])


def test_after_a_failed_read_the_other_runs_are_unread() -> None:
    before, across = runs_of([(0, 10)]), runs_of([(20, 10), (3_000_000, 10)])
    with pytest.raises(CaptureError):
        read_interleaved([*before, *across], File(2_000_000))
    assert before[0].take() == raw_bytes([(0, 10)])
    assert not across[0].is_read()
    with pytest.raises(ValueError, match="not read"):
        across[0].take()


def test_bytes_can_be_taken_once() -> None:
    (one,) = runs_of([(5, 3)])
    read_interleaved([one], File())
    assert one.take() == DATA[5:8]
    with pytest.raises(ValueError, match="taken before"):
        one.take()


def test_a_run_ends_where_offsets_decrease_or_the_file_changes() -> None:
    assert [int(one.pieces) for one in runs_of([(9, 1), (20, 1), (5, 1), (5, 2), (0, 0)])] == [
        2, 2,
    ]  # fmt: skip
    events = TcpEvents(3)
    for file in (0, 1, 1):
        events.add(0, PAYLOAD, 0, 4, file, 50)
    first = SequentialRun(events, 0)
    assert (first.file, first.stop) == (0, 1)
    assert (SequentialRun(events, 1).file, SequentialRun(events, 1).pieces) == (1, 2)
