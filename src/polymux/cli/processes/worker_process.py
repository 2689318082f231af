"""`WorkerProcess`: a worker as its parent sees it, and how it is started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from polymux.cli.processes.report import Report
from polymux.cli.processes.shared_address import SharedAddress
from polymux.cli.processes.worker import COLLECT, RELEASED, encoded
from polymux.live.one_of import OneOf
from polymux.metrics import Family

COLLECT_SECONDS: Final = 1.0  # for a worker to tell its metrics, before its last ones are taken
MAX_MESSAGE_BYTES: Final = 64 << 20
# Run by `python -P -c`: nothing is imported from the current directory.
BOOT: Final = (
    "import json, socket, sys\n"
    "link = socket.socket(fileno=int(sys.argv[1]))\n"
    "line = link.makefile('rb').readline()\n"
    "if not line: sys.exit()  # the parent is gone\n"
    "setup = json.loads(line)\n"
    "sys.path[:] = setup['path']\n"
    "from polymux.cli.processes.worker import main\n"
    "main(link, setup, sys.argv[2:])\n"
)
# A terminal sends the first two to all processes of a command, and the parent stops its workers. A
# worker handles SIGTERM, which waits until it does.
BLOCKED_SIGNALS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


@dataclass(frozen=True)
class Goods:
    """What a worker gets from its parent.

    Attributes:
        arguments: The command line.
        addresses: Where it accepts, in the order of the command's URLs.
        disk_count, line_lock, token: See `Member`.
    """

    arguments: Sequence[str]
    addresses: Sequence[SharedAddress]
    disk_count: int
    line_lock: int
    token: bytes | None


@dataclass
class Ended:
    """The last message of a worker: its exit code, and whether it was told to stop."""

    code: int
    stopped: bool


class WorkerProcess:
    """A worker that runs, or has ended. `start_worker` makes it.

    Attributes:
        process: The process.
        ready: Whether it has begun to accept; done when it has, or has ended.
        report: Its last report.
        families: Its last metrics.
        stopping: Done when it was told to stop by a signal of its own; cancelled when it has ended.
        ended: Its last message, if it has ended in good order.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.ready: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.report = Report()
        self.families: list[Family] = []
        self.ended: Ended | None = None
        self._reader = reader
        self._writer = writer
        self._collected: asyncio.Future[None] | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to accept."""
        return self.ready.done() and self.ready.result()

    @property
    def accepts(self) -> bool:
        """Whether it has begun to accept, and was not told to stop by a signal."""
        return self.is_ready and not self.stopping.done()

    async def run(self) -> int:
        """Take its messages until it has ended. Return its exit code; negative: by a signal."""
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                if line.endswith(b"\n"):  # else it was killed while it wrote
                    self._take(json.loads(line))
        # It holds its end of the link for as long as it lives.
        loop = asyncio.get_running_loop()
        code = await loop.run_in_executor(None, self.process.wait)
        self._writer.close()
        if not self.ready.done():
            self.ready.set_result(False)
        self.stopping.cancel()
        self._resolve_collected()
        return code if self.ended is None else self.ended.code

    def stop(self) -> None:
        """Tell it to end in good order."""
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def released(self) -> None:
        """Tell it that the parent has no copies of its sockets any more, or keeps them."""
        with contextlib.suppress(OSError):
            self._writer.write(encoded(RELEASED))

    async def collect(self) -> None:
        """Bring its metrics up to date, unless it does not answer in time."""
        if self._collected is None:
            self._collected = asyncio.get_running_loop().create_future()
            self._writer.write(encoded(COLLECT))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COLLECT_SECONDS):
                await asyncio.shield(self._collected)

    def _take(self, message: dict[str, Any]) -> None:
        if "report" in message:
            self.report = Report(**message["report"])
        if "families" in message:
            self.families = [Family.from_json(made) for made in message["families"]]
            self._resolve_collected()
        if "ended" in message:
            self.ended = Ended(message["ended"], message["stopped"])
        if "stopping" in message:
            self.stopping.set_result(None)
        if "ready" in message:
            self.ready.set_result(True)

    def _resolve_collected(self) -> None:
        if self._collected is not None:
            self._collected.set_result(None)
            self._collected = None


async def start_worker(one_of: OneOf, goods: Goods) -> WorkerProcess:
    """Start a worker.

    Raises:
        OSError: The process cannot be started.
    """
    index = one_of.index
    listening = [
        (each.descriptors(index), each.shared, each.backlog(index)) for each in goods.addresses
    ]
    passed = [goods.disk_count, goods.line_lock]
    for descriptors, *_ in listening:
        passed += descriptors
    own, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I" if sys.flags.isolated else "-P", "-c", BOOT]
        try:
            with signals_blocked():
                process = subprocess.Popen(
                    [*command, str(theirs.fileno()), *goods.arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *passed],
                )
        except OSError:
            own.close()
            raise
    reader, writer = await asyncio.open_unix_connection(sock=own, limit=MAX_MESSAGE_BYTES)
    setup = {
        "path": [str(entry) for entry in sys.path],
        "index": index,
        "count": one_of.count,
        "descriptors": passed,
        "listening": listening,
        "disk_count": goods.disk_count,
        "line_lock": goods.line_lock,
        "token": None if goods.token is None else goods.token.hex(),
    }
    writer.write(encoded(setup))
    return WorkerProcess(process, reader, writer)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals that stop a command within the block: processes started there inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
