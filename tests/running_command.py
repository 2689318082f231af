"""A command with `--processes`, as users run it: its parent, its workers, and what it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from typing import IO

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.cli.threaded_server import COMMAND

PATIENCE = 60.0  # seconds; never waited for in vain on an idle machine


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until this is true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


class Running:
    """A command that runs. Use it in `with`: at the end, what is left of it is killed.

    Args:
        arguments: Of `polymux`.
        pass_fds: Descriptors that it inherits.
        patched: A name of the module `supervisor` and the value that it has in the parent, such as
            `END_SECONDS = 1`.

    Attributes:
        url: Where it says that it listens.
        parent: The process that was started.
        workers_at_start: The process ids of the first workers.
    """

    def __init__(self, *arguments: str, pass_fds: Sequence[int] = (), patched: str = "") -> None:
        before = f"import polymux.cli.processes.supervisor as s; s.{patched}; " if patched else ""
        *start, code = COMMAND
        self.process = subprocess.Popen(
            [*start, before + code, *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            pass_fds=pass_fds,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # not as in nohup
        )  # fmt: skip
        self.parent = psutil.Process(self.process.pid)
        self._out: list[bytes] = []
        self._err: list[bytes] = []
        self._seen: set[int] = set()  # every worker there was
        self._readers = [
            threading.Thread(target=read_all, args=(self.process.stdout, self._out)),
            threading.Thread(target=read_all, args=(self.process.stderr, self._err)),
        ]
        for reader in self._readers:
            reader.start()
        until(lambda: "listening at" in self.err or self.process.poll() is not None, self.err)
        found = re.search(r"listening at (\w+://[^\s,]+)", self.err)
        self.url = found[1] if found else ""
        self.workers_at_start = self.workers()

    @property
    def out(self) -> str:
        return b"".join(self._out).decode()

    @property
    def err(self) -> str:
        return b"".join(self._err).decode()

    def workers(self) -> list[int]:
        """The process ids of the workers that run now."""
        try:
            found = [child.pid for child in self.parent.children()]
        except psutil.NoSuchProcess:
            return []
        self._seen |= set(found)
        return found

    def kill_worker(self, number: int = signal.SIGKILL, victim: int | None = None) -> None:
        """Send a signal to one worker, and wait until there is another one in its place."""
        victim = victim or self.workers()[0]
        count = len(self.workers())
        os.kill(victim, number)
        until(lambda: victim not in self.workers() and len(self.workers()) == count, self.err)

    def metrics(self) -> dict[str, float]:
        """The sums of all samples of each counter, by its name."""
        return {
            family.name: sum(sample.value for sample in family.samples)
            for family in self._families()
            if family.type == "counter"
        }

    def counters(self) -> dict[tuple[str, ...], float]:
        """Each sample of each counter, by its name and the values of its labels."""
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in self._families()
            if family.type == "counter"
            for sample in family.samples
        }

    def _families(self) -> list[Metric]:
        [url] = re.findall(r"metrics at (\S+)", self.err)
        with urllib.request.urlopen(url, timeout=30) as answer:
            return list(text_string_to_metric_families(answer.read().decode()))

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the parent, and wait for the end. Returns the exit code."""
        self.workers()
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for the end of the command and of all that it has started."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        until(lambda: not any(map(is_running, self._seen)), "a worker is left")
        assert "Traceback" not in self.err, self.err
        return code

    def __enter__(self) -> Running:
        assert self.url, self.err
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for pid in (*self.workers(), self.process.pid):
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        for pid in self._seen:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)


def read_all(stream: IO[bytes], parts: list[bytes]) -> None:
    """Read a pipe to its end."""
    while data := os.read(stream.fileno(), 65536):
        parts.append(data)


def is_running(pid: int) -> bool:
    """Whether a process runs: it exists, and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
