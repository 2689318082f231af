"""A session over the standard input and output of this process (`stdio:`)."""

import asyncio
import os
import sys
from collections.abc import Callable

from polymux.aio.transports.pipe_pair import PipePairTransport
from polymux.live.errors import Unreachable
from polymux.live.session.session import Session


class StdinProtocol(asyncio.Protocol):
    """Passes standard input to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pipe: PipePairTransport | None = None
        self.closed: asyncio.Future[None] = session.loop.create_future()

    def data_received(self, data: bytes) -> None:
        self.session.data_received(data)

    def eof_received(self) -> bool:
        if self.pipe is not None:
            self.pipe.on_input_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)


class StdoutProtocol(asyncio.BaseProtocol):
    """Passes the flow control of standard output to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.pipe: PipePairTransport | None = None
        self.closed: asyncio.Future[None] = session.loop.create_future()

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)
        if self.pipe is not None:
            self.pipe.on_output_lost(exc)


async def open_stdio_session(make: Callable[[], Session]) -> Session:
    """Start a session over standard input and output.

    When the session has ended, both descriptors have their blocking mode back; they are not closed.

    Raises:
        Unreachable: Standard input or output is a regular file.
    """
    loop = asyncio.get_running_loop()
    session = make()
    descriptors = [sys.stdin.fileno(), sys.stdout.fileno()]
    blocking = [os.get_blocking(descriptor) for descriptor in descriptors]
    source = os.fdopen(os.dup(descriptors[0]), "rb", 0)
    target = os.fdopen(os.dup(descriptors[1]), "wb", 0)
    opened: list[asyncio.BaseTransport] = []
    try:
        reader, stdin_protocol = await loop.connect_read_pipe(
            lambda: StdinProtocol(session), source
        )
        opened.append(reader)
        reader.pause_reading()
        writer, stdout_protocol = await loop.connect_write_pipe(
            lambda: StdoutProtocol(session), target
        )
        opened.append(writer)
    except BaseException as problem:
        for transport in opened:
            transport.close()
        source.close()
        target.close()
        if isinstance(problem, ValueError):
            raise Unreachable(
                "stdio: needs pipes, sockets or a terminal as standard input and output, no files"
            ) from None
        raise
    pipe = PipePairTransport(session, reader, writer)
    stdin_protocol.pipe = stdout_protocol.pipe = pipe
    both_closed = asyncio.gather(stdin_protocol.closed, stdout_protocol.closed)

    def finish(_: object) -> None:
        for descriptor, was_blocking in zip(descriptors, blocking, strict=True):
            os.set_blocking(descriptor, was_blocking)
        pipe.on_pipes_closed()

    both_closed.add_done_callback(finish)
    session.connection_made(pipe)
    reader.resume_reading()
    return session
