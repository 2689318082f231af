"""What is typed into `polymux serve` goes to the stream that was chosen there."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from polymux.aio import Call, Stream
from polymux.cli.support.output import plural, warn
from polymux.cli.support.peer_io import StdinReader
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.text.sanitize import escape_hidden

HELP = "/list the streams, /switch STREAM, /end or /reset it; other lines are sent to it"
MAX_NAME_SHOWN = 40  # characters
MAX_WAITING_LINES = 16  # of one stream whose peer grants no credit
PATIENCE_SECONDS = 1.0  # of a line for room among them


class Recipient:
    """A stream that can be typed to; what is typed is sent by a task of its own.

    Args:
        name: Its name at the terminal.
        stream: Where lines are sent.
    """

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self.stream = stream
        self.reply: asyncio.Future[bytes] | None = None  # of a request: the line that answers it
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING_LINES)
        self._sender: asyncio.Task[None] | None = None
        self._stuck = False  # nothing was sent since a line found no room

    async def add(self, line: bytes | None) -> None:
        """Send a line, or end the stream (None), after what was typed before.

        If the peer does not take what was typed before, the line is refused with a message.
        """
        if self.reply is not None:
            if not self.reply.done():
                self.reply.set_result(line or b"")
            return
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_lines())
        try:
            if self._stuck:
                self._lines.put_nowait(line)
            else:
                await asyncio.wait_for(self._lines.put(line), PATIENCE_SECONDS)
        except (asyncio.QueueFull, TimeoutError):
            self._stuck = True
            warn(f"{self.name}: not sent: its peer does not take what was typed before; /reset it")

    async def _send_lines(self) -> None:
        try:
            while (line := await self._lines.get()) is not None:
                await self.stream.send(line + b"\n")
                self._stuck = False
            await self.stream.end()
        except PolymuxError as problem:
            warn(f"{self.name}: {problem}")

    def reset(self) -> None:
        """Reset the stream; a request is dropped without a reply."""
        if isinstance(self.stream, Call):
            self.stream.drop("reset at the terminal")
        else:
            self.stream.abort_with_reason("reset at the terminal")

    def close(self) -> None:
        """Drop the lines that were not sent, with a message."""
        if self._sender is not None:
            self._sender.cancel()
        if not self._lines.empty():
            warn(f"{self.name}: {plural(self._lines.qsize(), 'line')} not sent: it has ended")


class TypedLines:
    """The streams of all sessions that can be typed to.

    The first one is chosen at first. When the chosen one ends, none is, until /switch: a line that
    was meant for one peer must not reach another.
    """

    def __init__(self) -> None:
        self._recipients: dict[str, Recipient] = {}
        self._chosen: Recipient | None = None
        self._was_chosen = False  # one was, at any time

    @contextmanager
    def offered(self, name: str, stream: Stream) -> Iterator[Recipient]:
        """Offer a stream while the context lasts.

        Args:
            name: Its name here; a number is added while another stream has the same.
            stream: Where lines are sent.
        """
        unique, number = name, 1
        while unique in self._recipients:
            number += 1
            unique = f"{name}:{number}"
        recipient = self._recipients[unique] = Recipient(unique, stream)
        if not self._was_chosen:
            self._choose(recipient)
        try:
            yield recipient
        finally:
            recipient.close()
            del self._recipients[unique]
            if self._chosen is recipient:
                self._chosen = None
                warn(f"{unique} has ended, and no stream is chosen: /switch chooses one")

    def _choose(self, recipient: Recipient) -> None:
        self._chosen, self._was_chosen = recipient, True

    async def reply(self, name: str, request: Call) -> bytes:
        """The line that is typed as the reply to a request.

        Raises:
            StreamAborted: The request was cancelled, or reset at the terminal.
            SessionClosed: The session has ended.
        """
        typed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def wait_typed() -> None:
            await typed

        with self.offered(name, request) as recipient:
            recipient.reply = typed
            waiting = asyncio.create_task(wait_typed())
            closed = asyncio.create_task(request.session.wait_closed())
            request.task = waiting  # cancelled with the request, and `typed` with it
            request.wake_all()  # cancels it if the request was cancelled before
            try:
                await asyncio.wait([waiting, closed], return_when="FIRST_COMPLETED")
                if typed.done() and not typed.cancelled():
                    return typed.result()
                raise request.send_error or SessionClosed(f"{request}: the session has ended")
            finally:
                request.task = None
                waiting.cancel()
                closed.cancel()

    async def run(self) -> None:
        """Read lines until the end of the input; in the background, wait for the foreground."""
        warn(HELP)
        # Ignored, reading in the background fails instead of stopping the process.
        former = signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        try:
            async for line in StdinReader(lines=True):
                await self.run_line(line)
                await asyncio.sleep(0)  # lets what was typed be sent before more is
        finally:
            signal.signal(signal.SIGTTIN, former)

    async def run_line(self, line: bytes) -> None:
        """Do what a line says."""
        word, _, argument = line.decode("utf-8", "replace").strip().partition(" ")
        if word == "/list":
            for name, recipient in self._recipients.items():
                mark = "*" if recipient is self._chosen else " "
                shown = escape_hidden(recipient.stream.name, MAX_NAME_SHOWN)
                warn(f"{mark} {name} {shown}".rstrip())
        elif word == "/switch" and argument in self._recipients:
            self._choose(self._recipients[argument])
        elif word.startswith("/") and word not in ("/end", "/reset"):
            warn(HELP)
        elif self._chosen is None:
            warn("no stream is chosen: /list shows them, /switch chooses one")
        elif word == "/reset":
            self._chosen.reset()
        else:
            await self._chosen.add(None if word == "/end" else line)
