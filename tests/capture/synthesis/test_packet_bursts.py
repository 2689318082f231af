"""A chunk too large for one packet becomes several, written by one system call."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.capture.capture_builder import START
from tests.capture.conftest import streams
from tests.capture.packet_headers import headers

from polymux.capture import PcapngWriter, TcpConnectionWriter, index_file, read_sessions
from polymux.capture.pcapng.blocks import comment
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import MAX_PAYLOAD_BYTES, HeaderTemplate, PacketBurst
from polymux.capture.synthesis.tcp_connection import MAX_BURST_PACKETS
from polymux.record.disk_full_queue import DiskFullQueue

DIALER, ACCEPTOR = ("192.0.2.1", 40000), ("198.51.100.2", 9000)
SIZES = st.one_of(st.integers(0, 200), st.integers(MAX_PAYLOAD_BYTES - 2, 4 * MAX_PAYLOAD_BYTES))


def written(path: Path, chunks: list[bytes], at_once: int) -> bytes:
    """The file of a connection writer that gets at most `at_once` bytes of a chunk at a time."""
    with PcapngWriter(str(path)) as writer:
        scribe = TcpConnectionWriter(
            writer, DIALER, ACCEPTOR, START, comment="polymux: vantage=middle"
        )
        for n, chunk in enumerate(chunks):
            for start in range(0, len(chunk), at_once):
                scribe.data(n % 2, chunk[start : start + at_once], START + n)
        scribe.close(START + len(chunks))
    data = path.read_bytes()
    path.unlink()
    return data


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(SIZES, max_size=6))
def test_a_burst_writes_the_bytes_that_its_packets_would_write(
    tmp_path: Path, sizes: list[int]
) -> None:
    chunks = [bytes([n + 1]) * size for n, size in enumerate(sizes)]
    path = tmp_path / "written.pcapng"
    assert written(path, chunks, 1 << 30) == written(path, chunks, MAX_PAYLOAD_BYTES)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 1448, MAX_PAYLOAD_BYTES, 3 * MAX_PAYLOAD_BYTES + 1])
@pytest.mark.parametrize("said", ["", "polymux: one", "ü" * 99])
@pytest.mark.parametrize("ends", [(DIALER, ACCEPTOR), (("2001:db8::1", 5), ("2001:db8::2", 7))])
def test_a_burst_is_what_the_writer_makes_of_the_same_packets(
    tmp_path: Path, size: int, said: str, ends: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    maker = HeaderTemplate(*ends, 0)
    data = bytes(n * n % 251 for n in range(size))
    burst = PacketBurst(maker, START, 2**32 - 3, 2**31, 24, comment(said))
    if data:
        burst.add_payload(data, 0, MAX_BURST_PACKETS)
    else:
        burst.add_empty()
    files = []
    for name in ("burst", "packets"):
        with PcapngWriter(str(tmp_path / name)) as writer:
            if name == "burst":
                writer.burst(burst)
            for start in range(0, max(1, size), MAX_PAYLOAD_BYTES) if name == "packets" else []:
                part = data[start : start + MAX_PAYLOAD_BYTES]
                before = headers(maker, 2**32 - 3 + start, 2**31, 24, part)
                writer.packet(START, [before, part], said if start == 0 else "")
        files.append((Path(writer.path).read_bytes(), writer.packets, writer.size))
    assert files[0] == files[1]
    assert burst.payload_bytes == size
    assert burst.packet_bytes == size + burst.packets * maker.header_bytes
    assert burst.block_bytes == sum(map(len, burst.parts))


def test_a_large_chunk_is_one_call_and_a_huge_one_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    pwritev = os.pwritev

    def count(fd: int, parts: Sequence[bytes], offset: int) -> int:
        calls.append(len(parts))
        return pwritev(fd, parts, offset)

    with PcapngWriter(str(tmp_path / "written.pcapng")) as writer:
        scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START)
        monkeypatch.setattr(os, "pwritev", count)
        scribe.data(0, bytes(256 * 1024), START)
        assert calls == [5 * 2 + 1]
        calls.clear()
        scribe.data(0, bytes(MAX_PAYLOAD_BYTES * (MAX_BURST_PACKETS + 1)), START)
        assert calls == [MAX_BURST_PACKETS * 2 + 1, 3]
        monkeypatch.undo()
    (session,) = read_sessions([writer.path])
    assert streams(session)[0] == bytes(256 * 1024 + MAX_PAYLOAD_BYTES * (MAX_BURST_PACKETS + 1))


@pytest.mark.parametrize("room", [0, 1, 70_000, 131_000, 180_000])
def test_a_burst_on_a_full_disk_is_lost_as_a_whole_and_counted_packet_by_packet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START)
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
    assert (writer.loss.packets, writer.loss.bytes) == (4, 200_000 + 4 * 54)
    scribe.data(0, b"after", START)
    scribe.close(START)
    assert index_file(writer.close()).summary.status == "whole"
    (session,) = read_sessions([writer.path])
    assert streams(session)[0] == b"before" + b"?" * 200_000 + b"after"
    said = b"polymux: gap packets=4 bytes=200216"
    assert Path(writer.path).read_bytes().count(said) == 1


class Narrow:
    """A sink whose disk is full until the test says otherwise."""

    comment_epoch = 1

    def __init__(self) -> None:
        self.room = False
        self.got: list[PacketBurst] = []

    def offer_burst(self, burst: PacketBurst) -> None:
        if not self.room:
            raise DiskFull("no room")
        self.got.append(burst)


def carrying(*sizes: int) -> PacketBurst:
    maker = HeaderTemplate(DIALER, ACCEPTOR, 0)
    burst = PacketBurst(maker, START, 0, 0, 24, b"")
    for size in sizes:
        burst.add_payload(bytes(size), 0, burst.packets + 1)
    return burst


async def wait_for_room() -> tuple[list[bool], list[PacketBurst], list[PacketBurst]]:
    told: list[bool] = []
    sink = Narrow()
    patience = DiskFullQueue(sink, told.append)
    given = [carrying(1), carrying(2, 3), carrying(4)]
    for burst in given:
        patience.burst(burst)
    assert (patience.waiting_bytes, sink.got) == (10 + 4 * 54, [])
    sink.room = True
    async with asyncio.timeout(60):
        while patience.full:
            await asyncio.sleep(0.01)
    assert patience.waiting_bytes == 0
    return told, given, sink.got


def test_a_burst_waits_for_room_in_its_place() -> None:
    told, given, got = asyncio.run(wait_for_room())
    assert told == [True, False]
    assert got == given
