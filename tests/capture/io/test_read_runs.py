"""Payload scattered over files is gathered correctly and with few system calls."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import BOB, START, End
from tests.capture.conftest import streams

from polymux.capture import (
    CaptureReader,
    FilePool,
    FlowFilter,
    TcpSession,
    read_sessions,
)
from polymux.capture.io import mmap_gather as mmap_gather
from polymux.capture.io.read_runs import MAX_RUN_BYTES, MAX_RUN_PIECES, ReadRun, read_run
from polymux.capture.io.sources import PlainSource
from polymux.capture.packets.indexer import index_flows
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, TcpEvents
from polymux.capture.tcp.sessions import read_payload
from polymux.core.errors import CaptureError

FLOWS, LINES = 40, 30


@functools.cache
def lines(flow: int) -> list[tuple[int, bytes]]:
    """The chunks of both sides of a flow: of many sizes, and unique to the flow."""
    rng = Random(flow)
    return [(n % 2, rng.randbytes(rng.choice((1, 20, 600, 1400)))) for n in range(LINES)]


@functools.cache
def interleaved() -> bytes:
    """A packet of each flow in turn, so that no flow has two adjacent ones."""
    talks = [
        build.talk(*lines(flow), ends=(End("192.0.2.1", 40000 + flow), BOB), start=START + flow)
        for flow in range(FLOWS)
    ]
    return build.pcapng(packet for turn in zip(*talks, strict=True) for packet in turn)


def sent(flow: int) -> tuple[bytes, bytes]:
    dialer, acceptor = (b"".join(d for s, d in lines(flow) if s == side) for side in (0, 1))
    return dialer, acceptor


def numbered(session: TcpSession) -> int:
    return int(session.dialer.rpartition(":")[2]) - 40000


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How payload was read: one word for each call."""
    made: list[str] = []
    read_at, join = PlainSource.read_at, mmap_gather.GatherBuffer.gather

    def count_read(self: PlainSource, offset: int, size: int) -> bytes:
        made.append("read")
        return read_at(self, offset, size)

    def count_join(
        self: mmap_gather.GatherBuffer, vectors: bytes, pieces: int, byte_count: int
    ) -> bytes | None:
        made.append("gather")
        return join(self, vectors, pieces, byte_count)

    monkeypatch.setattr(PlainSource, "read_at", count_read)
    monkeypatch.setattr(mmap_gather.GatherBuffer, "gather", count_join)
    return made


def test_interleaved_flows_are_read_right(write: Callable[..., str]) -> None:
    with read_sessions([write(interleaved())]) as reading:
        found = {numbered(session): streams(session) for session in reading}
    assert found == {flow: sent(flow) for flow in range(FLOWS)}


def test_an_interleaved_flow_costs_one_call_not_one_a_segment(
    write: Callable[..., str], calls: list[str]
) -> None:
    with read_sessions([write(interleaved())]) as reading:
        first = next(iter(reading))
        assert streams(first) == sent(numbered(first))
    assert calls == ["gather"] or mmap_gather.LIBC is None


def test_a_flow_alone_is_read_in_one_piece(write: Callable[..., str], calls: list[str]) -> None:
    with read_sessions([write(build.pcapng(build.talk(*lines(0))))]) as reading:
        (found,) = reading
        assert streams(found) == sent(0)
    assert calls == ["read"]


@pytest.mark.parametrize("missing", ["LIBC", "mapped_file", "gather_buffer"])
def test_where_the_kernel_cannot_gather_pieces_are_read_one_by_one(
    missing: str, write: Callable[..., str], calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "LIBC":
        monkeypatch.setattr(mmap_gather, missing, None)
    elif missing == "mapped_file":
        monkeypatch.setattr(PlainSource, missing, lambda self: None)
    else:
        monkeypatch.setattr(FilePool, missing, lambda self: None)
    with read_sessions([write(interleaved())]) as reading:
        assert {numbered(each): streams(each) for each in reading} == {
            flow: sent(flow) for flow in range(FLOWS)
        }
    assert "gather" not in calls
    assert "read" in calls


@pytest.mark.parametrize("gone", [8000, 9000, 10_000, 11_000, 200_000, 0])
def test_a_file_that_shrinks_under_interleaved_flows_is_reported(
    gone: int, write: Callable[..., str]
) -> None:
    """Within a page the rest of a shrunken file reads as zeros, which must not be returned."""
    path = write(interleaved())
    with read_sessions([path]) as reading:
        sessions = list(reading)
        assert streams(sessions[0]) == sent(numbered(sessions[0]))  # the file is mapped now
        os.truncate(path, os.path.getsize(path) - gone if gone else 0)
        problems = [problem for session in sessions if (problem := read_error(session))]
    assert problems
    assert all("shrank" in problem for problem in problems)


def read_error(session: TcpSession) -> str:
    """The error of reading the session; empty if it is read correctly."""
    try:
        assert streams(session) == sent(numbered(session))
    except CaptureError as problem:
        return str(problem)
    return ""


def test_a_forked_process_gathers_into_a_buffer_of_its_own() -> None:
    with FilePool() as opened:
        before = opened.gather_buffer()
        assert before is opened.gather_buffer()
        if before is not None:
            before.owner_pid = -1  # as a child sees it
            assert opened.gather_buffer() is not before


def test_files_are_unmapped_when_they_are_closed(write: Callable[..., str]) -> None:
    path = write(interleaved())
    with read_sessions([path]) as reading:
        for session in reading:
            streams(session)
        mapped = path in Path("/proc/self/maps").read_text()
        assert mapped == (mmap_gather.LIBC is not None)
    assert path not in Path("/proc/self/maps").read_text()


def test_few_blocks_of_mapped_files_are_resident_at_a_time(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(interleaved())
    dropped: list[int] = []
    forget = mmap_gather.MappedFile.drop_pages

    def count_forget(self: mmap_gather.MappedFile) -> None:
        dropped.append(int(self.resident_blocks.count))
        forget(self)
        assert self.resident_blocks.count == 0

    monkeypatch.setattr(mmap_gather.MappedFile, "drop_pages", count_forget)
    with FilePool(resident_limit=3 * 65536) as pool:
        reader = CaptureReader(pool, [index_flows(path)], FlowFilter())
        assert {numbered(each): streams(each) for each in reader} == {
            flow: sent(flow) for flow in range(FLOWS)
        }
    blocks = os.path.getsize(path) // 65536 + 1
    assert all(3 < each <= blocks for each in dropped)
    assert len(dropped) == FLOWS or mmap_gather.LIBC is None


def events_of(pieces: list[tuple[int, int, int]]) -> TcpEvents:
    """(file, offset, size) as rows; a size of 0 makes a gap."""
    events = TcpEvents(len(pieces) + 1)
    for file, offset, size in pieces:
        events.add(0, PAYLOAD if size else GAP, 0, size or 7, file, offset)
    return events


PIECES = st.tuples(st.integers(0, 2), st.integers(0, 200_000), st.integers(0, 3000))


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=60))
def test_any_pieces_in_any_order_are_joined_as_if_read_one_by_one(
    pieces: list[tuple[int, int, int]],
) -> None:
    data = Random(1).randbytes(210_000)
    names = []
    with FilePool() as opened:
        for number in range(3):
            name = f"/proc/self/fd/{_memory(data[number:])}"
            names.append(name)
        readers = opened.readers(names)
        expected = b"".join(data[file + offset :][:size] for file, offset, size in pieces)
        assert read_payload(events_of(pieces), readers) == expected
        assert read_payload(events_of(pieces), [reader.__call__ for reader in readers]) == expected
    for name in names:
        os.close(int(name.rpartition("/")[2]))


def _memory(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def test_a_run_is_cut_where_one_call_cannot_take_more() -> None:
    many = ReadRun(events_of([(0, n * 9000, 1) for n in range(3000)]), 0)
    assert (many.pieces, many.payload_bytes, many.stop) == (
        MAX_RUN_PIECES,
        MAX_RUN_PIECES,
        MAX_RUN_PIECES,
    )
    large = ReadRun(events_of([(0, n * 900_000, 400_000) for n in range(9)]), 0)
    assert large.payload_bytes <= MAX_RUN_BYTES
    assert large.pieces == 2
    single = ReadRun(events_of([(0, 5, 1 << 20), (0, 9 << 20, 9)]), 0)
    assert (single.pieces, single.is_sparse()) == (1, False)
    assert read_run(events_of([(0, 5, 3)]), single, lambda offset, size: b"x" * size) == b"xxx"
