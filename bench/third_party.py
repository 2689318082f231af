"""Third-party Python packages as peers, installed once into an environment of their own.

They are not requirements of polymux: py-libp2p alone has some eighty dependencies. A package that
cannot be installed is a line of the table with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.alternating_runs import Act, CandidateFailed

from polymux.spark.runtime.user_cache import cache_folder, usable_folder

ROOT = Path(__file__).parent.parent
# PyPI name and module of each script's package
PACKAGES = {
    "libp2p_mplex": ("libp2p", "libp2p"),
    "libp2p_yamux": ("libp2p", "libp2p"),
    "http2": ("h2", "h2"),
}
INSTALL_TIMEOUT = 300.0  # seconds


def interpreter(script: str) -> tuple[Path, str | None]:
    """The Python with a peer's packages, or the reason why there is none."""
    package, module = PACKAGES[script]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = cache_folder() / f"bench-{package}-{version}"
    python = folder / "bin" / "python"
    if not harness.EFFORT.third_party:
        return python, "left out by wish"
    if has_module(python, module):
        return python, None
    if not usable_folder(folder):
        return python, f"{folder} cannot be written"
    print(f"installing {package} for the benchmark, once", flush=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package]
    try:
        venv.create(folder, with_pip=True, clear=True)
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_TIMEOUT)
    except (OSError, subprocess.SubprocessError) as problem:
        return python, f"{package} could not be installed: {type(problem).__name__}"
    if done.returncode != 0 or not has_module(python, module):
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        return python, f"{package} could not be installed: {(said or ['no reason given'])[0][:120]}"
    return python, None


def has_module(python: Path, module: str) -> bool:
    """Whether it is installed, without importing it, which takes seconds for some."""
    if not python.exists():
        return False
    look = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", look], capture_output=True).returncode == 0


def missing(script: str) -> str | None:
    return interpreter(script)[1]


class ThirdPartyPair:
    """A handle of both ends of a third-party peer."""

    def __init__(
        self, name: str, dialer: asyncio.subprocess.Process, acceptor: asyncio.subprocess.Process
    ) -> None:
        self.name = name
        self.dialer = dialer
        self.acceptor = acceptor
        self.pids: Sequence[int] = (dialer.pid, acceptor.pid)

    async def call(self, do: str, **fields: object) -> Any:
        return await call(self.dialer, do, **fields)

    def bulk(self, byte_count: int, size: int, streams: int) -> Act:
        async def act() -> float:
            return float(await self.call("bulk", byte_count=byte_count, size=size, streams=streams))

        return act

    def openings(self, count: int, flight: int) -> Act:
        async def act() -> float:
            return float(await self.call("openings", count=count, flight=flight))

        return act

    def requests(self, count: int, size: int, flight: int) -> Act:
        async def act() -> float:
            return float(await self.call("requests", count=count, size=size, flight=flight))

        return act

    async def pings(self, count: int, load: int) -> list[float]:
        """Round trips, beside `load` bytes of bulk data (0: none)."""
        return [float(each) for each in await self.call("pings", count=count, load=load)]


async def call(process: asyncio.subprocess.Process, do: str, **fields: object) -> Any:
    """Send a command to one end, and return what it answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
    except TimeoutError:
        raise CandidateFailed("no answer in 60 s") from None
    answer = json.loads(line or b'{"error": "it is gone"}')
    if "error" in answer:
        raise CandidateFailed(answer["error"])
    return answer["found"]


@contextlib.asynccontextmanager
async def third_party_pair(script: str) -> AsyncIterator[ThirdPartyPair]:
    """Start both ends, each a process. Only if `missing` returns None."""
    name = {"libp2p": "PyPI libp2p", "h2": "h2 (HTTP/2)"}[PACKAGES[script][0]]
    command = [str(interpreter(script)[0]), "-m", f"bench.third_party_peers.{script}"]
    async with both_ends(command) as (dialer, acceptor):
        yield ThirdPartyPair(name, dialer, acceptor)


@contextlib.asynccontextmanager
async def both_ends(
    command: list[str],
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.subprocess.Process]]:
    """Start the dialing and the accepting end of a peer."""
    acceptor = await start(*command, "listen")
    try:
        port = json.loads(await read_line(acceptor))["port"]
        dialer = await start(*command, "connect", str(port))
        try:
            await read_line(dialer)
            yield dialer, acceptor
        finally:
            await stop(dialer)
    finally:
        await stop(acceptor)


async def start(*command: str) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=1024 * 1024,
        cwd=ROOT,
    )  # fmt: skip


async def read_line(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    if not line:
        raise CandidateFailed("it ended before it began")
    return line


async def stop(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), 5)
    except TimeoutError:
        process.kill()
        await process.wait()
