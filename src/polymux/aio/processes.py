"""Sessions over a child's standard streams (`exec:`) and over our own (`stdio:`)."""

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any

from .session import Session


class Duplex(asyncio.Transport):
    """Two pipes, one in and one out, as the one transport a session wants."""

    def __init__(
        self, session: Session, reader: Any, writer: Any, stop: Callable[[], None]
    ) -> None:
        super().__init__()
        self._session = session
        self._reader = reader
        self._writer = writer
        self._stop = stop
        self._closing = False

    def write(self, data: Any) -> None:
        self._writer.write(data)

    def writelines(self, parts: Any) -> None:
        self._writer.write(b"".join(parts))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.finish(None)

    def abort(self) -> None:
        self.finish(None)

    def finish(self, error: Exception | None) -> None:
        if not self._closing:
            self._closing = True
            self._writer.close()
            self._reader.close()
            self._stop()
            self._session.loop.call_soon(self._session.connection_lost, error)

    def pause_reading(self) -> None:
        self._reader.pause_reading()

    def resume_reading(self) -> None:
        self._reader.resume_reading()

    def is_reading(self) -> bool:
        return not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._writer.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return int(self._writer.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class Child(asyncio.SubprocessProtocol):
    """Hands a child's output to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.duplex: Duplex | None = None
        self.stdin: Any = None

    def pipe_data_received(self, fd: int, data: bytes | str) -> None:
        if fd == 1 and isinstance(data, bytes):
            self.session.data_received(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            self.session.eof_received()
        if self.duplex is not None:
            self.duplex.finish(exc)

    def process_exited(self) -> None:
        if self.duplex is not None:
            self.duplex.finish(None)

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()


async def start_process(command: tuple[str, ...], make: Callable[[], Session]) -> Session:
    """Start a child and talk over its standard input and output; its error output is ours."""
    loop = asyncio.get_running_loop()
    session = make()
    transport, child = await loop.subprocess_exec(
        lambda: Child(session), *command, stdin=-1, stdout=-1, stderr=None
    )

    def stop() -> None:
        if transport.get_returncode() is None:
            loop.call_later(1.0, end_child, transport)
        else:
            transport.close()

    child.duplex = Duplex(
        session, transport.get_pipe_transport(1), transport.get_pipe_transport(0), stop
    )
    session.connection_made(child.duplex)
    return session


def end_child(transport: asyncio.SubprocessTransport) -> None:
    """A child that does not end when its input does is terminated."""
    if transport.get_returncode() is None:
        transport.terminate()
    transport.close()


class Input(asyncio.Protocol):
    """Hands our standard input to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.duplex: Duplex | None = None

    def data_received(self, data: bytes) -> None:
        self.session.data_received(data)

    def eof_received(self) -> bool:
        self.session.eof_received()
        if self.duplex is not None:
            self.duplex.close()
        return False


class Output(asyncio.BaseProtocol):
    """Passes the flow control of our standard output to the session."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def pause_writing(self) -> None:
        self.session.pause_writing()

    def resume_writing(self) -> None:
        self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        return


async def use_stdio(make: Callable[[], Session]) -> Session:
    """Talk over our own standard input and output."""
    loop = asyncio.get_running_loop()
    session = make()
    source = os.fdopen(os.dup(sys.stdin.fileno()), "rb", 0)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)
    reader, taking = await loop.connect_read_pipe(lambda: Input(session), source)
    writer, _ = await loop.connect_write_pipe(lambda: Output(session), target)
    taking.duplex = Duplex(session, reader, writer, lambda: None)
    session.connection_made(taking.duplex)
    return session
