"""Captures to tables on Spark; against the same work without Spark, tshark and stock Spark.

About ten minutes on two cores. The captures are eight files of 500-byte packets that 64 mplex
sessions of 100-byte frames share, two gigabytes in all; POLYMUX_BENCH_GIGABYTES changes that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench import pipeline_floor as plain
from bench import pipeline_runs as runs
from bench import pipeline_scale as scale
from bench import pipeline_sessions as sessions
from bench import pipeline_shapes as shapes
from bench import pipeline_stream as stream
from bench.harness import Bound, Figure, Floor, Line, NotMeasured, Result, Times, growth
from bench.pipeline_captures import Conversations

from polymux.capture import CaptureLimits
from polymux.spark import spark_session
from polymux.spark.runtime.class_data_sharing import create_archive, failure_reason
from polymux.spark.runtime.java import find_java

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from pyspark.sql import SparkSession

    from polymux.spark.batch.pipeline import Analysis

CAPTURE_BYTES = int(float(os.environ.get("POLYMUX_BENCH_GIGABYTES", "2")) * 1e9)
FILES = 8
ROUNDS = 2
QUICK_REPEATS = 3  # per round, for what takes a second or less
SIZES = (2, 4, 8)  # numbers of files, for the growth of time with size
MAX_WORKER_BYTES = (256 << 20) + 2 * CaptureLimits().read_window_bytes
MB = 1e6
SMALL_SESSIONS = 8  # of the capture that is analyzed to measure the start
START_ROUNDS = 3
MILLISECONDS = 1e6  # the amount of a line that is printed in milliseconds
COMMAND = "from polymux.cli import main; main()"

T = TypeVar("T")


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name, own_cache(Path(name)):
        folder = Path(name)
        talks = Conversations(64)
        paths = []
        for number in range(FILES):
            path = folder / f"capture-{number}.pcap"
            talks.write(path, CAPTURE_BYTES // FILES, last=number == FILES - 1)
            paths.append(str(path))
        size = sum(os.path.getsize(path) for path in paths)
        lines = warm(folder, paths, size, talks.frames)
        lines += commands(folder, paths, size)
        lines += sessions.measure(folder)
        lines += start_up(folder)
    return lines


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """A cache below `folder`, empty at first: no run before has made an archive of classes."""
    chosen = {"POLYMUX_CACHE": str(folder / "cache"), "POLYMUX_CLASS_DATA": "use"}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def warm(folder: Path, paths: list[str], size: int, frames: int) -> list[Result]:
    """Measurements in a running session, beside running processes."""
    with plain.processes() as pool, spark_session("local[*]") as spark:
        runs.tables(spark, paths[:1], folder / "warm-up")
        found = Rounds(spark, pool, paths, folder, frames)
        short = stream.write_captures(folder / "inbox", size // 4)
        for _ in range(ROUNDS):
            found.all()
            found.streaming(short)
        lines: list[Result] = [
            line("index stage", found.times["index"], size,
                 Floor("one process a core", found.times["headers"], 0.5)),
            line("index, shuffle, reassembly", found.times["count"], size,
                 Floor("reading whole files", found.times["whole"], 0.6),
                 Floor("reading the files", found.times["read"]),
                 Floor("without Spark", found.times["plain count"])),
            line("pcap to all tables", found.times["tables"], size,
                 Floor("without Spark", found.times["plain tables"], 0.6),
                 note=shapes.frame_rate(frames, found.times["tables"])),
            *(line(f"pcap to all tables, {files} of {FILES} files", found.times[f"{files} files"],
                   sum(map(os.path.getsize, paths[:files]))) for files in SIZES[:-1]),
        ]  # fmt: skip
        lines.append(
            line("streaming, steady", found.times["streaming"], found.streamed,
                 Floor("batch on the same data", found.times["batch"], 0.3))
        )  # fmt: skip
        lines += growth_with_size(found)
        lines += shapes.measure(spark, pool, folder, size)
        lines += scale.measure(spark, folder)
        worker = runs.largest_worker(spark) / (1 << 20)
        bound = Bound("256 MiB and two windows", MAX_WORKER_BYTES / (1 << 20))
        lines.append(Figure("largest worker", [worker], "MiB", [bound]))
    return lines


class Rounds:
    """Runs every candidate and its floor once per round, alternately."""

    def __init__(
        self,
        spark: SparkSession,
        pool: ProcessPoolExecutor,
        paths: list[str],
        folder: Path,
        frames: int,
    ) -> None:
        self.spark, self.pool, self.paths, self.frames = spark, pool, paths, frames
        self.folder = folder
        self.times: dict[str, Times] = {}
        self.streamed = 0

    def all(self) -> None:
        pool, spark, paths = self.pool, self.spark, self.paths
        size = self.clock(
            "plain count",
            lambda: plain.run_over_flows(pool, paths, "", plain.count_stream_bytes)[0],
        )
        for _ in range(QUICK_REPEATS):
            counted = self.clock(
                "count", lambda: runs.count_stream_bytes(spark, paths, self.folder)
            )
            assert counted == size, (counted, size)
            self.clock("read", lambda: sum(pool.map(plain.read, paths)))
            self.clock("whole", lambda: sum(pool.map(plain.read_whole, paths)))
            self.clock("headers", lambda: sum(pool.map(plain.count_packets, paths)))
        spent: dict[str, float] = {}

        def stage(name: str) -> None:
            spent[name] = runs.processor_seconds()

        done = self.clock("tables", lambda: runs.tables(spark, paths, self.folder / "spark", stage))
        self.add_time("index", done.seconds["index"], spent["analyze"] - spent["index"])
        assert done.total.frames == self.frames
        out = self.folder / "plain"
        found = self.clock("plain tables", lambda: plain.tables(pool, paths, str(out)))
        shutil.rmtree(out)
        assert found == self.frames
        for files in SIZES[:-1]:
            self.clock(f"{files} files", lambda: self.analyze_first(files))  # noqa: B023  # called at once

    def analyze_first(self, files: int) -> Analysis:
        return runs.tables(self.spark, self.paths[:files], self.folder / "spark")

    def streaming(self, paths: list[Path]) -> None:
        """The steady state of following a folder, beside a batch over the same bytes."""
        ends = stream.run_streaming_query(self.spark, paths[0].parent, self.folder / "live")
        (begun, spent, _), (ended, spent_then, _) = ends[0], ends[-1]
        self.add_time("streaming", ended - begun, spent_then - spent)
        later = [str(path) for path in paths[1:]]
        self.clock("batch", lambda: runs.tables(self.spark, later, self.folder / "spark"))
        self.streamed = sum(map(os.path.getsize, later))
        assert self.streamed == sum(size for _, _, size in ends[1:])

    def clock(self, name: str, act: Callable[[], T]) -> T:
        return runs.time_call(self.times.setdefault(name, Times()), act)

    def add_time(self, name: str, seconds: float, spent: float) -> None:
        self.times.setdefault(name, Times()).add(seconds, spent)


def line(name: str, times: Times, size: int, *floors: Floor, note: str = "") -> Line:
    return Line(name, times, size, "MB/s", list(floors), clock="wall", scale=MB, note=note)


def growth_with_size(found: Rounds) -> list[Figure]:
    names = [*(f"{files} files" for files in SIZES[:-1]), "tables"]
    return growth("time", "files", SIZES, [found.times[name].best("wall") for name in names])


def commands(folder: Path, paths: list[str], size: int) -> list[Result]:
    """The complete command in a new process, beside the same work without Spark, and tshark.

    None of them writes a report, which is a separate line.
    """
    ours, theirs, report = Times(), Times(), Times()
    for _ in range(2):
        shutil.rmtree(folder / "cold", ignore_errors=True)
        command = [sys.executable, "-c", COMMAND]
        tables = str(folder / "cold")
        runs.run_cold([*command, "analyze", *paths, "--out", tables, "--no-report"], ours)
        runs.run_cold([*command, "report", tables, "-o", str(folder / "report.html")], report)
        shutil.rmtree(folder / "plain", ignore_errors=True)
        runs.run_cold(
            [sys.executable, "-m", "bench.pipeline_floor", str(folder / "plain"), *paths], theirs
        )
    command_line = line("whole command, from cold", ours, size,
                        Floor("without Spark, from cold", theirs, 1 / 2.5))  # fmt: skip
    report_line = line("its report, from cold", report, size)
    if shutil.which("tshark") is None:
        return [command_line, report_line, NotMeasured("tshark", "tshark is not installed")]
    few = folder / "few.pcap"
    Conversations(64).write(few, size // 32)
    times = tshark(few)
    command_line.floors.append(
        Floor("tshark -T fields, 1/32 of it", times, 10.0, os.path.getsize(few))
    )
    return [command_line, report_line]


def tshark(path: Path) -> Times:
    """TCP columns only: tshark cannot decode the protocols inside."""
    fields = [f"-e{name}" for name in ("frame.time_epoch", "tcp.stream", "tcp.seq", "tcp.len")]
    times = Times()
    runs.run_cold(["tshark", "-n", "-r", str(path), "-Tfields", *fields], times)
    return times


def start_up(folder: Path) -> list[Result]:
    """`polymux analyze` from its start to the end of its first task: as it is installed, and with
    the archive of Spark's classes that `polymux doctor --class-archive` makes."""
    capture = folder / "small.pcap"
    Conversations(SMALL_SESSIONS).write(capture, SMALL_SESSIONS * 1000, last=True)
    name = "start-up to first task"
    lines: list[Result] = [start_line(name, capture, 1 / 0.4)]
    with_archive = f"{name}, with the archive of classes"
    if not create_archive(find_java(), requested=True):
        return [*lines, NotMeasured(with_archive, failure_reason(find_java()) or "not made")]
    return [*lines, start_line(with_archive, capture, None)]


def start_line(name: str, capture: Path, target: float | None) -> Line:
    ours, stock = Times(), Times()
    command = ["analyze", str(capture), "--no-report", "--out", str(capture.with_suffix(".first"))]
    for _ in range(START_ROUNDS):
        runs.first_task(runs.POLYMUX_PROGRAM, ours, *command)
        runs.first_task(runs.STOCK_PROGRAM, stock)
    floor = Floor("stock settings", stock, target)
    return Line(name, ours, MILLISECONDS, "ms", [floor], "wall")
