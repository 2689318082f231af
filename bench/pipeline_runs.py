"""Runs of the pipeline for the benchmark: in a warm session, as commands, and start-up."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench.harness import Times

from polymux.analysis.options import AnalysisOptions
from polymux.capture import CaptureLimits, sessions_of
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.read_ahead import ReadAhead, interleave
from polymux.spark.batch.analyze_stage import (
    StageResult,
    plan_analyze_tasks,
    plan_local_tasks,
    run_analyze_stage,
)
from polymux.spark.batch.index_stage import plan_index_tasks, run_index_stage
from polymux.spark.batch.pipeline import Analysis, analyze
from polymux.spark.batch.reference_shuffle import FlowSelection, ReferenceReader, StoredFlow
from polymux.spark.runtime.worker_memory import freeze_gc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

# The command `polymux analyze`. The next stage begins when the first task, which indexes the
# capture, has ended; the command would say so on a terminal only.
POLYMUX_PROGRAM = """
import time
begun = time.time()
from contextlib import contextmanager
from polymux.cli import main
import polymux.cli.commands.analyze as command
def print_seconds(stage):
    if stage == "analyze":
        print(time.time() - begun, flush=True)
@contextmanager
def told(spark, console):
    yield print_seconds
command.stage_progress = told
main()
"""
STOCK_PROGRAM = """
import time
begun = time.time()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").getOrCreate()
rows = spark.range(8).mapInArrow(lambda batches: batches, "id bigint")
assert len(rows.collect()) == 8
print(time.time() - begun)
"""


def time_call(times: Times, act: Callable[[], T]) -> T:
    """Call `act` and add its wall time and the CPU time of all processes."""
    begun, spent = time.perf_counter(), processor_seconds()
    found = act()
    times.add(time.perf_counter() - begun, processor_seconds() - spent)
    return found


def tables(
    spark: SparkSession, paths: list[str], out: Path, stage: Callable[[str], None] | None = None
) -> Analysis:
    """The complete pipeline in a running session."""
    shutil.rmtree(out, ignore_errors=True)
    done = analyze(spark, paths, str(out), on_stage=stage)
    assert done.conserved
    return done


def tables_of(
    spark: SparkSession, paths: list[str], out: Path, options: AnalysisOptions
) -> StageResult:
    """The stages of the pipeline for only the tables of `options`, whose files stay in `out`."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    cores, limits = spark.sparkContext.defaultParallelism, CaptureLimits()
    found = run_index_stage(spark, plan_index_tasks(find_inputs(paths), cores), str(out), limits)
    tasks = plan_analyze_tasks(found, cores)
    total = run_analyze_stage(spark, tasks, found.names, str(out), options, limits)
    if total.left_packets:
        tasks = plan_local_tasks(found)
        total.add(run_analyze_stage(spark, tasks, total.taken, str(out), options, limits))
    assert total.packets == found.packets
    return total


def count_stream_bytes(spark: SparkSession, paths: list[str], folder: Path) -> int:
    """Index, shuffle and reassembly as in the pipeline, with only a count at the end."""
    staging = folder / "counted"
    staging.mkdir()
    cores = spark.sparkContext.defaultParallelism
    limits = CaptureLimits()
    found = run_index_stage(
        spark, plan_index_tasks(find_inputs(paths), cores), str(staging), limits
    )
    tasks = plan_analyze_tasks(found, cores)
    selections = spark.sparkContext.parallelize(tasks, len(tasks))
    size = sum(selections.map(count_task(found.names, str(staging))).collect())
    shutil.rmtree(staging)
    return size


def count_task(names: list[str], staging: str) -> Callable[[FlowSelection], int]:
    """Return the function of a task: reassemble its flows in batches and count the bytes."""

    def run(selection: FlowSelection) -> int:
        freeze_gc("analyze")
        flows = ReferenceReader(staging, names, selection)
        with UrlFilePool(CaptureLimits(), flows.identities, flows.copies) as files:

            def steps(flow: StoredFlow, companion: ReadAhead) -> Iterator[int]:
                for session in sessions_of(flow.rows(), files.reader, read_ahead=companion):
                    if session.prefetch():
                        yield 0
                    for batch in session.batches():
                        found = len(batch.data)
                        del batch  # like the analysis
                        yield found

            return sum(interleave(flows, steps))

    return run


def run_cold(command: list[str], times: Times) -> str:
    """Run a command in a new process. Return its output."""
    begun, spent = time.perf_counter(), _spent_by_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    times.add(time.perf_counter() - begun, _spent_by_children() - spent)
    return done.stdout


def first_task(program: str, times: Times, *arguments: str) -> None:
    """Add the seconds from the first line of a program to the end of its first task, which it
    prints in a line of its own before anything else."""
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
    }  # by default PySpark uses the one on PATH
    spent = _spent_by_children()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False,
        env=environ,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    times.add(float(done.stdout.splitlines()[0]), _spent_by_children() - spent)


def _spent_by_children() -> float:
    """CPU seconds of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_seconds() -> float:
    """CPU seconds of this process and its running descendants."""
    total = 0.0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def largest_worker(spark: SparkSession) -> int:
    """The peak memory of the largest Python worker of a local session, in bytes."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    most = 0
    for process in psutil.Process(gateway.proc.pid).children(recursive=True):
        status = Path(f"/proc/{process.pid}/status")
        if not status.exists() or b"java" in Path(f"/proc/{process.pid}/comm").read_bytes():
            continue
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                most = max(most, int(line.split()[1]) * 1024)
    return most
