"""What a proxy has read and not forwarded is bounded for all connections together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest
from tests.record.collector.test_collector import until
from tests.record.collector.test_limits import Room

from polymux import Limits
from polymux.capture import PcapngWriter
from polymux.record import RecordingProxy
from polymux.record.forwarding_budget import MAX_READ_BYTES, MIN_READ_BYTES, ForwardingBudget

KIB = 1024
BUDGET = 256 * KIB
SENT = 8 * 1024 * KIB  # more than the sockets on the way hold


async def echo_server() -> asyncio.Server:
    """A server that sends everything back, however little of it is read."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # a dialer has reset its connection
            while data := await reader.read(64 * KIB):
                writer.write(data)
        writer.close()

    return await asyncio.start_server(echo, "127.0.0.1", 0)


async def dial(proxy: RecordingProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect with a socket that holds little."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", proxy.address.port))
    return await asyncio.open_connection(sock=sock, limit=KIB)


async def exchanged(proxy: RecordingProxy, data: bytes) -> bytes:
    reader, writer = await dial(proxy)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    return answer


async def test_dialers_that_read_no_answers_hold_the_budget_and_delay_no_other(
    tmp_path: Path,
) -> None:
    server = await echo_server()
    port = server.sockets[0].getsockname()[1]
    with PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        limits = Limits(server_buffer_bytes=BUDGET)
        async with RecordingProxy(
            "tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink, limits=limits
        ) as proxy:
            greedy = [await dial(proxy) for _ in range(4)]
            for _, writer in greedy:
                writer.write(bytes(SENT))
            await until(lambda: proxy.budget.held_bytes > 0)
            data = bytes(range(256)) * 4 * KIB
            assert await exchanged(proxy, data) == data
            assert 0 < proxy.budget.held_bytes <= BUDGET + 10 * MIN_READ_BYTES
            for _, writer in greedy:
                writer.transport.abort()
            await until(lambda: proxy.stats.open == 0)
            assert proxy.budget.held_bytes == 0
    server.close()


async def test_what_waits_for_the_disk_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    server = await echo_server()
    port = server.sockets[0].getsockname()[1]
    with PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        limits = Limits(server_buffer_bytes=BUDGET)
        async with RecordingProxy(
            "tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink, limits=limits, on_full="block"
        ) as proxy:
            dialers = [await dial(proxy) for _ in range(4)]
            for reader, writer in dialers:
                writer.write(b"x")
                assert await reader.read(1) == b"x"
            room.full = True
            for _, writer in dialers:
                writer.write(bytes(MAX_READ_BYTES))
            await until(lambda: proxy.disk_full)
            await asyncio.sleep(0.1)
            assert 0 < proxy.budget.held_bytes <= BUDGET
            room.full = False
            for reader, writer in dialers:
                assert await reader.readexactly(MAX_READ_BYTES) == bytes(MAX_READ_BYTES)
                writer.close()
            await until(lambda: proxy.stats.open == 0)
            assert proxy.budget.held_bytes == 0
    server.close()


async def test_what_a_dialer_sends_too_early_counts_until_it_is_forwarded_or_gone(
    tmp_path: Path,
) -> None:
    with PcapngWriter(str(tmp_path / "x.pcapng"), sync="none") as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", "tcp://127.0.0.1:9", sink) as proxy:
            with contextlib.suppress(OSError):
                await exchanged(proxy, b"for no upstream")
            await until(lambda: proxy.stats.refused == 1 and proxy.stats.open == 0)
            assert proxy.budget.held_bytes == 0


def test_a_read_takes_a_part_of_what_is_left() -> None:
    budget = ForwardingBudget(64 * KIB)
    assert len(budget.read_buffer(1)) == 32 * KIB
    budget.held_bytes = 48 * KIB
    assert len(budget.read_buffer(1)) == 8 * KIB
    assert len(budget.read_buffer(100)) == MIN_READ_BYTES
    budget.held_bytes = 100 * KIB
    assert len(budget.read_buffer(1)) == MIN_READ_BYTES
    assert len(ForwardingBudget(64 << 20).read_buffer(1)) == MAX_READ_BYTES
