"""Daily appends to a lake beside plain analyses of the same captures; analyses on Spark Connect.

A day's captures are of sessions one after another, a few of which are not over at midnight.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bench.harness import Bound, Figure, Floor, Line, Result, Times
from bench.pipeline_captures import Conversations
from bench.pipeline_runs import time_call
from tests.spark.connect_server import ConnectServer

from polymux.spark.batch.pipeline import LakeOptions, analyze
from polymux.spark.lake.store import FORMATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY_BYTES = int(os.environ.get("POLYMUX_BENCH_DAY_BYTES", str(512 << 20)))
APPENDED_DAYS = 4
GROUPS_PER_DAY = 16  # captures; the sessions of the last one are not over when the day is
MINUTES_PER_DAY, MINUTES_APART = 1440, 88
MIN_APPEND_SHARE = 0.7  # of the throughput of plain analyses

MASTER = "local-cluster[2,1,1024]"
CONNECT_ROUNDS = 5
MIN_CONNECT_SHARE = 0.85  # of the throughput of the classic session
MAX_CANCEL_SECONDS = 5.0

# Answers each line of input: the seconds of an analysis, or from a cancel to the end of a stage.
DRIVER = """
import json, os, sys, threading, time
from polymux.spark import analyze, progress, spark_session
from polymux.spark.runtime.stages import run_stage

kind, address, capture, out = sys.argv[1:]
chosen = {"remote": address} if kind == "connect" else {"master": address}

def slow(number):
    import time
    time.sleep(1)

def cancelled(spark):
    begun = []

    def cancel(group):
        while not any(stage.done for stage in group.stages()):
            time.sleep(0.05)
        begun.append(time.perf_counter())
        group.cancel()

    try:
        with progress(spark, lambda stage: None) as group:
            threading.Thread(target=cancel, args=(group,)).start()
            list(run_stage(spark, slow, range(600), os.path.dirname(out)))
    except Exception:
        return time.perf_counter() - begun[0]

with spark_session(**chosen) as spark:
    print("ready", flush=True)
    for line in sys.stdin:
        if line == "cancel\\n":
            print(json.dumps(cancelled(spark)), flush=True)
            continue
        begun = time.perf_counter()
        done = analyze(spark, [capture], out, protocol="mplex")
        assert done.conserved
        print(json.dumps(time.perf_counter() - begun), flush=True)
"""


def appends(spark: SparkSession, folder: Path) -> list[Result]:
    """Appends of whole days; the first day, from which nothing is carried, is not counted."""
    captures = folder / "days"
    captures.mkdir()
    days = [write_day(captures, day) for day in range(APPENDED_DAYS)]
    plain, added = ({format: Times() for format in FORMATS} for _ in range(2))
    for day, paths in enumerate(days):
        for format in FORMATS:
            times, other = (added[format], plain[format]) if day else (Times(), Times())
            lake = folder / f"appends-{format}"
            done = time_call(
                times,
                lambda: analyze(
                    spark, paths, lake, protocol="mplex", lake=LakeOptions(format), append=True  # noqa: B023  # called at once
                ),
            )  # fmt: skip
            assert done.conserved
            assert done.lake is not None
            assert done.lake.open
            expected = analyze_plain(spark, paths, folder, other)
            carried = done.total.sessions - expected
            assert bool(carried) == bool(day), (day, carried)
    size = sum(map(os.path.getsize, days[-1]))
    shutil.rmtree(captures)
    return [
        Line(f"append of a day, {format}", added[format], size, "MB/s",
             [Floor("analyze of the same day", plain[format], MIN_APPEND_SHARE)],
             clock="wall", scale=1e6)
        for format in FORMATS
    ]  # fmt: skip


def write_day(folder: Path, day: int) -> list[str]:
    """Write the captures of a day; return their paths."""
    paths = []
    for group in range(GROUPS_PER_DAY):
        path = folder / f"{day:02}-{group:02}.pcap"
        number = day * MINUTES_PER_DAY + group * MINUTES_APART
        Conversations(64, number=number).write(path, DAY_BYTES // GROUPS_PER_DAY)
        paths.append(str(path))
    return paths


def analyze_plain(spark: SparkSession, paths: list[str], folder: Path, times: Times) -> int:
    """Analyze a day by itself; return how many sessions it has."""
    out = folder / "plain-day"
    done = time_call(times, lambda: analyze(spark, paths, out, protocol="mplex"))
    return done.total.sessions


def connect(folder: Path) -> list[Result]:
    """Analyses on a server of Spark Connect beside those of a session with its own driver."""
    capture, place = folder / "connect.pcap", folder / "server"
    Conversations(64).write(capture, DAY_BYTES)
    place.mkdir()
    server = ConnectServer(place, MASTER)
    times = {"connect": Times(), "classic": Times()}
    addresses = {"connect": server.url, "classic": MASTER}
    cancels = []
    try:
        with (
            driver("connect", addresses["connect"], capture, folder) as ours,
            driver("classic", addresses["classic"], capture, folder) as other,
        ):
            for turn in range(CONNECT_ROUNDS + 1):
                for name, (asked, answered) in (("connect", ours), ("classic", other)):
                    seconds = ask(asked, answered, "run")
                    if turn:  # the first one warms up
                        times[name].add(seconds, seconds)
            cancels = [ask(*ours, "cancel") for _ in range(3)]
    finally:
        server.close()
    size = os.path.getsize(capture)
    capture.unlink()
    return [
        Line(f"analyze on Spark Connect, {MASTER}", times["connect"], size, "MB/s",
             [Floor("in a classic session", times["classic"], MIN_CONNECT_SHARE)],
             clock="wall", scale=1e6),
        Figure("a cancelled stage on Spark Connect ends in", [max(cancels)], "s",
               [Bound("at most", MAX_CANCEL_SECONDS)]),
    ]  # fmt: skip


@contextmanager
def driver(
    kind: str, address: str, capture: Path, folder: Path
) -> Iterator[tuple[IO[str], IO[str]]]:
    """A driver in a process of its own: its input and its output."""
    command = [sys.executable, "-c", DRIVER, kind, address, str(capture), str(folder / kind)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.stdin, process.stdout
        process.stdin.close()


def ask(asked: IO[str], answered: IO[str], what: str) -> float:
    asked.write(f"{what}\n")
    asked.flush()
    return float(json.loads(answered.readline()))
