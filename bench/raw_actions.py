"""The work of the floors: bulk, requests and pings over raw TCP and bare WebSockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.alternating_runs import Act
from bench.peer_process import PeerProcess
from bench.raw_endpoints import COUNT_BYTES, RawClient, RawWebSocket


@contextlib.asynccontextmanager
async def dial(port: int, side: RawClient) -> AsyncIterator[RawClient]:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: side, "127.0.0.1", port)
    try:
        yield side
    finally:
        transport.close()


@contextlib.asynccontextmanager
async def raw_tcp(other: PeerProcess, name: str) -> AsyncIterator[RawClient]:
    async with dial(other.ports[name], RawClient()) as side:
        yield side


def tcp_bulk(side: RawClient, byte_count: int, size: int) -> Act:
    """Write bytes in pieces of `size`, small ones joined, and wait until the peer confirms that it
    has received all."""
    whole = max(1, 65536 // size) * size
    block = bytes(whole)

    async def act() -> float:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        side.on_data = lambda data: done.set_result(None)
        start = time.perf_counter()
        side.transport.write(byte_count.to_bytes(COUNT_BYTES, "big"))
        left = byte_count
        while left > 0:
            side.transport.write(block if left >= whole else block[:left])
            left -= whole
            await side.wait_writable()
        await done
        return time.perf_counter() - start

    return act


def tcp_requests(side: RawClient, count: int, size: int, flight: int, tasks: bool) -> Act:
    """Echoes of `size` bytes, `flight` at a time. With `tasks` each is awaited by its own task, as
    in an application; without, one callback counts them all."""
    request = bytes(size)

    async def counted() -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        got, asked = 0, flight

        def take(data: bytes) -> None:
            nonlocal got, asked
            before = got // size
            got += len(data)
            fresh = min(got // size - before, count - asked)
            if fresh > 0:
                asked += fresh
                side.transport.write(request * fresh)
            if got == count * size:
                done.set_result(None)

        side.on_data = take
        side.transport.write(request * flight)
        await done

    async def awaited() -> None:
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[None]] = []
        out: list[bytes] = []
        rest = 0

        def flush() -> None:
            side.transport.write(b"".join(out))
            out.clear()

        def take(data: bytes) -> None:
            nonlocal rest
            fresh, rest = divmod(rest + len(data), size)
            for waiter in waiting[:fresh]:
                waiter.set_result(None)
            del waiting[:fresh]

        async def ask(share: int) -> None:
            for _ in range(share):
                waiter = loop.create_future()
                waiting.append(waiter)
                if not out:
                    loop.call_soon(flush)
                out.append(request)
                await waiter

        side.on_data = take
        await asyncio.gather(*(ask(count // flight) for _ in range(flight)))

    async def act() -> float:
        start = time.perf_counter()
        await (awaited() if tasks else counted())
        return time.perf_counter() - start

    return act


async def tcp_pings(side: RawClient, count: int) -> list[float]:
    """Round trips of 16 bytes, one at a time."""
    found = []
    for _ in range(count):
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        side.on_data = lambda data, done=done: done.set_result(None)  # type: ignore[misc]
        start = time.perf_counter()
        side.transport.write(bytes(16))
        await done
        found.append(time.perf_counter() - start)
    return found


# WebSockets


@contextlib.asynccontextmanager
async def raw_websocket(other: PeerProcess) -> AsyncIterator[RawWebSocket]:
    side = RawWebSocket(True, lambda socket, message: None)
    async with dial(other.ports["raw-websocket"], side):
        yield side


def websocket_bulk(side: RawWebSocket, count: int, size: int) -> Act:
    batch = [bytes(size)] * max(1, 65536 // size)

    async def act() -> float:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        side.on_message = lambda socket, message: done.set_result(None)
        start = time.perf_counter()
        side.send([count.to_bytes(COUNT_BYTES, "big")])
        left = count
        while left > 0:
            side.send(batch[:left])
            left -= len(batch)
            await side.wait_writable()
        await done
        return time.perf_counter() - start

    return act


def library_bulk(other: PeerProcess, count: int, size: int) -> Act:
    """The same with the PyPI library `websockets`, which writes every message by itself."""
    from websockets.asyncio.client import connect

    message = bytes(size)
    url = f"ws://127.0.0.1:{other.ports['websockets']}"

    async def push(connection: Any) -> float:
        start = time.perf_counter()
        await connection.send(count.to_bytes(COUNT_BYTES, "big"))
        for _ in range(count):
            await connection.send(message)
        await connection.recv()
        return time.perf_counter() - start

    async def act() -> float:
        async with connect(url, compression=None, max_size=None) as connection:
            return await push(connection)

    return act
