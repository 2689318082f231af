"""The endpoints of the floors: raw bytes and bare WebSockets under asyncio, without a protocol.

A transfer begins with eight bytes (or one message) with the number of bytes (or messages) that
follow; the receiver answers with one byte (or message) when all have arrived. The echo sends back
what it receives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

from librt.strings import BytesWriter

from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import Message
from polymux.core.websocket.frames import write_binary

HIGH_WATER_BYTES = 256 * 1024  # like polymux's sessions
COUNT_BYTES = 8


class ByteCounter(asyncio.Protocol):
    """Counts bytes: reads their number, then the bytes, and answers with one byte."""

    def __init__(self) -> None:
        self.left = 0
        self.partial_count = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        size = len(data)
        if not self.left:
            self.partial_count += data
            if len(self.partial_count) < COUNT_BYTES:
                return
            self.left = int.from_bytes(self.partial_count[:COUNT_BYTES], "big")
            size = len(self.partial_count) - COUNT_BYTES
            self.partial_count = b""
        self.left -= size
        if not self.left:
            self.transport.write(b"!")


class Echo(asyncio.Protocol):
    """Sends back what it receives."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Discard(asyncio.Protocol):
    """Reads and discards."""


class RawClient(asyncio.Protocol):
    """The dialing side."""

    def __init__(self) -> None:
        self.can_write = True
        self.writable: asyncio.Future[None] | None = None
        self.on_data: Callable[[bytes], None] = lambda data: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def pause_writing(self) -> None:
        self.can_write = False
        self.writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self.can_write = True
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.on_data(data)

    async def wait_writable(self) -> None:
        if not self.can_write:
            assert self.writable is not None
            await self.writable


class RawWebSocket(RawClient):
    """polymux's WebSocket frames directly on asyncio; no handshake, no streams, no credit.

    The floor of omnistreams: the same framing, mask and decoder with nothing on top of them.
    """

    def __init__(self, dials: bool, on_message: Callable[[RawWebSocket, bytes], None]) -> None:
        super().__init__()
        self.dials = dials
        self.on_message = on_message
        self.decoder = Decoder(1 if dials else 0)

    def data_received(self, data: bytes) -> None:
        self.decoder.feed(data)
        for item in self.decoder.take():
            if isinstance(item, Message):
                self.on_message(self, item.data)

    def send(self, messages: list[bytes]) -> None:
        """Send all of them in one write."""
        out = BytesWriter()
        keys = os.urandom(4 * len(messages)) if self.dials else b""
        for i, message in enumerate(messages):
            write_binary(out, message, keys[4 * i : 4 * i + 4] if self.dials else None)
        self.transport.write(out.getvalue())


class MessageCounter:
    """Counts messages: reads their number, then the messages, and answers with one."""

    def __init__(self) -> None:
        self.left = 0

    def is_last(self, message: bytes) -> bool:
        """Whether all have arrived."""
        if not self.left:
            self.left = int.from_bytes(message, "big")
            return False
        self.left -= 1
        return self.left == 0


def counting_socket() -> RawWebSocket:
    counted = MessageCounter()

    def heard(socket: RawWebSocket, message: bytes) -> None:
        if counted.is_last(message):
            socket.send([b"!"])

    return RawWebSocket(False, heard)


def listener(
    make: Callable[[], asyncio.Protocol],
) -> Callable[[], Awaitable[tuple[Any, int]]]:
    async def listen() -> tuple[Any, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(make, "127.0.0.1", 0)
        return server, server.sockets[0].getsockname()[1]

    return listen


async def listen_websockets() -> tuple[Any, int]:
    """The same with the PyPI library `websockets`."""
    from websockets.asyncio.server import serve

    async def handle(connection: Any) -> None:
        counted = MessageCounter()
        async for message in connection:
            if counted.is_last(message):
                await connection.send(b"!")

    server = await serve(handle, "127.0.0.1", 0, compression=None, max_size=None)
    return server, next(iter(server.sockets)).getsockname()[1]


LISTENERS: dict[str, Callable[[], Awaitable[tuple[Any, int]]]] = {
    "sink": listener(Discard),
    "tally": listener(ByteCounter),
    "raw-echo": listener(Echo),
    "raw-websocket": listener(counting_socket),
    "websockets": listen_websockets,
}
