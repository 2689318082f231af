"""The testee: a peer made of polymux that echoes streams and obeys the tester's commands.

A command is the name of a stream (mplex, Nerdbank), its metadata (omnistreams), or, after
`testee: `, the first line of its content (yamux) or the request (Streamux). Anything that is no
command is echoed. Minmux has no names, so its streams have fixed roles (`MINMUX_ROLES`).

    echo           send everything back, and end when the other side ends
    sink           read everything, and end
    source N       send N bytes, and end (omnistreams: N messages of one byte)
    slow BPS       echo at most this many bytes a second
    never-read     read nothing
    half-close     end at once, and read on
    reset N        send N bytes and abort the stream at once
    open N         open N streams
    report         send how earlier streams of the session ended, a line for each
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine

from polymux.aio import (
    Call,
    MinmuxSession,
    OmnistreamsSession,
    Server,
    Session,
    Stream,
    StreamuxSession,
    Unreachable,
    YamuxSession,
    connect,
    serve,
)
from polymux.core.errors import PolymuxError, SessionClosed, StreamAborted
from polymux.core.side import DIALER

PREFIX = b"testee: "
COMMANDS = (
    "echo", "sink", "source", "slow", "never-read", "half-close", "reset", "open", "report",
)  # fmt: skip
FILLER = b"z"
PIECE = FILLER * 4096
MAX_SOURCE = 1 << 30  # bytes that a command may ask for
SLOW_PIECES_PER_SECOND = 20
ECHO, SINK, NEVER_READ, SOURCE = "echo", "sink", "never-read", "source"
MINMUX_ROLES = (ECHO, ECHO, ECHO, ECHO, ECHO, SINK, NEVER_READ, SOURCE, ECHO)
"""The role of each pair of Minmux streams, from the first: what is done with the one that the
testee reads, and sent on the one after it."""


class Command:
    """A command: its word, and its number, 0 if it has none."""

    def __init__(self, text: bytes) -> None:
        word, _, number = text.decode(errors="replace").strip().partition(" ")
        known = word in COMMANDS
        self.word = word if known else ECHO
        self.number = min(int(number), MAX_SOURCE) if known and number.isdecimal() else 0


class TesteeSession:
    """One session of the testee."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.endings: list[str] = []

    async def run(self) -> None:
        """Serve until the session ends; errors of the peer are no errors of the testee."""
        session = self.session
        async with asyncio.TaskGroup() as tasks:
            with contextlib.suppress(PolymuxError):
                if isinstance(session, MinmuxSession):
                    for pair, role in enumerate(MINMUX_ROLES):
                        tasks.create_task(self._guard(self._items(session, pair, role)))
                    await session.wait_closed()
                    return
                async for stream in session.incoming:
                    tasks.create_task(self._guard(self._serve(stream)))

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        with contextlib.suppress(PolymuxError):
            await work

    async def _serve(self, stream: Stream) -> None:
        if isinstance(stream, Call):
            await self._answer(stream)
        elif isinstance(self.session, OmnistreamsSession):
            await self._messages(self.session, stream)
        else:
            await self._duplex(stream)

    # mplex, Nerdbank, yamux

    async def _duplex(self, stream: Stream) -> None:
        first = b""
        if isinstance(self.session, YamuxSession):
            first = await stream.receive()
            line, newline, rest = first.partition(b"\n")
            if line.startswith(PREFIX) and newline:
                command, first = Command(line[len(PREFIX) :]), rest
            else:
                command = Command(b"")
        else:
            command = Command(stream.state.name or b"")
        try:
            await self._obey(command, stream, first)
        except StreamAborted:
            self.endings.append(f"{command.word}: aborted")
            raise
        except SessionClosed:
            raise
        self.endings.append(f"{command.word}: ended")

    async def _obey(self, command: Command, stream: Stream, first: bytes) -> None:
        word = command.word
        if word == "source":
            await self._fill(stream, command.number)
        elif word == "never-read":
            await self.session.wait_closed()
            return
        elif word == "half-close":
            await stream.end()
            await self._discard(stream)
            return
        elif word == "reset":
            await self._fill(stream, command.number)
            stream.abort()
            return
        elif word == "open":
            opening = [self.session.open() for _ in range(command.number)]
            await asyncio.gather(*opening, return_exceptions=True)
        elif word == "report":
            await stream.send("\n".join(self.endings).encode() + b"\n")
        elif word == "sink":
            await self._discard(stream)
        else:
            await self._echo(stream, first, command.number if word == "slow" else 0)
        await stream.end()

    async def _fill(self, stream: Stream, size: int) -> None:
        while size > 0:
            await stream.send(PIECE[:size])
            size -= len(PIECE)

    async def _discard(self, stream: Stream) -> None:
        async for _ in stream:
            pass

    async def _echo(self, stream: Stream, first: bytes, bytes_per_second: int) -> None:
        if first:
            await stream.send(first)
        size = max(1, bytes_per_second // SLOW_PIECES_PER_SECOND)
        async for data in stream:
            if not bytes_per_second:
                await stream.send(data)
                continue
            for start in range(0, len(data), size):
                await stream.send(data[start : start + size])
                await asyncio.sleep(1 / SLOW_PIECES_PER_SECOND)

    # The others

    async def _answer(self, call: Call) -> None:
        request = await call.read()
        if not request.startswith(PREFIX):
            await call.reply(request)
            return
        command = Command(request[len(PREFIX) :])
        if command.word == "source":
            await call.reply(FILLER * command.number)
        elif command.word == "open" and isinstance(self.session, StreamuxSession):
            for _ in range(command.number):
                exchange = await self.session.open()
                await exchange.send_message(b"opened")
            await call.reply(b"")
        elif command.word == "never-read":
            call.drop()
        elif command.word == "slow":
            for start in range(command.number):
                await call.send(FILLER * 16 + bytes([start % 256]))
                await asyncio.sleep(1 / SLOW_PIECES_PER_SECOND)
            await call.end()
        else:
            await call.reply(request)

    async def _messages(self, session: OmnistreamsSession, stream: Stream) -> None:
        metadata = stream.state.name or b""
        command = Command(metadata)
        if command.word == "never-read":
            await session.wait_closed()
        elif command.word == "sink":
            await self._discard(stream)
        elif command.word in ("source", "open"):
            sources = 1 if command.word == "source" else command.number
            messages = command.number if command.word == "source" else 0
            for _ in range(sources):
                back = await session.open(metadata)
                for _ in range(messages):
                    await back.send(FILLER)
                await back.end()
        else:
            back = await session.open(metadata)
            async for message in stream:
                await back.send(message)
            await back.end()

    async def _items(self, session: MinmuxSession, pair: int, role: str) -> None:
        """Serve a pair of Minmux streams: the one that is read, and the one after it."""
        first = 2 * pair + (1 if session.endpoint.side != DIALER else 2)
        if role == NEVER_READ:
            return
        if role == SOURCE:
            source = session.sender(first + 1)
            while True:
                await source.send(FILLER)
        items = session.receiver(first)
        if role == SINK:
            async for _ in items:
                pass
            return
        back = session.sender(first + 1)
        async for piece in items:
            await back.send(piece)
        await back.end()


async def serve_testee(url: str, protocol: str, tls: ssl.SSLContext | None = None) -> Server:
    """Listen as a testee.

    Raises:
        Unreachable: nothing can listen there.
    """
    return await serve(handle, url, protocol=protocol, tls=tls)


async def handle(session: Session) -> None:
    """Serve one session; the handler of `serve_testee`."""
    await TesteeSession(session).run()


async def dial_testee(
    url: str, protocol: str, tls: ssl.SSLContext | None = None, once: bool = False
) -> None:
    """Connect to a tester again and again, until nothing listens there any more.

    Args:
        url: where the tester listens.
        protocol: the protocol string.
        tls: the context for tls://.
        once: stop after the first session.

    Raises:
        Unreachable: the first connection could not be made.
    """
    connected = False
    while True:
        try:
            async with connect(url, protocol=protocol, tls=tls) as session:
                connected = True
                await TesteeSession(session).run()
                session.abort("the tester has ended the session")
        except Unreachable:
            if not connected:
                raise
            return
        except PolymuxError:
            connected = True  # the tester ended the session before it began
        if once:
            return
        await asyncio.sleep(0)
