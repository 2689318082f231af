"""What is typed into `polymux serve` goes to the stream that was chosen there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from polymux.aio import Stream
from polymux.cli.support.output import warn
from polymux.cli.support.peer_io import StdinReader
from polymux.core.errors import PolymuxError
from polymux.text.sanitize import escape_hidden

HELP = "/list the streams, /switch STREAM, /end or /reset it; other lines are sent to it"
MAX_NAME_SHOWN = 40  # characters


class TypedLines:
    """The streams of all sessions that can be typed to; the first one is chosen at first.

    A stream is named by its label, or by its label and a number if another session has the same.
    """

    def __init__(self) -> None:
        self._streams: dict[str, Stream] = {}
        self._replies: dict[str, asyncio.Future[bytes]] = {}
        self._chosen = ""

    @contextmanager
    def offered(self, stream: Stream) -> Iterator[str]:
        """Offer a stream while the context lasts; yields its name here."""
        label = name = stream.state.label()
        number = 1
        while name in self._streams:
            number += 1
            name = f"{label}/{number}"
        self._streams[name] = stream
        if self._chosen not in self._streams:
            self._chosen = name
        try:
            yield name
        finally:
            del self._streams[name]

    async def reply(self, request: Stream) -> bytes:
        """The line that is typed as the reply to a request."""
        with self.offered(request) as name:
            reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._replies[name] = reply
            try:
                return await reply
            finally:
                del self._replies[name]

    async def run(self) -> None:
        """Read lines until the end of the input."""
        warn(HELP)
        async for line in StdinReader(lines=True):
            try:
                await self._run_line(line)
            except PolymuxError as problem:
                warn(str(problem))

    async def _run_line(self, line: bytes) -> None:
        word, _, argument = line.decode("utf-8", "replace").strip().partition(" ")
        if word == "/list":
            for name, stream in self._streams.items():
                mark = "*" if name == self._chosen else " "
                warn(f"{mark} {name} {escape_hidden(stream.name, MAX_NAME_SHOWN)}".rstrip())
        elif word == "/switch" and argument in self._streams:
            self._chosen = argument
        elif word.startswith("/") and word not in ("/end", "/reset"):
            warn(HELP)
        elif self._chosen not in self._streams:
            warn("no stream is chosen: /list shows them, /switch chooses one")
        else:
            await self._apply(word, line)

    async def _apply(self, word: str, line: bytes) -> None:
        """Send a line to the chosen stream, or end or reset it."""
        stream, reply = self._streams[self._chosen], self._replies.get(self._chosen)
        if word == "/reset":
            stream.abort_with_reason("reset at the terminal")
        elif reply is not None:
            if not reply.done():
                reply.set_result(b"" if word == "/end" else line)
        elif word == "/end":
            await stream.end()
        else:
            await stream.send(line + b"\n")
