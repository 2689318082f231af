"""What `polymux serve` does with a session: each of its streams in a task of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType

from polymux.aio import Call, MinmuxSession, OmnistreamsSession, Session, Stream
from polymux.cli.support.output import json_line, warn
from polymux.cli.support.peer_io import data_json, escape_terminal
from polymux.cli.support.received_files import ReceivedFile, ReceivedFiles
from polymux.cli.support.stream_files import CannotWrite
from polymux.core.errors import PolymuxError
from polymux.text.sanitize import escape_hidden


class ServeAction:
    """What is done with every stream of every session. `broken`: why that cannot go on, if so."""

    def __init__(
        self, action: str, as_json: bool, files: ReceivedFiles | None, stream_ids: tuple[int, ...]
    ) -> None:
        self.echoes = action == "echo"
        self.prints = action == "print" and files is None
        self.files = files
        self.stream_ids = stream_ids
        self.as_json = as_json or not sys.stdout.isatty()
        self.failure: BaseException | None = None

    def print_data(self, label: str, name: str, data: bytes) -> None:
        if self.as_json:
            json_line({"stream": label, "name": name, **data_json(data)})
        else:
            head = escape_hidden(f"{label} {name}".strip(), 60)
            for line in escape_terminal(data).removesuffix("\n").split("\n"):
                sys.stdout.write(f"{head}> {line}\n")
        sys.stdout.flush()


class ReceivedStream:
    """One stream that is being read: shown, saved or dropped. Use as a context."""

    def __init__(self, served: ServedSession, stream: Stream) -> None:
        job = served.action
        self.served = served
        self.label = stream.state.label()
        self.name = stream.name
        self.file: ReceivedFile | None = None
        if job.files is not None:
            self.file = job.files.create_file(stream.session.peer, self.label, self.name)

    def add(self, data: bytes) -> None:
        self.served.received_bytes += len(data)
        if self.file is not None:
            self.file.write(data)
        elif self.served.action.prints:
            self.served.action.print_data(self.label, self.name, data)

    def __enter__(self) -> ReceivedStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.file is not None:
            self.file.close("ended" if error is None else str(error) or "given up")


class ServedSession:
    """One session, served to its end by `run`; `streams` and `bytes` are what came."""

    def __init__(self, action: ServeAction, session: Session) -> None:
        self.action = action
        self.session = session
        self.streams = 0
        self.received_bytes = 0

    async def run(self) -> None:
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
        """What happens to one stream is said, and is no other's concern."""
        try:
            await work
        except (CannotWrite, OSError) as problem:
            self.action.failure = problem
            self.session.abort("this side cannot write what it gets")
        except PolymuxError as problem:
            warn(f"{self.session.peer}: {problem}")

    async def serve_stream(self, stream: Stream) -> None:
        session, echoes = self.session, self.action.echoes
        if isinstance(stream, Call):
            with self.receive_stream(stream) as taking:
                question = await stream.read()
                taking.add(question)
                await stream.reply(question if echoes else b"")
        elif isinstance(session, OmnistreamsSession):
            back = await session.open(stream.state.name or b"") if echoes else None
            await self.copy_stream(stream, back)
        else:
            await self.copy_stream(stream, stream if echoes else None)
            await stream.end()

    async def serve_items(self, session: MinmuxSession, stream_id: int) -> None:
        """A stream of the dialer's; what comes goes back on the next id."""
        receiver = session.receiver(stream_id)
        await self.copy_stream(
            receiver, session.sender(stream_id + 1) if self.action.echoes else None
        )

    async def copy_stream(self, stream: Stream, back: Stream | None) -> None:
        """Read a stream to its end, sending it back as it comes."""
        with self.receive_stream(stream) as taking:
            async for piece in stream:
                taking.add(piece)
                if back is not None:
                    await back.send(piece)
            if back is not None:
                await back.end()

    def receive_stream(self, stream: Stream) -> ReceivedStream:
        self.streams += 1
        return ReceivedStream(self, stream)
