"""What the demo puts around its peers: a thin line, and a tape to record on."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from polymux.aio.urls import Address, parse_url
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.capture.synthesis.tcp_connection import PacketSink

CHUNK_BYTES = 16384  # bytes of the dialer that pass a thin line at once
CHUNK_INTERVAL = 0.02  # and the seconds before the next


class ThrottledRelay:
    """A relay to `upstream` on which the dialer's bytes pass at 800 KiB a second.

    The last bytes before a pause are never cut small: what was written together at the end arrives
    together. The way back is as wide as loopback.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = parse_url(upstream)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ThrottledRelay:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        near = self.upstream
        self.url = str(Address(near.scheme, "127.0.0.1", port, near.path))
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        there, back = await asyncio.open_connection(self.upstream.host, self.upstream.port)
        for each in (self._relay_throttled(reader, back), self._relay_unlimited(there, writer)):
            task = asyncio.create_task(each)
            self._tasks.add(task)

    async def _relay_throttled(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Take all that comes at once, pass it on little by little."""
        waiting = bytearray()
        more = asyncio.create_task(reader.read(1 << 20))
        open_still = True
        while open_still or waiting:
            if open_still and (more.done() or not waiting):
                data = await more
                waiting += data
                open_still = bool(data)
                if open_still:
                    more = asyncio.create_task(reader.read(1 << 20))
                continue
            size = CHUNK_BYTES if len(waiting) > 2 * CHUNK_BYTES else len(waiting)
            writer.write(waiting[:size])
            del waiting[:size]
            if size == CHUNK_BYTES:
                await asyncio.sleep(CHUNK_INTERVAL)
        writer.close()

    async def _relay_unlimited(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


class MemoryCapture:
    """A recording held in memory until it is known to be good. A `PacketSink`."""

    def __init__(self) -> None:
        self._bursts: list[PacketBurst] = []

    @property
    def comment_epoch(self) -> int:
        return 0

    def burst(self, burst: PacketBurst) -> None:
        self._bursts.append(burst)

    def copy_to(self, sink: PacketSink) -> None:
        for burst in self._bursts:
            sink.burst(burst)
