"""nghttp2 at both ends, in C: the load generator `h2load` beside the server `nghttpd`."""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from bench import harness
from bench.alternating_runs import Act, CandidateFailed, cpu_seconds_of
from bench.tunnel import SEARCHED, free_port, wait_for

NAME = "nghttp2 (h2load, nghttpd)"
PROGRAMS = {"h2load": "nghttp2-client", "nghttpd": "nghttp2-server"}  # and Debian's packages
FINISHED = re.compile(r"finished in ([0-9.]+)(us|ms|s),")
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def missing() -> str | None:
    """Why it is not available, or None."""
    if not harness.EFFORT.third_party:
        return "left out by wish"
    for name, package in PROGRAMS.items():
        if shutil.which(name, path=SEARCHED) is None:
            return f"{name} is not installed (Debian's {package})"
    return None


class Nghttp2:
    """A running server, and requests to it over one connection.

    A request is a POST whose body the server reads and discards; its answer is a file of the same
    size.
    """

    name = NAME

    def __init__(self, server: asyncio.subprocess.Process, port: int, folder: Path) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder

    def cpu_seconds(self) -> float:
        """Of the server and of every `h2load` that has ended."""
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cpu_seconds_of([self.server.pid]) + ended.ru_utime + ended.ru_stime

    def requests(self, count: int, size: int, flight: int) -> Act:
        body = self.folder / f"{size}"
        body.write_bytes(bytes(size))
        command = [
            str(shutil.which("h2load", path=SEARCHED)), "-n", str(count), "-c", "1", "-t", "1",
            "-m", str(flight), "-d", str(body), f"{self.url}/{size}",
        ]  # fmt: skip

        async def act() -> float:
            process = await asyncio.create_subprocess_exec(
                *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
            said = (await process.communicate())[0].decode()
            found = FINISHED.search(said)
            if found is None or f" {count} succeeded," not in said:
                raise CandidateFailed((said.splitlines() or ["no output"])[-1])
            return float(found[1]) * SECONDS[found[2]]

        return act


@contextlib.asynccontextmanager
async def nghttp2() -> AsyncIterator[Nghttp2]:
    """Start the server. Only if `missing` returns None."""
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        port = free_port()
        server = await asyncio.create_subprocess_exec(
            str(shutil.which("nghttpd", path=SEARCHED)), "--address", "127.0.0.1", "--no-tls",
            "--max-concurrent-streams", "10000", "--htdocs", name, str(port),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            await asyncio.to_thread(wait_for, port)
            yield Nghttp2(server, port, Path(name))
        finally:
            server.terminate()
            await server.wait()
