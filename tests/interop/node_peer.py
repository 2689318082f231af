"""Drive the Node, Go and Python peers of `peers/` from asyncio tests.

    async with Peer.listen("nerdbank", "--version", "3") as peer:
        ...connect to peer.port...
        reply = await peer.call("exchange", names=["a", "b"], size=100_000)
        event = await peer.event("stream", name="a")

The commands and events are listed in `peers/README.md`. Every wait has a time limit. A peer that
dies while a test waits for it fails the test with what it said last; so does a crash that the
test has not taken with `event("crash")`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parent / "peers"
EXIT_CRASH = 70
LINE_LIMIT = 16 * 1024 * 1024  # a reply that lists a thousand streams is one long line
PERIOD = 65536
GO_YAMUX = "go-yamux"
PY_YAMUX = "py_libp2p_yamux"

Message = dict[str, Any]  # a JSON object: what is in it depends on the command


def command_of(script: str) -> list[str]:
    """The command that starts a peer: a program in Go, or a script of Python or Node."""
    if script == GO_YAMUX:
        return [str(go_program())]
    if script == PY_YAMUX:
        return [sys.executable, "-S", str(PEERS / PY_YAMUX / "peer.py")]
    return ["node", str(PEERS / f"{script}.mjs")]


def environment_of(script: str) -> dict[str, str] | None:
    """The environment of a peer; None for that of this process."""
    if script == PY_YAMUX:
        return {**os.environ, "PYTHONPATH": str(python_packages())}
    return None


def go_program() -> Path:
    """The Go peer, built once from Debian's packages, without any network."""
    folder = PEERS / GO_YAMUX
    program = folder / "peer"
    source = folder / "main.go"
    with source.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            environment = {**os.environ, "GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
            environment.setdefault("GOCACHE", str(folder / "cache"))
            subprocess.run(
                ["go", "build", "-o", program.name, "."], cwd=folder, env=environment, check=True
            )
    return program


def python_packages() -> Path:
    """Where the packages of the Python peer are, apart from those of the tests."""
    return PEERS / PY_YAMUX / ".packages"


def missing_python() -> str | None:
    """Why the Python peer cannot run here, or None. Installs its packages once, with pip.

    Test processes that come here at once take turns: the lock is on requirements.txt.
    """
    wanted = PEERS / PY_YAMUX / "requirements.txt"
    folder = python_packages()
    stamp = folder / f"installed-{sys.version_info[0]}.{sys.version_info[1]}"
    with wanted.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted.read_text():
            return None
        shutil.rmtree(folder, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        done = subprocess.run(
            [*command, "--quiet", "--no-deps", "--target", str(folder), "-r", str(wanted)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            return f"pip install failed for {PY_YAMUX}: {lines[-1]}"
        stamp.write_text(wanted.read_text())
        return None


def missing_go() -> str | None:
    """Why the Go peer cannot run here, or None."""
    if shutil.which("go") is None:
        return "Go is not installed"
    if not Path("/usr/share/gocode/src/github.com/hashicorp/yamux").is_dir():
        return "Debian's golang-github-hashicorp-yamux-dev is not installed"
    return None


class PeerFailed(Exception):
    """A command was refused, or the peer went away while something was expected of it."""


def raw_bytes(seed: int, size: int) -> bytes:
    """The first `size` bytes of the sequence that the peers make of `seed`.

    Byte i is `(seed * 31 + i * 7 + (i >> 8)) & 255`, which repeats every 65536 bytes.
    """
    table = bytes((seed * 31 + i * 7 + (i >> 8)) & 255 for i in range(min(size, PERIOD)))
    return (table * (size // PERIOD + 1))[:size]


def digest(data: bytes) -> str:
    """sha256 in hex, as the peers report it."""
    return hashlib.sha256(data).hexdigest()


def _wanted() -> dict[str, str]:
    """Package -> the version that package.json asks for."""
    wanted: dict[str, str] = json.loads((PEERS / "package.json").read_text())["dependencies"]
    return wanted


def _installed() -> bool:
    for name, version in _wanted().items():
        package = PEERS / "node_modules" / name / "package.json"
        try:
            if json.loads(package.read_text())["version"] != version:
                return False
        except (OSError, ValueError, KeyError):
            return False
    return True


def missing() -> str | None:
    """Why the peers cannot run here, or None. Installs their packages once, with `npm ci`.

    Test processes that come here at once take turns: the lock is on package-lock.json.
    """
    if shutil.which("node") is None:
        return "Node is not installed"
    with (PEERS / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _installed():
            return None
        npm = shutil.which("npm")
        if npm is None:
            return f"{PEERS.name}/node_modules is missing or outdated, and there is no npm"
        done = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund"], cwd=PEERS, capture_output=True, text=True
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no reason given"]
            return f"npm ci failed in {PEERS.name}: {lines[-1]}"
        return None if _installed() else f"npm ci left other versions in {PEERS.name}"


def require() -> None:
    """Let the test run only if the peers can: else skip it with the reason, or fail it where
    POLYMUX_NO_SKIP=1 says that nothing may be left out.
    """
    require_none(missing())


def require_none(reason: str | None) -> None:
    """Skip or fail the test for this reason, unless it is None."""
    import pytest  # here, because a benchmark drives the peers without it

    if reason is not None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


class Peer:
    """One running peer. Made by `listen`, `connect` or `start`, ended by `stop`."""

    def __init__(self, script: str, process: asyncio.subprocess.Process) -> None:
        self.script = script
        self.process = process
        self.port = 0  # of a listening peer
        self.said: list[Message] = []  # every event so far, replies too, for the test's report
        self.errors = b""  # what came on stderr
        self._fresh: list[Message] = []  # events that no `event` call has taken yet
        self._replies: dict[int, asyncio.Future[Message]] = {}
        self._calls = 0
        self._gone = False
        self._changed = asyncio.Event()
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._drain())]

    @classmethod
    async def start(cls, script: str, *arguments: str) -> Peer:
        """Start `script` with these arguments. The caller must `stop` it."""
        process = await asyncio.create_subprocess_exec(
            *command_of(script),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            env=environment_of(script),
        )
        return cls(script, process)

    @classmethod
    def listen(cls, script: str, *arguments: str) -> contextlib.AbstractAsyncContextManager[Peer]:
        """A peer that listens on a free port (`peer.port`)."""
        return cls._running("listening", script, "--listen", "0", *arguments)

    @classmethod
    def connect(
        cls, script: str, port: int, *arguments: str
    ) -> contextlib.AbstractAsyncContextManager[Peer]:
        """A peer that has connected to `port`. A handshake may still be on its way: to open
        streams wait for `event("session")`.
        """
        return cls._running("connected", script, "--connect", str(port), *arguments)

    @classmethod
    @contextlib.asynccontextmanager
    async def _running(cls, ready: str, script: str, *arguments: str) -> AsyncIterator[Peer]:
        peer = await cls.start(script, *arguments)
        try:
            peer.port = (await peer.event(ready)).get("listening", 0)
            yield peer
        finally:
            await peer.stop()
        if any(message["event"] == "crash" for message in peer._fresh):
            raise peer._death()  # a crash that the test did not ask for

    async def call(self, do: str, /, *, timeout: float = 60.0, **fields: object) -> Message:
        """Give a command and wait for its reply. Raises PeerFailed if it was refused."""
        return await self.result(self.begin(do, **fields), timeout=timeout)

    def begin(self, do: str, /, **fields: object) -> asyncio.Future[Message]:
        """Give a command; `result` waits for its reply. Commands start in the order given."""
        self._calls += 1
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        if self._gone:
            future.set_exception(self._death())
            return future
        self._replies[self._calls] = future
        assert self.process.stdin is not None
        line = json.dumps({"do": do, "call": self._calls, **fields})
        self.process.stdin.write(line.encode() + b"\n")
        return future

    async def result(self, reply: asyncio.Future[Message], *, timeout: float = 60.0) -> Message:
        """The reply to a command given with `begin`."""
        try:
            answer = await asyncio.wait_for(asyncio.shield(reply), timeout)
        except TimeoutError:
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise PeerFailed(f"{self.script}: no reply in {timeout} s; {self._last()}") from None
        if not answer["ok"]:
            raise PeerFailed(f"{self.script}: {answer['do']}: {answer['error']}")
        return answer

    async def event(self, name: str, /, *, timeout: float = 60.0, **match: object) -> Message:
        """Take the oldest event of this name, with these fields, that was not taken yet; wait
        for it if it has not come.
        """
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for i, message in enumerate(self._fresh):
                        if message["event"] == name and match.items() <= message.items():
                            return self._fresh.pop(i)
                    if self._gone:
                        raise self._death()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            wish = {"event": name, **match}
            raise PeerFailed(f"{self.script}: no {wish} in {timeout} s; {self._last()}") from None

    def seen(self, name: str, /, **match: object) -> list[Message]:
        """All events of this name, with these fields, so far: taken or not."""
        return [m for m in self.said if m["event"] == name and match.items() <= m.items()]

    def forget(self) -> None:
        """Drop the events so far, so that `event` and `seen` only see later ones."""
        self.said.clear()
        self._fresh.clear()

    async def exit(self, *, timeout: float = 60.0) -> int:
        """Wait until the process has ended and its output is read. Return its exit code."""
        _, running = await asyncio.wait(self._tasks, timeout=timeout)
        if running:
            raise PeerFailed(f"{self.script}: still runs; {self._last()}")
        return await self.process.wait()

    async def stop(self, *, grace: float = 3.0) -> int:
        """Close the peer's stdin, wait for its exit, kill it if it does not go: its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        _, running = await asyncio.wait(self._tasks, timeout=grace)
        if running:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await asyncio.wait(self._tasks)
        return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                message = {"event": "noise", "line": line.decode(errors="replace")}
            self.said.append(message)
            reply = self._replies.pop(message.get("call") or 0, None)
            if reply is None:
                self._fresh.append(message)
                self._changed.set()
            elif not reply.done():
                reply.set_result(message)
        self._gone = True
        self._changed.set()
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(self._death())
        self._replies.clear()

    async def _drain(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(65536):
            self.errors = (self.errors + data)[-65536:]

    def _death(self) -> PeerFailed:
        crashes = self.seen("crash")
        reason = f"crashed: {crashes[0]['message']}" if crashes else "is gone"
        return PeerFailed(f"{self.script} {reason}; {self._last()}")

    def _last(self) -> str:
        lines = [json.dumps(m)[:300] for m in self.said[-5:]]
        errors = self.errors.decode(errors="replace").strip()[-500:]
        return "last said: " + "\n  ".join(lines or ["nothing"]) + (f"\n{errors}" if errors else "")
