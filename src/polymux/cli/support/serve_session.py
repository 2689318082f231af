"""How `polymux serve` handles a session: each of its streams in a task of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType

from polymux.aio import Call, MinmuxSession, OmnistreamsSession, Session, Stream
from polymux.cli.support.output import json_line, warn
from polymux.cli.support.peer_io import data_json, escape_terminal
from polymux.cli.support.queued_output import STUCK_SECONDS, wait_for_room
from polymux.cli.support.stream_files import CannotWrite, StreamFile, StreamFolder
from polymux.cli.support.typed_lines import TypedLines
from polymux.core.errors import PolymuxError
from polymux.text.sanitize import escape_hidden

OPENERS = {"d": "dialer", "a": "acceptor"}  # by the first letter of a stream's label


class ServeAction:
    """The options of `polymux serve`, shared by all sessions.

    `failure` is set when output can no longer be written; the command then stops.
    """

    def __init__(
        self, action: str, as_json: bool, files: StreamFolder | None, stream_ids: tuple[int, ...]
    ) -> None:
        self.echoes = action == "echo"
        self.prints = action == "print" and files is None
        self.files = files
        self.stream_ids = stream_ids
        self.as_json = as_json or not sys.stdout.isatty()
        self.failure: BaseException | None = None
        # On a terminal, what is typed goes to a stream.
        self.typed = (
            TypedLines()
            if self.prints and not self.as_json and sys.stdin is not None and sys.stdin.isatty()
            else None
        )
        self._reading: asyncio.Task[None] | None = None
        self.sessions = 0  # so far

    def read_typed(self) -> None:
        """Begin to read what is typed, on a terminal, until the event loop ends."""
        if self.typed is not None:
            self._reading = asyncio.create_task(self.typed.run())

    def print_data(self, label: str, name: str, data: bytes) -> None:
        if self.as_json:
            json_line({"stream": label, "name": name, **data_json(data)})
        else:
            head = escape_hidden(f"{label} {name}".strip(), 60)
            for line in escape_terminal(data).removesuffix("\n").split("\n"):
                sys.stdout.write(f"{head}> {line}\n")
        sys.stdout.flush()


class ReceivedStream:
    """Prints, saves or discards the data of one stream. Use as a context manager.

    A saved stream enters the manifest when the context ends.
    """

    def __init__(self, served: ServedSession, stream: Stream) -> None:
        self.served = served
        self.stream = stream
        self.label = stream.state.label()
        self.name = stream.name
        self.file: StreamFile | None = None
        if served.action.files is not None:
            self.file = served.action.files.create_file()

    async def add(self, data: bytes) -> None:
        self.served.received_bytes += len(data)
        if self.file is not None:
            self.file.write(data)
        elif self.served.action.prints:
            await wait_for_room(STUCK_SECONDS)
            shown = self.served.typed_name(self.stream)
            self.served.action.print_data(shown, self.name, data)

    def __enter__(self) -> ReceivedStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.file is not None and self.served.action.files is not None:
            name = self.stream.state.name
            facts = {
                "protocol": self.served.session.endpoint.protocol.name,
                "dialer": self.served.session.peer,
                "stream": self.label,
                "opener": OPENERS.get(self.label[:1]),
                "sender": "dialer",
                "name": self.name,
                "name_hex": name.hex() if name is not None else None,
                "ending": "ended" if error is None else str(error) or "aborted",
            }
            self.served.action.files.add_to_manifest(self.file, facts)


class ServedSession:
    """Serves one session; counts the streams and bytes received."""

    def __init__(self, action: ServeAction, session: Session) -> None:
        self.action = action
        self.session = session
        self.streams = 0
        self.received_bytes = 0
        action.sessions += 1
        self._number = action.sessions

    def typed_name(self, stream: Stream) -> str:
        """The label of a stream; on a terminal, with the session's number from the second on."""
        label = stream.state.label()
        return (
            label if self.action.typed is None or self._number == 1 else f"{label}/{self._number}"
        )

    async def run(self) -> None:
        """Serve until the session ends. Errors of the session are printed, not raised."""
        session = self.session
        async with asyncio.TaskGroup() as tasks:
            try:
                if isinstance(session, MinmuxSession):
                    for number in self.action.stream_ids:
                        tasks.create_task(self.run_guarded(self.serve_items(session, number)))
                    await session.wait_closed()
                else:
                    async for stream in session.incoming:
                        tasks.create_task(self.run_guarded(self.serve_stream(stream)))
            except PolymuxError as problem:
                warn(f"{session.peer}: {problem}")

    async def run_guarded(self, work: Coroutine[object, object, None]) -> None:
        """Run the task of one stream; print its error so that the other tasks go on."""
        try:
            await work
        except (CannotWrite, OSError) as problem:
            self.action.failure = problem
            self.session.abort("this side cannot write what it receives")
        except PolymuxError as problem:
            warn(f"{self.session.peer}: {problem}")

    async def serve_stream(self, stream: Stream) -> None:
        session, echoes = self.session, self.action.echoes
        if isinstance(stream, Call):
            with self.receive_stream(stream) as received:
                request = await stream.read()
                await received.add(request)
                if self.action.typed is not None:
                    name = self.typed_name(stream)
                    await stream.reply(await self.action.typed.reply(name, stream))
                else:
                    await stream.reply(request if echoes else b"")
        elif isinstance(session, OmnistreamsSession):
            back = await session.open(stream.state.name or b"") if echoes else None
            await self.copy_stream(stream, back)
        elif self.action.typed is not None:
            with self.action.typed.offered(self.typed_name(stream), stream):
                await self.copy_stream(stream, None)
            await stream.end()
        else:
            await self.copy_stream(stream, stream if echoes else None)
            await stream.end()

    async def serve_items(self, session: MinmuxSession, stream_id: int) -> None:
        """Read a Minmux stream of the dialer; echo it on the next id."""
        receiver = session.receiver(stream_id)
        await self.copy_stream(
            receiver, session.sender(stream_id + 1) if self.action.echoes else None
        )

    async def copy_stream(self, stream: Stream, back: Stream | None) -> None:
        """Read a stream to its end; send each piece back on `back`, if there is one."""
        with self.receive_stream(stream) as received:
            async for piece in stream:
                await received.add(piece)
                if back is not None:
                    await back.send(piece)
            if back is not None:
                await back.end()

    def receive_stream(self, stream: Stream) -> ReceivedStream:
        self.streams += 1
        return ReceivedStream(self, stream)
