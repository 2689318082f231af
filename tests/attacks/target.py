"""A server under attack, seen by the test: its process, its memory, its own facts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own

ROOT = Path(__file__).parents[2]
STARTING = 60.0  # seconds for a process to come up on a busy machine

Facts = dict[str, Any]


class Zygote:
    """The process that forks servers. Their standard error is kept."""

    def __init__(self, folder: Path) -> None:
        self.errors = folder / "errors"
        self.process: asyncio.subprocess.Process
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Zygote:
        with self.errors.open("wb") as errors:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.attacks.forking_server", cwd=ROOT, stderr=errors,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            async with asyncio.timeout(60):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def fork(self, order: Facts) -> Target:
        """Fork a new server."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        async with self._turn:
            stdin.write(json.dumps(order).encode() + b"\n")
            async with asyncio.timeout(STARTING):
                line = await stdout.readline()
        assert line, f"no server: {self.errors.read_text()}"
        said = json.loads(line)
        return Target(said["pid"], said["port"], said["control"], self.errors)


class Target:
    """One server, until the block ends."""

    def __init__(self, pid: int, port: int, control: int, errors: Path) -> None:
        self.process = psutil.Process(pid)
        self.port = port
        self._control = control
        self._errors = errors
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._base = 0
        self._peak = 0

    async def __aenter__(self) -> Target:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._control, limit=1 << 24
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            await asyncio.to_thread(psutil.wait_procs, [self.process], 5)
            if self.process.is_running():
                self.process.kill()

    async def tell(self, sweep: bool = True) -> Facts:
        """The server's facts about its sessions, in order. It runs the cycle collector first,
        unless `sweep` is false."""
        self._writer.write(b"sweep\n" if sweep else b"\n")
        async with asyncio.timeout(STARTING):
            line = await self._reader.readline()
        assert line, f"the server is gone: {self._errors.read_text()[-2000:]}"
        facts: Facts = json.loads(line)
        return facts

    def cpu(self) -> float:
        """CPU seconds that the server has used."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    # --- memory

    def weigh(self) -> None:
        """Start to measure memory growth."""
        with contextlib.suppress(OSError):  # where the system has it: forget the highest so far
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        self._base = self._peak = self._own()

    def sample(self) -> None:
        self._peak = max(self._peak, self._own())

    def growth(self) -> int:
        """The peak growth of memory in bytes since `weigh`."""
        self.sample()
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    highest = int(line.split()[1]) * 1024
                    self._peak = max(self._peak, highest - self.process.memory_info().shared)
        return max(0, self._peak - self._base)

    def _own(self) -> int:
        """Private memory of the process in bytes. Pages of program files are not counted: a new
        fork touches them as it runs, and they contain no data of a peer."""
        info = self.process.memory_info()
        return int(info.rss - info.shared)
