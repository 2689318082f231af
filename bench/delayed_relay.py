"""A relay on loopback that delays both directions, and windows that grow through it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from bench import harness
from bench.harness import Bound, Figure

import polymux
from polymux import Limits, YamuxSession

ONE_WAY_SECONDS = 0.04
ROUND_TRIP = 2 * ONE_WAY_SECONDS
ROUND_TRIPS_TO_GROW = 10
LARGEST_WINDOW = 2 * 1024 * 1024
REQUIRED_SHARE = 0.9  # of what the largest window allows
HELD_BYTES = 64 * 1024 * 1024  # in the relay, at most


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on after `ONE_WAY_SECONDS`, at any rate."""
    loop = asyncio.get_running_loop()

    def write(data: bytes) -> None:
        if not writer.is_closing():
            if data:
                writer.write(data)
            else:
                writer.write_eof()

    while True:
        data = await reader.read(262144)
        loop.call_later(ONE_WAY_SECONDS, write, data)
        if not data:
            return


@contextlib.asynccontextmanager
async def delayed_relay(port: int) -> AsyncIterator[str]:
    """The URL of a relay to `port` of this machine."""
    tasks: list[asyncio.Task[None]] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port, limit=HELD_BYTES)
        tasks.append(asyncio.create_task(forward(reader, far_writer)))
        tasks.append(asyncio.create_task(forward(far_reader, writer)))

    server = await asyncio.start_server(relay, "127.0.0.1", 0, limit=HELD_BYTES)
    try:
        yield f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()


async def growing_window() -> Figure:
    """The rate after ten round trips, as a share of the largest window per round trip."""
    limits = Limits(receive_window=262144, max_receive_window=LARGEST_WINDOW)
    received = 0
    began = asyncio.Event()

    async def read(session: YamuxSession) -> None:
        nonlocal received
        async for chunk in await session.accept():
            began.set()
            received += len(chunk)

    shares = []
    for _ in harness.EFFORT.round_numbers():
        began.clear()
        async with (
            polymux.yamux.serve(read, "tcp://127.0.0.1:0", limits=limits) as server,
            delayed_relay(server.port) as url,
        ):
            session = await polymux.connect(url, protocol="yamux", limits=limits)
            stream = await session.open()
            sending = asyncio.create_task(send_on(stream))
            await began.wait()
            await asyncio.sleep(ROUND_TRIPS_TO_GROW * ROUND_TRIP)
            before, start = received, time.monotonic()
            await asyncio.sleep(5 * ROUND_TRIP)
            rate = (received - before) / (time.monotonic() - start)
            shares.append(rate / (LARGEST_WINDOW / ROUND_TRIP))
            sending.cancel()
            session.abort()
    name = "yamux, a window that grows, after ten round trips of 80 ms"
    bound = Bound("of the largest window a round trip", REQUIRED_SHARE)
    return Figure(name, shares, "share", [bound], higher_is_better=True)


async def send_on(stream: polymux.Stream) -> None:
    while True:
        await stream.send(bytes(65536))
