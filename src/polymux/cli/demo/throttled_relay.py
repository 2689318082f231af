"""A relay with limited bandwidth and an in-memory capture, for the scenes of the demo."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.capture.synthesis.tcp_connection import PacketSink
from polymux.live.urls import Address, parse_url

CHUNK_BYTES = 16384  # bytes of the dialer that are forwarded at once
CHUNK_INTERVAL = 0.02  # seconds between chunks


class ThrottledRelay:
    """A relay to `upstream` that forwards the dialer's data at 800 KiB per second.

    The last two chunks before a pause are forwarded together, so that small messages at the end are
    not separated. The opposite direction is not limited.
    """

    def __init__(self, upstream: str) -> None:
        self.upstream = parse_url(upstream)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ThrottledRelay:
        self._server = await asyncio.start_server(self._on_connection, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = str(Address(self.upstream.scheme, "127.0.0.1", port, self.upstream.path))
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
        up_reader, up_writer = await asyncio.open_connection(self.upstream.host, self.upstream.port)
        for relay in (
            self._relay_throttled(reader, up_writer), self._relay_unlimited(up_reader, writer)
        ):  # fmt: skip
            self._tasks.add(asyncio.create_task(relay))

    async def _relay_throttled(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Read everything at once, forward it in chunks."""
        buffer = bytearray()
        next_read = asyncio.create_task(reader.read(1 << 20))
        is_open = True
        while is_open or buffer:
            if is_open and (next_read.done() or not buffer):
                data = await next_read
                buffer += data
                is_open = bool(data)
                if is_open:
                    next_read = asyncio.create_task(reader.read(1 << 20))
                continue
            size = CHUNK_BYTES if len(buffer) > 2 * CHUNK_BYTES else len(buffer)
            writer.write(buffer[:size])
            del buffer[:size]
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
    """A `PacketSink` that keeps packets in memory until they are copied to another sink."""

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
