"""A polymux stream as asyncio's own pair of StreamReader and StreamWriter."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError

READER_LIMIT_BYTES = 64 * 1024


class StreamTransport(asyncio.Transport):
    """What a StreamWriter writes to: the stream, with its flow control."""

    def __init__(self, stream: Stream, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self.stream = stream
        self.protocol = protocol
        self._loop = stream.session.loop
        self._closing = False
        self._reading = asyncio.Event()
        self._reading.set()
        self._paused = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Hand on what comes, to a protocol that knows by now whom to ask for a pause."""
        self.protocol.connection_made(self)
        self._pump_task = self._create_task(self.pump())

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def pump(self) -> None:
        """Hand on what comes, as fast as the reader takes it."""
        try:
            while True:
                await self._reading.wait()
                data = await self.stream.receive()
                if not data:
                    break
                self.protocol.data_received(data)
            self.protocol.eof_received()
        except PolymuxError as problem:
            self._report_lost(problem)

    def write(self, data: Any) -> None:
        if self._closing:
            return  # as asyncio's own transports do; `drain` tells
        try:
            self.stream.send_nowait(data)
        except PolymuxError as problem:
            self._report_lost(problem)
            return
        if not self._paused and self.stream.send_would_block():
            self._paused = True
            self.protocol.pause_writing()
            self._create_task(self._resume_when_writable())

    async def _resume_when_writable(self) -> None:
        await self.stream.drain()
        self._paused = False
        if not self._closing:
            self.protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing:
            self._create_task(self.stream.end())

    def close(self) -> None:
        """What was written still leaves; nothing more is read."""
        if not self._closing:
            self._create_task(self.stream.close())
            self._report_lost(None)

    def abort(self) -> None:
        if not self._closing:
            self.stream.abort()
            self._report_lost(None)

    def _report_lost(self, problem: PolymuxError | None) -> None:
        if not self._closing:
            self._closing = True
            error = None if problem is None else ConnectionResetError(str(problem))
            self._loop.call_soon(self.protocol.connection_lost, error)
            # None: a loop with eager tasks, and the pump itself has found the stream given up.
            if self._pump_task is not None and self._pump_task is not asyncio.current_task():
                self._pump_task.cancel()

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
    """The stream as a StreamReader and a StreamWriter, for code that wants those.

    A reset, or the end of the session, is a ConnectionResetError there, never an end of data.
    """
    loop = stream.session.loop
    reader = asyncio.StreamReader(limit=READER_LIMIT_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = StreamTransport(stream, protocol)
    transport.start()
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
