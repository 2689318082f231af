"""Adapts a stream to asyncio's `StreamReader` and `StreamWriter`."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from polymux.core.errors import PolymuxError
from polymux.live.streams.duplex import Stream

READER_LIMIT_BYTES = 64 * 1024


class StreamTransport(asyncio.Transport):
    """An asyncio transport over a stream, with its flow control in both directions."""

    def __init__(self, stream: Stream, protocol: asyncio.StreamReaderProtocol) -> None:
        super().__init__()
        self.stream = stream
        self.protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._reading = asyncio.Event()
        self._reading.set()
        self._paused = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Connect the protocol and start to forward received data.

        Not in `__init__`: the reader must know the transport before it can pause it.
        """
        self.protocol.connection_made(self)
        self._pump_task = self._create_task(self.pump())

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def pump(self) -> None:
        """Forward received data to the protocol while reading is not paused."""
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
            return  # like asyncio's own transports; `StreamWriter.drain` raises
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
        """Close the stream: written data is still sent, unread data is discarded."""
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
            # None: with eager tasks, the pump may find the stream aborted before `start` returns.
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
    """Return a StreamReader and a StreamWriter for a stream, for code that expects these.

    A reset of the stream or a lost session raises ConnectionResetError there; it never looks like
    the end of the data. Call it from the event loop of the session.

    Args:
        stream: A duplex stream. Use only the returned pair from then on.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=READER_LIMIT_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport = StreamTransport(stream, protocol)
    transport.start()
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
