"""The complete command over a million connections of seven packets: time, and memory of all
processes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench import harness, session_costs
from bench.harness import Figure, Line, Result, Times
from bench.pipeline_runs import run_cold

SESSIONS = 1_000_000
POLL_SECONDS = 0.2
COMMAND = "from polymux.cli import main; main()"


def measure(folder: Path) -> list[Result]:
    capture = folder / "short.pcap"
    count = harness.EFFORT.scaled(SESSIONS, session_costs.SIDE_BY_SIDE)
    session_costs.write_short_sessions(capture, count)
    size, times = capture.stat().st_size, Times()
    command = [sys.executable, "-c", COMMAND, "analyze", str(capture), "--no-report"]
    with most_memory() as found:
        run_cold([*command, "--out", str(folder / "short")], times)
    sessions = _rows(folder / "short" / "sessions")
    assert sessions == count, (sessions, count)
    capture.unlink()
    name = f"{count:,} sessions of 7 packets, whole command"
    note = f"{times.best('cpu') / count * 1e6:.0f} µs of CPU time a session"
    return [
        Figure(name, times.wall, "s", note=note),
        Line(f"{name}: speed", times, size, "MB/s", clock="wall", scale=1e6),
        Figure(f"{name}: memory of all processes", [found[0] / (1 << 20)], "MiB"),
    ]


def _rows(table: Path) -> int:
    import pyarrow.dataset

    count: int = pyarrow.dataset.dataset(table, format="parquet").count_rows()
    return count


@contextlib.contextmanager
def most_memory() -> Iterator[list[int]]:
    """The most memory that all children of this process held together, sampled. What processes
    share counts once."""
    found, ended = [0], threading.Event()

    def sample() -> None:
        while not ended.wait(POLL_SECONDS):
            found[0] = max(found[0], memory_of_children())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield found
    finally:
        ended.set()
        sampler.join()


def memory_of_children() -> int:
    total = 0
    for child in psutil.Process(os.getpid()).children(recursive=True):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{child.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total
