"""mplex between two processes over loopback: receiving and sending, against raw asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bench import harness
from bench.byte_traffic import mplex_frame
from bench.harness import Floor, Line, Times
from bench.peer_process import PeerProcess, start_peer

import polymux
from polymux.core.endpoint import Endpoint
from polymux.core.side import ACCEPTOR

SIZES = ((100, 24), (1024, 64), (4096, 128), (65536, 128))  # payload bytes, MB to send
RAW = 128  # MB
RECEIVE_STREAMS = {100: 0.20, 1024: 0.45, 4096: 0.70, 65536: 0.80}
RECEIVE_EVENTS = {100: 0.10, 1024: 0.45, 4096: 0.50, 65536: 0.75}
SEND = {100: 0.20, 1024: 0.45, 65536: 0.80}

Act = Callable[[], Awaitable[None]]


def sizes() -> list[tuple[int, int]]:
    return [(size, harness.EFFORT.scaled(megabytes)) for size, megabytes in SIZES]


def measure() -> list[Line]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Line]:
    async with start_peer() as other:
        lines = await receive_lines(other)
        lines += await send_lines(other)
    return lines


async def measure_alternating(candidates: dict[str, Act]) -> dict[str, Times]:
    """As `harness.race`, for coroutines."""
    names = list(candidates)
    times = {name: Times() for name in names}
    for name in names:
        await candidates[name]()
    for turn in harness.EFFORT.round_numbers(len(names)):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            wall, cpu = time.perf_counter(), time.process_time()
            await candidates[name]()
            times[name].add(time.perf_counter() - wall, time.process_time() - cpu)
    return times


# Receiving: the peer process sends encoded frames as fast as its socket accepts them


class CountingReceiver(asyncio.Protocol):
    """Raw asyncio: counts bytes until the peer ends."""

    def __init__(self, done: asyncio.Future[None], on_data: Callable[[bytes], None] | None) -> None:
        self.done = done
        self.on_data = on_data
        self.received_bytes = 0

    def data_received(self, data: bytes) -> None:
        self.received_bytes += len(data)
        if self.on_data is not None:
            self.on_data(data)

    def eof_received(self) -> bool:
        self.done.set_result(None)
        return False


def receiving(other: PeerProcess, megabytes: int, size: int, way: str) -> Act:
    """Receive frames of `size` bytes: `raw`, as `events`, or as one of polymux's `streams`."""
    opening, frame = mplex_frame(1, 0), mplex_frame(1, 2, bytes(size))
    byte_count = megabytes * 1_000_000 // len(frame) * len(frame)

    async def by_hand() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        take: Callable[[bytes], None] | None = None
        if way == "events":
            endpoint = Endpoint(polymux.protocol("mplex", vantage=ACCEPTOR), ACCEPTOR)

            def take(data: bytes) -> None:
                endpoint.receive(data, 1.0)

        server = await loop.create_server(lambda: CountingReceiver(done, take), "127.0.0.1", 0)
        other.send_repeatedly(server.sockets[0].getsockname()[1], byte_count, opening, frame)
        await done
        server.close()

    async def by_stream() -> None:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def handle(session: Any) -> None:
            stream = await session.accept()
            left = byte_count // len(frame) * size
            while left > 0:
                left -= len(await stream.receive())
            done.set_result(left)

        server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex")
        other.send_repeatedly(server.port, byte_count, opening, frame)
        assert await done == 0
        await server.close()

    return by_stream if way == "streams" else by_hand


async def receive_lines(other: PeerProcess) -> list[Line]:
    candidates: dict[str, Act] = {"raw": receiving(other, harness.EFFORT.scaled(RAW), 65536, "raw")}
    for size, megabytes in sizes():
        for way in ("streams", "events"):
            candidates[f"{way} {size}"] = receiving(other, megabytes, size, way)
    times = await measure_alternating(candidates)
    lines = []
    for way, targets in (("streams", RECEIVE_STREAMS), ("events", RECEIVE_EVENTS)):
        for size, megabytes in sizes():
            floor = Floor(
                "raw asyncio.Protocol", times["raw"], targets[size], harness.EFFORT.scaled(RAW)
            )
            name = f"receive, mplex, {way}, {size} B"
            line = Line(name, times[f"{way} {size}"], megabytes, "MB/s", [floor], "wall", 1.0)
            lines.append(line)
    return lines


# Sending: the peer process reads and discards


class BulkSender(asyncio.Protocol):
    """Raw asyncio: writes 64 KB at a time while the transport is writable, then closes."""

    def __init__(self, total_bytes: int, done: asyncio.Future[None]) -> None:
        self.left = total_bytes
        self.done = done
        self.can_write = True
        self.block = bytes(65536)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=256 * 1024)
        asyncio.get_running_loop().call_soon(self.push)

    def pause_writing(self) -> None:
        self.can_write = False

    def resume_writing(self) -> None:
        self.can_write = True
        asyncio.get_running_loop().call_soon(self.push)

    def push(self) -> None:
        while self.can_write and self.left > 0:
            self.transport.write(self.block)
            self.left -= len(self.block)
        if self.left <= 0:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


def sending(other: PeerProcess, megabytes: int, size: int, way: str) -> Act:
    """Send content of `size` bytes: `raw`, `send_nowait`, `send_many` or `await send`."""
    byte_count = megabytes * 1_000_000
    payload = bytes(size)
    batch = [payload] * max(1, 65536 // size)

    async def raw() -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        await loop.create_connection(
            lambda: BulkSender(byte_count, done), "127.0.0.1", other.ports["sink"]
        )
        await done

    async def ours() -> None:
        url = f"tcp://127.0.0.1:{other.ports['sink']}"
        async with polymux.connect(url, protocol="mplex") as session:
            stream = await session.open()
            if way == "await send":
                for _ in range(byte_count // size):
                    await stream.send(payload)
                return
            for _ in range(byte_count // (size * len(batch))):
                if way == "send_many":
                    stream.send_many(batch)
                else:
                    for data in batch:
                        stream.send_nowait(data)
                await stream.drain()

    return raw if way == "raw" else ours


async def send_lines(other: PeerProcess) -> list[Line]:
    candidates: dict[str, Act] = {"raw": sending(other, harness.EFFORT.scaled(RAW), 65536, "raw")}
    wanted: list[tuple[str, int, int, float]] = []
    for size, megabytes in sizes():
        if size in SEND:
            for way in ("send_nowait", "send_many"):
                wanted.append((way, size, megabytes, SEND[size]))
    wanted.append(("await send", 100, harness.EFFORT.scaled(12), 0.08))
    for way, size, megabytes, _ in wanted:
        candidates[f"{way} {size}"] = sending(other, megabytes, size, way)
    times = await measure_alternating(candidates)
    lines = []
    for way, size, megabytes, target in wanted:
        floor = Floor("raw 64 KB writes", times["raw"], target, harness.EFFORT.scaled(RAW))
        name = f"send, mplex, {way}, {size} B"
        line = Line(name, times[f"{way} {size}"], megabytes, "MB/s", [floor], "wall", 1.0)
        lines.append(line)
    return lines
