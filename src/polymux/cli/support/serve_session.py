"""What `polymux serve` does with a session: each of its streams in a task of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from types import TracebackType

from polymux.aio import Call, MinmuxSession, OmnistreamsSession, Session, Stream
from polymux.cli.support.output import json_line, warn
from polymux.cli.support.peer_io import as_text, harmless
from polymux.cli.support.received_files import ReceivedFile, ReceivedFiles
from polymux.cli.support.stream_files import CannotWrite
from polymux.core.errors import PolymuxError
from polymux.text.sanitize import visible


class Job:
    """What is done with every stream of every session. `broken`: why that cannot go on, if so."""

    def __init__(
        self, act: str, as_json: bool, files: ReceivedFiles | None, numbers: tuple[int, ...]
    ) -> None:
        self.echoes = act == "echo"
        self.shows = act == "print" and files is None
        self.files = files
        self.numbers = numbers
        self.as_json = as_json or not sys.stdout.isatty()
        self.broken: BaseException | None = None

    def show(self, label: str, name: str, data: bytes) -> None:
        if self.as_json:
            json_line({"stream": label, "name": name, **as_text(data)})
        else:
            head = visible(f"{label} {name}".strip(), 60)
            for line in harmless(data).removesuffix("\n").split("\n"):
                sys.stdout.write(f"{head}> {line}\n")
        sys.stdout.flush()


class Taking:
    """One stream that is being read: shown, saved or dropped. Use as a context."""

    def __init__(self, visit: Visit, stream: Stream) -> None:
        job = visit.job
        self.visit = visit
        self.label = stream.record.label()
        self.name = stream.name
        self.file: ReceivedFile | None = None
        if job.files is not None:
            self.file = job.files.begin(stream.session.peer, self.label, self.name)

    def put(self, data: bytes) -> None:
        self.visit.octets += len(data)
        if self.file is not None:
            self.file.put(data)
        elif self.visit.job.shows:
            self.visit.job.show(self.label, self.name, data)

    def __enter__(self) -> Taking:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.file is not None:
            self.file.close("ended" if error is None else str(error) or "given up")


class Visit:
    """One session, served to its end by `run`; `streams` and `octets` are what came."""

    def __init__(self, job: Job, session: Session) -> None:
        self.job = job
        self.session = session
        self.streams = 0
        self.octets = 0

    async def run(self) -> None:
        session = self.session
        async with asyncio.TaskGroup() as tasks:
            try:
                if isinstance(session, MinmuxSession):
                    for number in self.job.numbers:
                        tasks.create_task(self.safely(self.items(session, number)))
                    await session.wait_closed()
                else:
                    async for stream in session.incoming:
                        tasks.create_task(self.safely(self.stream(stream)))
            except PolymuxError as problem:
                warn(f"{session.peer}: {problem}")

    async def safely(self, work: Coroutine[object, object, None]) -> None:
        """What happens to one stream is said, and is no other's concern."""
        try:
            await work
        except (CannotWrite, OSError) as problem:
            self.job.broken = problem
            self.session.abort("this side cannot write what it gets")
        except PolymuxError as problem:
            warn(f"{self.session.peer}: {problem}")

    async def stream(self, stream: Stream) -> None:
        session, echoes = self.session, self.job.echoes
        if isinstance(stream, Call):
            with self.taking(stream) as taking:
                question = await stream.read()
                taking.put(question)
                await stream.reply(question if echoes else b"")
        elif isinstance(session, OmnistreamsSession):
            back = await session.open(stream.record.name or b"") if echoes else None
            await self.take(stream, back)
        else:
            await self.take(stream, stream if echoes else None)
            await stream.end()

    async def items(self, session: MinmuxSession, number: int) -> None:
        """A stream of the dialer's; what comes goes back on the next id."""
        receiver = session.receiver(number)
        await self.take(receiver, session.sender(number + 1) if self.job.echoes else None)

    async def take(self, stream: Stream, back: Stream | None) -> None:
        """Read a stream to its end, sending it back as it comes."""
        with self.taking(stream) as taking:
            async for piece in stream:
                taking.put(piece)
                if back is not None:
                    await back.send(piece)
            if back is not None:
                await back.end()

    def taking(self, stream: Stream) -> Taking:
        self.streams += 1
        return Taking(self, stream)
