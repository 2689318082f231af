"""A polymux stream as asyncio's own pair of StreamReader and StreamWriter."""

import asyncio
from typing import Any

from ..core.errors import PolymuxError
from .duplex import Stream

LIMIT = 64 * 1024


class StreamTransport(asyncio.Transport):
    """What a StreamWriter writes to: the stream, with its flow control."""

    def __init__(self, stream: Stream, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self.stream = stream
        self.protocol = protocol
        self._closing = False
        self._reading = asyncio.Event()
        self._reading.set()
        self._paused = False
        self._task = stream.session.loop.create_task(self.pump())

    async def pump(self) -> None:
        """Hand on what comes, as fast as the reader takes it."""
        error: Exception | None = None
        try:
            while True:
                await self._reading.wait()
                data = await self.stream.receive()
                if not data:
                    break
                self.protocol.data_received(data)
            self.protocol.eof_received()
            return
        except PolymuxError as problem:
            error = problem
        self._closing = True
        self.protocol.connection_lost(error)

    def write(self, data: Any) -> None:
        self.stream.send_nowait(bytes(data))
        if self.stream._must_wait() and not self._paused:
            self._paused = True
            self.protocol.pause_writing()
            self.stream.session.loop.create_task(self.resume())

    async def resume(self) -> None:
        await self.stream.drain()
        self._paused = False
        self.protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.stream._endpoint.end(self.stream.record)
        self.stream.session._flush_soon()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._task.cancel()
            self.stream.session.loop.create_task(self.stream.close())
            self.stream.session.loop.call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._task.cancel()
            self.stream.abort()
            self.stream.session.loop.call_soon(self.protocol.connection_lost, None)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    def is_reading(self) -> bool:
        return self._reading.is_set()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.stream if name == "polymux_stream" else default


def as_asyncio_streams(stream: Stream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The stream as a StreamReader and a StreamWriter, for code that wants those."""
    loop = stream.session.loop
    reader = asyncio.StreamReader(limit=LIMIT, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = StreamTransport(stream, protocol)
    protocol.connection_made(transport)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
