"""The attacker's end of a connection: raw bytes on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterable

from tests.attacks import raw_frames as words

CHUNK = 64 * 1024


class Foe:
    """Sends arbitrary bytes. Unless `unread`, the server's data is read and kept."""

    def __init__(self, protocol: str, port: int) -> None:
        self.protocol = protocol
        self.port = port
        self.heard = bytearray()
        self.closed_at = 0.0
        self.quiet_at = 0.0  # when the last byte was sent
        self.unread = False
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter
        self._reader: asyncio.StreamReader

    async def dial(self, hello: bool = True, unread: bool = False) -> None:
        """Connect and send the handshake. `unread`: never read; smallest receive buffer."""
        self.unread = unread
        sock = socket.socket()
        if unread:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", self.port))
        self._reader, self._writer = await asyncio.open_connection(sock=sock, limit=4096)
        self._writer.transport.set_write_buffer_limits(high=CHUNK)
        if hello:
            await self.send(opening(self.protocol))
            if self.protocol == WS:
                await self._reader.readuntil(b"\r\n\r\n")
        if not unread:
            self._task = loop.create_task(self._listen())

    async def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._reader.read(CHUNK):
                self.heard += data
                if len(self.heard) > 1 << 20:
                    del self.heard[: 1 << 19]
        self.closed_at = time.monotonic()
        self._over.set()

    @property
    def closed(self) -> bool:
        return self._over.is_set() or self._writer.transport.is_closing()

    async def send(self, data: bytes) -> None:
        """Send in chunks; data that the server no longer accepts is dropped."""
        with contextlib.suppress(OSError):
            for start in range(0, len(data), CHUNK):
                self._writer.write(data[start : start + CHUNK])
                await self._writer.drain()
        self.quiet_at = time.monotonic()

    async def flood(self, pieces: Iterable[bytes]) -> int:
        """Send pieces until the server has closed. Return how many it accepted."""
        sent = 0
        batch = bytearray()
        for piece in pieces:
            batch += piece
            sent += 1
            if len(batch) >= CHUNK:
                await self.send(bytes(batch))
                batch.clear()
                await asyncio.sleep(0)
                if self.closed:
                    break
        await self.send(bytes(batch))
        return sent

    async def stuff(self, data: bytes, seconds: float) -> None:
        """Send the same data repeatedly until the server accepts none for `seconds`."""
        with contextlib.suppress(OSError, TimeoutError):
            while not self.closed:
                async with asyncio.timeout(seconds):
                    self._writer.write(data)
                    await self._writer.drain()
        self.quiet_at = time.monotonic()

    async def wait_closed(self, seconds: float) -> bool:
        """Whether the server closes within this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self._over.is_set()

    async def hear(self, least: int, seconds: float = 20.0) -> bytes:
        """Wait for this many bytes from the server, or for its end."""
        async with asyncio.timeout(seconds):
            while len(self.heard) < least and not self._over.is_set():
                await asyncio.sleep(0.005)
        return bytes(self.heard)

    async def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


WS = "omnistreams:carrier=websocket"


def opening(protocol: str) -> bytes:
    """The handshake of a dialer."""
    if protocol.startswith("nerdbank"):
        return words.HELLO[int(protocol[-1])]
    if protocol == "streamux":
        return words.INITIATOR
    return words.UPGRADE if protocol == WS else b""
