"""A chunk too large for one packet becomes several, which reach the file by one call."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux.capture import PcapngWriter, TcpScribe, index_file, read_sessions
from polymux.capture.frames import LARGEST_PAYLOAD
from polymux.capture.scribe import BURST
from polymux.capture.writer import DiskFull
from polymux.record.patience import Parts, Patience

from .build import START
from .conftest import streams

DIALER, ACCEPTOR = ("192.0.2.1", 40000), ("198.51.100.2", 9000)
SIZES = st.one_of(st.integers(0, 200), st.integers(LARGEST_PAYLOAD - 2, 4 * LARGEST_PAYLOAD))


class OneByOne:
    """A sink that takes no bursts."""

    def __init__(self, writer: PcapngWriter) -> None:
        self._writer = writer

    @property
    def file(self) -> int:
        return self._writer.file

    def packet(self, at: int, parts: Parts, comment: str = "", wire: int = -1) -> None:
        self._writer.packet(at, parts, comment, wire)


def written(path: Path, chunks: list[bytes], bursts: bool) -> bytes:
    with PcapngWriter(str(path)) as writer:
        sink = writer if bursts else OneByOne(writer)
        scribe = TcpScribe(sink, DIALER, ACCEPTOR, START, comment="polymux: vantage=middle")
        for n, chunk in enumerate(chunks):
            scribe.data(n % 2, chunk, START + n)
        scribe.close(START + len(chunks))
    data = path.read_bytes()
    path.unlink()
    return data


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(SIZES, max_size=6))
def test_a_burst_writes_the_octets_that_its_packets_would_write(
    tmp_path: Path, sizes: list[int]
) -> None:
    chunks = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    path = tmp_path / "written.pcapng"
    assert written(path, chunks, bursts=True) == written(path, chunks, bursts=False)


def test_a_large_chunk_is_one_call_and_a_huge_one_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    pwritev = os.pwritev

    def count(fd: int, parts: Sequence[bytes], offset: int) -> int:
        calls.append(len(parts))
        return pwritev(fd, parts, offset)

    with PcapngWriter(str(tmp_path / "written.pcapng")) as writer:
        scribe = TcpScribe(writer, DIALER, ACCEPTOR, START)
        monkeypatch.setattr(os, "pwritev", count)
        scribe.data(0, bytes(256 * 1024), START)
        assert calls == [5 * 4]
        calls.clear()
        scribe.data(0, bytes(LARGEST_PAYLOAD * (BURST + 1)), START)
        assert calls == [BURST * 4, 4]
        monkeypatch.undo()
    (session,) = read_sessions([writer.path])
    assert streams(session)[0] == bytes(256 * 1024 + LARGEST_PAYLOAD * (BURST + 1))


@pytest.mark.parametrize("room", [0, 1, 70_000, 131_000, 180_000])
def test_a_burst_that_finds_no_room_is_missed_whole_and_counted_packet_by_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    scribe = TcpScribe(writer, DIALER, ACCEPTOR, START)
    scribe.data(0, b"before", START)
    size, pwritev = writer.size, os.pwritev

    def fail(fd: int, parts: Sequence[bytes], offset: int) -> int:
        data = b"".join(parts)[:room]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, [data], offset)

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", fail)
        broken.setattr(os, "pwrite", full)
        scribe.data(0, bytes(200_000), START)
    assert writer.size == size == os.path.getsize(writer.path + ".part")
    assert (writer.missed.packets, writer.missed.octets) == (4, 200_000 + 4 * 54)
    scribe.data(0, b"after", START)
    scribe.close(START)
    assert index_file(writer.close()).summary.status == "whole"
    (session,) = read_sessions([writer.path])
    assert streams(session)[0] == b"before" + b"?" * 200_000 + b"after"
    said = b"polymux: gap packets=4 octets=200216"
    assert Path(writer.path).read_bytes().count(said) == 1


class Narrow:
    """A sink with no room until it is told that there is."""

    file = 1

    def __init__(self) -> None:
        self.room = False
        self.got: list[bytes] = []

    def offer(self, at: int, parts: Parts, comment: str = "", wire: int = -1) -> None:
        self.offer_burst(at, [parts])

    def offer_burst(self, at: int, frames: list[Parts], comment: str = "") -> None:
        if not self.room:
            raise DiskFull("no room")
        self.got += [b"".join(parts) for parts in frames]


async def wait_for_room() -> tuple[list[bool], list[bytes]]:
    told: list[bool] = []
    sink = Narrow()
    patience = Patience(sink, told.append)
    patience.packet(START, [b"one"])
    patience.burst(START, [[b"two"], [b"th", b"ree"]])
    patience.packet(START, [b"four"])
    assert (patience.octets, sink.got) == (15, [])
    sink.room = True
    async with asyncio.timeout(10):
        while patience.full:
            await asyncio.sleep(0.01)
    assert patience.octets == 0
    return told, sink.got


def test_a_burst_waits_for_room_in_its_place() -> None:
    told, got = asyncio.run(wait_for_room())
    assert told == [True, False]
    assert got == [b"one", b"two", b"three", b"four"]
