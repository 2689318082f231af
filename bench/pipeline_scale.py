"""Laws of the pipeline at sizes that do not fit here: bytes read, memory, exchange, following.

Part of `python -m bench pipeline`; `python -m bench.pipeline_scale [PART...]` measures the parts
named, or all: read, storage, driver, exchange, flows, following.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench.harness import Bound, Figure, NotMeasured, Result
from bench.pipeline_captures import Conversations
from bench.results import show
from tests.spark.random_captures import Switch

from polymux.analysis.options import AnalysisOptions
from polymux.capture import (
    CaptureLimits,
    FileRange,
    FlowRefs,
    PcapngWriter,
    TcpConnectionWriter,
    hint_comment,
)
from polymux.spark import spark_session
from polymux.spark.batch.analyze_stage import (
    FewNames,
    StageResult,
    analyze_task,
    plan_analyze_tasks,
    plan_local_tasks,
)
from polymux.spark.batch.index_stage import IndexSpan, index_task
from polymux.spark.batch.pipeline import analyze
from polymux.spark.batch.reference_shuffle import (
    FlowSelection,
    IndexResult,
    IndexTotals,
    ReferenceReader,
    ReferenceWriter,
    reported_buckets,
)
from polymux.spark.streaming.micro_batches import FolderFollower
from polymux.spark.streaming.offset import FolderOffset
from polymux.spark.streaming.open_sessions import SessionTimeouts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUT_BYTES = 32 << 20
TASKS = (2, 8, 32)
INDEX_TASKS = (100, 1_000, 10_000)
ROTATED_FILES = 8
SHORT_FLOWS = 300_000
DAYS, FILES_PER_DAY = 30, 24
START = 1_700_000_000_000_000_000
MIB = 1 << 20


def measure(spark: SparkSession, folder: Path) -> list[Result]:
    return [
        *read_ratios(spark, folder), *storage_reads(folder), *index_results(), *exchange(folder),
        *short_flows(folder), *following(folder),
    ]  # fmt: skip


def main(chosen: list[str]) -> None:
    parts: dict[str, Callable[[Path], list[Result]]] = {
        "read": read_ratios_in_session, "storage": storage_reads,
        "driver": lambda _: index_results(), "exchange": exchange, "flows": short_flows,
        "following": following,
    }  # fmt: skip
    lines: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        for part in chosen or parts:
            lines += parts[part](Path(name))
    show(lines)


def read_ratios_in_session(folder: Path) -> list[Result]:
    with spark_session("local[*]") as spark:
        return read_ratios(spark, folder)


def read_ratios(spark: SparkSession, folder: Path) -> list[Result]:
    """Bytes read of the captures for each byte of them, in all stages."""
    import zstandard

    capture = folder / "scale.pcap"
    Conversations(64).write(capture, INPUT_BYTES, last=True)
    packed = folder / "scale.pcap.zst"
    packed.write_bytes(zstandard.ZstdCompressor().compress(capture.read_bytes()))
    inputs = {"plain": str(capture), "zstd": str(packed)}
    lines: list[Result] = []
    store = None
    try:
        from moto.server import ThreadedMotoServer

        store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    except ImportError:
        lines.append(NotMeasured("bytes read for each byte, S3", "moto is not installed"))
    if store is not None:
        store.start()
        host, port = store.get_host_and_port()
        inputs["S3"] = _upload(capture, host, port)
    for name, path in inputs.items():
        for tasks in TASKS:
            size = capture.stat().st_size // tasks
            done = analyze(spark, path, folder / "scale", max_partition_bytes=size)
            assert done.conserved
            ratio = done.read_bytes / done.capture_bytes
            # A plain file is read for the index and again for the payload: a copy of it would be no
            # quicker to read. Two tasks each read all of it, which is quicker than piece by piece.
            plain = 3.1 if tasks == 2 else 2.1
            bounds = [Bound("for each byte", plain if name == "plain" else 1.2)]
            lines.append(
                Figure(f"bytes read for each byte, {name}, {tasks} tasks", [ratio], "", bounds)
            )
    if store is not None:
        store.stop()
    return lines


def _upload(capture: Path, host: str, port: int) -> str:
    import boto3  # type: ignore[import-untyped]  # it has no types of its own

    client = boto3.client(
        "s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1",
        aws_access_key_id="key", aws_secret_access_key="secret",
    )  # fmt: skip
    client.create_bucket(Bucket="bench")
    client.upload_file(str(capture), "bench", capture.name)
    query = f"endpoint_override={host}%3A{port}&scheme=http&region=us-east-1"
    return f"s3://key:secret@bench/{capture.name}?{query}"


def storage_reads(folder: Path) -> list[Result]:
    """Bytes that come from storage for each byte of rotated captures, if no two tasks share a host.

    The page cache is emptied before every analyze task.
    """
    folder = folder / "rotated"
    folder.mkdir()
    paths = [str(folder / f"{number}.pcap") for number in range(ROTATED_FILES)]
    for number, path in enumerate(paths):
        Conversations(64, number=number).write(Path(path), INPUT_BYTES // 4, last=True)
        with open(path, "rb") as file:  # what is not written yet stays in the page cache
            os.fsync(file.fileno())
    totals = IndexTotals()
    for path in paths:
        spans = [IndexSpan(path, FileRange())]
        totals.add(IndexResult.unpack(index_task(str(folder), CaptureLimits())(spans)))
    size = sum(map(os.path.getsize, paths))
    lines: list[Result] = []
    for name, leaves in (("by flow", False), ("by capture", True)):
        tasks = plan_analyze_tasks(totals, ROTATED_FILES)
        tasks = [replace(task, leaves_local=leaves) for task in tasks]
        read, done = _from_storage(paths, folder, totals.names, tasks)
        if done.left_packets:
            more, rest = _from_storage(paths, folder, done.taken, plan_local_tasks(totals))
            read += more
            done.add(rest)
        assert done.packets == totals.packets
        bounds = [Bound("for each byte", 1.2)] if leaves else []
        title = f"read from storage for each byte, {ROTATED_FILES} captures, {name}"
        if read == 0:
            lines.append(NotMeasured(title, "the file system does not count what it reads"))
        else:
            lines.append(Figure(title, [read / size], "", bounds))
    return lines


def _from_storage(
    paths: list[str], staging: Path, names: list[str], tasks: list[FlowSelection]
) -> tuple[int, StageResult]:
    """Run analyze tasks in this process; also return the bytes that came from storage."""
    run = analyze_task(FewNames(names), str(staging), AnalysisOptions("mplex"), CaptureLimits())
    read, done = 0, StageResult()
    for task in tasks:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
        before = psutil.Process().io_counters().read_bytes
        done.add(run(task))
        read += psutil.Process().io_counters().read_bytes - before
    return read, done


def index_results() -> list[Result]:
    """What the driver holds of index tasks with many flows each."""
    lines: list[Result] = []
    for tasks in INDEX_TASKS:
        with tempfile.TemporaryDirectory() as staging:
            with ReferenceWriter(staging, 65536, reported_buckets(tasks)) as writer:
                writer.add([_row(number, 0) for number in range(5_000)])
            writer.result.summaries.append(json.dumps({"file": "x" * 80, "status": "whole"}))
            packed = [bytes(bytearray(writer.result.pack())) for _ in range(min(tasks, 1000))]
        tracemalloc.start()
        totals = IndexTotals(65536)
        begun = time.perf_counter()
        for number in range(tasks):
            totals.add(IndexResult.unpack(packed[number % len(packed)]))
        spent = time.perf_counter() - begun
        held = tracemalloc.get_traced_memory()[0] / tasks
        tracemalloc.stop()
        name = f"driver, {tasks} index tasks"
        bound = [Bound("a task", 1000)]
        lines += [
            Figure(f"{name}: result", [len(packed[0])], "bytes", bound),
            Figure(f"{name}: held for each", [held], "bytes", bound),
            Figure(f"{name}: time for each", [spent / tasks * 1e6], "µs", []),
        ]
    return lines


def exchange(folder: Path) -> list[Result]:
    """The time in which a task collects its part of the files of all index tasks."""
    lines: list[Result] = []
    for tasks in INDEX_TASKS:
        with tempfile.TemporaryDirectory(dir=folder) as staging:
            names = []
            for number in range(tasks):
                with ReferenceWriter(staging, 65536, 24) as writer:
                    writer.add([_row(flow, number) for flow in range(number, number + 20)])
                names.append(writer.result.name)
            begun = time.perf_counter()
            ReferenceReader(staging, names, FlowSelection(range(100, 200)))
            spent = (time.perf_counter() - begun) / tasks * 1e6
        lines.append(Figure(f"exchange, {tasks} index tasks: for each", [spent], "µs", []))
    return lines


def _row(flow: int, start: int) -> FlowRefs:
    key = (flow // 2).to_bytes(36, "big")  # both directions
    return FlowRefs(key, flow & 1, "/captures/one.pcap", start, START + flow, START, bytes(64))


SHORT_FLOWS_PROGRAM = """
import os, sys
from polymux.malloc import ARROW_POOL
os.environ.setdefault(*ARROW_POOL)  # as in the workers of Spark
from polymux.analysis.options import AnalysisOptions
from polymux.capture import CaptureLimits, FileRange
from polymux.spark.batch.analyze_stage import FewNames, analyze_task
from polymux.spark.batch.index_stage import IndexSpan, index_task
from polymux.spark.batch.reference_shuffle import MIN_BUCKETS, FlowSelection, IndexResult

stage, staging, given = sys.argv[1:]
if stage == "index":
    packed = index_task(staging, CaptureLimits())([IndexSpan(given, FileRange())])
    print(IndexResult.unpack(packed).name)
else:
    analyzed = analyze_task(FewNames([given]), staging, AnalysisOptions("mplex"), CaptureLimits())
    print(analyzed(FlowSelection(range(MIN_BUCKETS))).sessions)
# Not `ru_maxrss`, which begins with what the process had that started this one.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def short_flows(folder: Path) -> list[Result]:
    """The memory of an index task and of an analyze task that have many short flows."""
    capture = folder / "short.pcap"
    write_short_flows(capture)
    staging = folder / "short"
    staging.mkdir()
    given, lines = str(capture), []
    for stage in ("index", "analyze"):
        done = subprocess.run(
            [sys.executable, "-c", SHORT_FLOWS_PROGRAM, stage, str(staging), given],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        given, kilobytes = done.stdout.split()
        name = f"memory, {SHORT_FLOWS} short flows, {stage} task"
        lines.append(Figure(name, [int(kilobytes) / 1024], "MiB", [Bound("a task", 256)]))
    assert int(given) == SHORT_FLOWS
    return [*lines]


def write_short_flows(path: Path) -> None:
    """A capture of flows of one connection each: SYN, a frame of mplex, FIN."""
    content = bytes.fromhex("000161")
    with path.open("wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1))
        for flow in range(SHORT_FLOWS):
            ends = struct.pack(">II", 0x0A000000 + flow // 50_000, 0xC6336402)
            ports = struct.pack(">HH", 10_000 + flow % 50_000, 9000)
            for number, (sequence, flags, data) in enumerate(
                ((0, 0x02, b""), (1, 0x18, content), (1 + len(content), 0x11, b""))
            ):
                tcp = ports + struct.pack(">IIBBHHH", sequence, 0, 0x50, flags, 1000, 0, 0) + data
                ip = struct.pack(">BBHIBBH", 0x45, 0, 20 + len(tcp), 0, 64, 6, 0) + ends
                packet = bytes(12) + b"\x08\x00" + ip + tcp
                seconds, nanoseconds = divmod(START + flow * 1000 + number, 10**9)
                size = len(packet)
                file.write(struct.pack("<IIII", seconds, nanoseconds, size, size) + packet)


def following(folder: Path) -> list[Result]:
    """State, offset and time of a batch over many days of files that stay where they are.

    Over each boundary between two files goes a session.
    """
    one = follow_days(folder / "days", "following", "collect-{number:05}.pcapng")
    by_day = follow_days(
        folder / "by-day", "following, a folder a day", "{day:03}/{hour:02}.pcapng"
    )
    return [*one, *by_day]


def follow_days(inbox: Path, title: str, pattern: str) -> list[Result]:
    inbox.mkdir()
    now = [START]
    follower = FolderFollower(
        str(inbox), timeouts=SessionTimeouts(1, 20, 7200, 3600), clock=lambda: now[0]
    )
    offset = FolderOffset()
    batches: list[tuple[float, int, int]] = []
    sink = Switch()
    crossing: TcpConnectionWriter | None = None  # begun in the file before
    for number in range(1, DAYS * FILES_PER_DAY + 1):
        now[0] = START + number * 86_400_000_000_000 // FILES_PER_DAY
        day, hour = divmod(number - 1, FILES_PER_DAY)
        path = inbox / pattern.format(number=number, day=day, hour=hour)
        path.parent.mkdir(exist_ok=True)
        with PcapngWriter(str(path), sync="none") as writer:
            sink.turn_to(writer)
            if crossing is not None:
                crossing.close(now[0])
            _talk(sink, "192.0.2.9", 40_000 + number, now[0]).close(now[0] + 2000)
            end = now[0] + 86_400_000_000_000 // FILES_PER_DAY
            crossing = _talk(sink, "192.0.2.8", 40_000 + number, end - 1_000_000_000)
        for changed in (path, path.parent):  # a folder of past days does not look as if just made
            os.utime(changed, ns=(now[0], now[0]))
        begun = time.perf_counter()
        start = FolderOffset.from_dict(json.loads(json.dumps(offset.to_dict())))
        offset = follower.next_offset(start, 1 << 40)
        follower.plan_batch(start, offset)
        spent = time.perf_counter() - begun
        batches.append((spent, len(json.dumps(offset.to_dict())), len(offset.files)))
    first = batches[FILES_PER_DAY : 2 * FILES_PER_DAY]
    last = batches[-FILES_PER_DAY:]
    name = f"{title}, day {DAYS}"
    files, offsets = (
        [max(batch[column] for batch in day) for day in (first, last)] for column in (2, 1)
    )
    times = [sorted(batch[0] for batch in day)[FILES_PER_DAY // 2] * 1e3 for day in (first, last)]
    return [
        Figure(f"{name}: files kept", [files[1]], "", [Bound("day 2", files[0])]),
        Figure(f"{name}: offset", [offsets[1]], "bytes", [Bound("day 2", offsets[0] * 1.1)]),
        Figure(f"{name}: batch", [times[1]], "ms", [Bound("day 2", times[0], target=None)]),
    ]


def _talk(sink: Switch, host: str, port: int, at: int) -> TcpConnectionWriter:
    talk = TcpConnectionWriter(
        sink, (host, port), ("198.51.100.2", 9000), at, comment=hint_comment("mplex", "acceptor")
    )
    talk.data(0, bytes.fromhex("000161 020568656c6c6f"), at + 1000)
    return talk


if __name__ == "__main__":
    main(sys.argv[1:])
