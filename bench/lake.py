"""Lakes: one session of a million, what a query reads, daily appends, runs of any size.

`python -m bench.lake [PART...]` measures parts: lookup, filters, planner, commits, appends,
connect; or all. POLYMUX_BENCH_SESSIONS changes the size of the lake of `lookup`, which is written
without captures, POLYMUX_BENCH_DAY_BYTES that of a day of `appends`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bench.harness import Bound, Figure, Floor, Line, Result, Times
from bench.lake_runs import appends, connect
from bench.pipeline_captures import Conversations
from bench.pipeline_runs import tables_of, time_call
from bench.results import show

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.arrow_batches import SCHEMAS, make_array, make_batch
from polymux.analysis.output.layout import TableLayout
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.schema.tables import TABLES, ColumnType
from polymux.capture.io.discovery import CaptureFile
from polymux.spark import spark_session
from polymux.spark.batch.analyze_stage import plan_analyze_tasks
from polymux.spark.batch.index_stage import plan_index_tasks
from polymux.spark.batch.reference_shuffle import (
    PACKET_COST,
    IndexResult,
    IndexTotals,
    bucket_count,
)
from polymux.spark.datasource.batch_reader import TableReader
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.source import register
from polymux.spark.lake.lake import Lake, open_lake
from polymux.spark.lake.store import DataFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSIONS = int(os.environ.get("POLYMUX_BENCH_SESSIONS", "1000000"))
DAYS, TASKS_PER_DAY = 30, 4
FRAMES_PER_SESSION = 4
MAX_GROUP_SHARE = 0.05  # of the row groups, for one session
MAX_LOOKUP_SECONDS = 2.0
FIRST_DAY_US = 1_762_128_000_000_000  # 2025-11-03
DAY_US = 86_400_000_000
LOOKUPS = 5

COMMITTED_FILES = {
    "parquet": (10_000, 100_000, 1_000_000),
    "delta": (1_000, 10_000, 100_000),
    "iceberg": (1_000, 10_000, 100_000),
}
FILES_OF_APPEND = 100

FILTER_SESSIONS = 1000
FILTER_BYTES = 64 << 20
MAX_PAYLOAD_SHARE = 0.05

PLANNED_FILES = (10_000, 100_000, 1_000_000)
PLANNED_FILE_BYTES = 5 << 20
SESSIONS_PER_FILE = 100
PLANNED_CORES = 400
MAX_GROWTH = 1.15  # of the time for each file, when there are ten times as many
HEAVIEST_BUCKETS = 24  # that an index task of a large run reports one by one


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        folder = Path(name)
        with spark_session("local[*]") as spark:
            lines = [
                *lookup(spark, folder), *filters(spark, folder), *appends(spark, folder),
                *planner(), *commits(folder),
            ]  # fmt: skip
        return [*lines, *connect(folder)]


def main(chosen: list[str]) -> None:
    parts: dict[str, Callable[[SparkSession, Path], list[Result]]] = {
        "lookup": lookup, "filters": filters, "planner": lambda spark, folder: planner(),
        "commits": lambda spark, folder: commits(folder), "appends": appends,
        "connect": lambda spark, folder: connect(folder),
    }  # fmt: skip
    lines: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        with spark_session("local[*]") as spark:
            for part in chosen or parts:
                lines += parts[part](spark, Path(name))
    show(lines)


# One session of a lake


def lookup(spark: SparkSession, folder: Path) -> list[Result]:
    """Look single sessions up in a lake of 30 days, by DuckDB and by Spark."""
    begun = time.perf_counter()
    sessions = write_lake(folder / "lake")
    spent = time.perf_counter() - begun
    chosen = Random(3).sample(sessions, LOOKUPS)
    lines: list[Result] = [
        Figure("rows written, with their sorting", [FRAMES_PER_SESSION * SESSIONS / spent / 1e6],
               "M rows/s", higher_is_better=True),
    ]  # fmt: skip
    for table in ("frames", "sessions"):
        paths = lake_files(folder / "lake", table)
        shares = [groups_read(paths, session) for session in chosen]
        bound = Bound("at most", 100 * MAX_GROUP_SHARE)
        name = f"one of {SESSIONS} sessions, {table}"
        lines.append(Figure(f"{name}: row groups", [100 * max(shares)], "%", [bound]))
        lines += by_duckdb(name, paths, chosen)
        lines += by_spark(spark, name, paths, chosen)
    return lines


def lake_files(folder: Path, table: str) -> list[str]:
    """The paths of the files of a table in the newest version of a lake."""
    lake = open_lake(str(folder))
    version = lake.current()
    assert version is not None
    return lake.paths(version.files_of(table))


def write_lake(folder: Path) -> list[str]:
    """Write sessions and their frames, as the tasks of a run for each day would. Return the ids of
    the sessions."""
    random = Random(1)
    layout = TableLayout(("date",))
    lake = open_lake(str(folder))
    each = SESSIONS // (DAYS * TASKS_PER_DAY)
    written: list[str] = []
    for day in range(DAYS):
        staging, added = lake.begin(), []
        for _ in range(TASKS_PER_DAY):
            names = [f"{random.getrandbits(64):016x}" for _ in range(each)]
            written += names
            with staging.output.folder() as place:
                with TableWriter(place, layout=layout) as tables:
                    for begin in range(0, each, 400):
                        some = names[begin : begin + 400]
                        started = FIRST_DAY_US + day * DAY_US + begin * 1_000_000
                        for name in some:
                            tables.add_session(name, started, "default")
                        for table, batch in rows_of(some, started):
                            tables.emit(table, batch)
                added += staging.output.store(place)
        lake.commit(staging, added=added)
    return written


def rows_of(sessions: Sequence[str], started: int) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of some sessions: one of `sessions` each, and their frames."""
    count = len(sessions)
    names = make_array(sessions, pa.string())
    numbers = pc.cast(pa.array(range(FRAMES_PER_SESSION)), pa.int64())
    order = pa.array([n for n in range(count) for _ in range(FRAMES_PER_SESSION)], pa.int64())
    frames = made_columns("frames", count * FRAMES_PER_SESSION)
    frames["session_id"] = names.take(order)
    frames["frame_index"] = pa.concat_arrays([numbers] * count)
    for table, columns in (
        ("frames", frames), ("sessions", made_columns("sessions", count) | {"session_id": names})
    ):  # fmt: skip
        for column in TABLES[table].columns:
            if column.type is ColumnType.TIMESTAMP and not column.nullable:
                times = pc.add(columns[column.name].cast(pa.int64()), started)
                columns[column.name] = times.cast(SCHEMAS[table].field(column.name).type)
        yield table, make_batch(table, columns)


@cache
def made_arrays(table: str, count: int) -> dict[str, pa.Array]:
    """Columns of plausible rows: increasing times, the first allowed text, numbers that repeat."""
    columns: dict[str, pa.Array] = {}
    for column in TABLES[table].columns:
        values: list[object]
        if column.nullable:
            values = [None] * count
        elif column.type is ColumnType.TIMESTAMP:
            values = [1000 * number for number in range(count)]
        elif column.type is ColumnType.TEXT:
            values = [(*column.allowed_values, column.name)[0]] * count
        elif column.type is ColumnType.TEXT_LIST:
            values = [["/captures/one.pcapng"]] * count
        else:
            values = [number % 100 for number in range(count)]
        columns[column.name] = make_array(values, SCHEMAS[table].field(column.name).type)
    return columns


def made_columns(table: str, count: int) -> dict[str, pa.Array]:
    return dict(made_arrays(table, count))


def groups_read(paths: Sequence[str], session: str) -> float:
    """The share of the row groups whose bounds and Bloom filter do not exclude a session."""
    import duckdb

    read = groups = 0
    with duckdb.connect() as database:
        for path in paths:
            excluded = database.execute(
                "select bloom_filter_excludes from parquet_bloom_probe(?, 'session_id', ?)",
                [path, session],
            ).fetchall()
            stored = pq.read_metadata(path)
            for number, (without,) in enumerate(excluded):
                bounds = stored.row_group(number).column(0).statistics
                groups += 1
                read += not without and bounds.min <= session <= bounds.max
    return read / groups


def by_duckdb(name: str, paths: list[str], sessions: Sequence[str]) -> list[Result]:
    import duckdb

    times = []
    with duckdb.connect() as database:
        for session in sessions:
            begun = time.perf_counter()
            found = database.execute(
                "select * from read_parquet(?) where session_id = ?",
                [paths, session],
            ).fetchall()
            times.append(time.perf_counter() - begun)
            assert found
    bound = Bound("at most", MAX_LOOKUP_SECONDS)
    return [Figure(f"{name}: DuckDB", times, "s", [bound])]


def by_spark(
    spark: SparkSession, name: str, paths: list[str], sessions: Sequence[str]
) -> list[Result]:
    times, shares = [], []
    rows = spark.read.parquet(*paths)  # looks at the files: once for many queries
    total = rows.count()
    for session in sessions:
        found = rows.where(rows.session_id == session)
        begun = time.perf_counter()
        assert found.collect()
        times.append(time.perf_counter() - begun)
        shares.append(100 * rows_scanned(found) / total)
    return [
        Figure(f"{name}: Spark", times, "s", [Bound("at most", MAX_LOOKUP_SECONDS)]),
        Figure(f"{name}: rows that Spark read", [max(shares)], "%",
               [Bound("at most", 100 * MAX_GROUP_SHARE)]),
    ]  # fmt: skip


def rows_scanned(query: DataFrame) -> int:
    """The rows that the scan of an executed query has put out, by Spark's own metric."""
    plan = query._jdf.queryExecution().executedPlan()
    if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        plan = plan.executedPlan()
    scan = plan.collectLeaves().head()
    return int(scan.metrics().apply("numOutputRows").value())


# What a query reads of captures


def filters(spark: SparkSession, folder: Path) -> list[Result]:
    """One session of many by options, and a query of all frames beside `analyze` of that table."""
    capture = folder / "filters.pcap"
    Conversations(FILTER_SESSIONS).write(capture, FILTER_BYTES)
    register(spark)
    options = {"path": str(capture), "protocol": "mplex"}
    sessions, _ = read_directly({**options, "table": "sessions", "columns": "session_id"})
    chosen = str(sessions[FILTER_SESSIONS // 2]["session_id"])
    narrow = {**options, "columns": "session_id,frame_index,size,kind"}
    _, all_bytes = read_directly(narrow)
    one, one_bytes = read_directly({**narrow, "onlySessions": chosen})
    frames = spark.read.format("polymux").options(**narrow).load()
    expected = frames.where(frames.session_id == chosen).collect()
    assert sorted(map(str, one)) == sorted(str(row.asDict()) for row in expected)
    share = 100 * one_bytes / all_bytes
    lines: list[Result] = [
        Figure(f"one of {FILTER_SESSIONS} sessions of captures: payload read", [share], "%",
               [Bound("at most", 100 * MAX_PAYLOAD_SHARE)]),
    ]  # fmt: skip
    query, written = Times(), Times()
    read = spark.read.format("polymux").options(**options)
    only = AnalysisOptions("mplex", tables=frozenset({"frames"}))
    for _ in range(3):
        time_call(query, lambda: read.load().groupBy("kind").sum("size").collect())
        time_call(written, lambda: tables_of(spark, [str(capture)], folder / "out", only))
    size = os.path.getsize(capture)
    for clock in ("wall", "cpu"):
        lines.append(
            Line(f"a query of all frames of captures, {clock}", query, size, "MB/s",
                 [Floor("analyze, the table frames", written, 1.0)], clock=clock, scale=1e6)
        )  # fmt: skip
    return lines


def read_directly(options: dict[str, str]) -> tuple[list[dict[str, object]], int]:
    """The rows of a read, and the bytes of payload that it read, counted by the reader."""
    reader = TableReader(SourceOptions.parse(options))
    rows = [
        row
        for part in reader.partitions()
        for batch in reader.read(part)
        for row in batch.to_pylist()
    ]
    return rows, reader.read_bytes


# Runs that do not fit here


def planner() -> list[Result]:
    """Plans of 10^4 to 10^6 files, of which the last have 10^8 sessions, from simulated results."""
    seconds: list[float] = []
    lines: list[Result] = []
    for files in PLANNED_FILES:
        found = [CaptureFile(f"/captures/{n:07}.pcapng", PLANNED_FILE_BYTES) for n in range(files)]
        before = psutil.Process().memory_info().rss
        begun = time.process_time()
        tasks = plan_index_tasks(found, PLANNED_CORES)
        totals = simulated_totals(tasks)
        planned = plan_analyze_tasks(totals, PLANNED_CORES)
        spent = time.process_time() - begun
        held = max(0, psutil.Process().memory_info().rss - before)
        assert sum(len(spans) for spans in tasks) == files
        assert totals.packets == 10 * files * SESSIONS_PER_FILE
        seconds.append(spent / files)
        name = f"plan of {files} files, {files * SESSIONS_PER_FILE} sessions"
        note = f"{len(tasks)} index tasks, {len(planned)} analyze tasks"
        lines += [
            Figure(f"{name}: for each file", [spent / files * 1e6], "µs", [], note=note),
            Figure(f"{name}: driver", [held / (1 << 20)], "MiB"),
        ]
    growth = seconds[-1] / seconds[-2]
    lines.append(Figure("plan: time for each file, 10 times the files", [growth], "times",
                        [Bound("linear", MAX_GROWTH)]))  # fmt: skip
    return lines


def commits(folder: Path) -> list[Result]:
    """Commits of up to 10^6 data files, and of a hundred more, to lakes of each format."""
    lines: list[Result] = []
    for format, counts in COMMITTED_FILES.items():
        seconds: list[float] = []
        for files in counts:
            lake = open_lake(str(folder / f"commit-{format}-{files}"), format)
            first = commit_seconds(lake, data_files(files))
            more = commit_seconds(lake, data_files(FILES_OF_APPEND, files))
            version = lake.current()
            assert version is not None
            assert len(version.all_files()) == files + FILES_OF_APPEND
            seconds.append(first / files)
            lines += [
                Figure(f"commit of {files} files, {format}: for each", [first / files * 1e6], "µs"),
                Figure(f"commit of {FILES_OF_APPEND} files to {files}, {format}", [more], "s"),
            ]
        growth = seconds[-1] / seconds[-2]
        name = f"commit, {format}: time for each file, 10 times the files"
        lines.append(Figure(name, [growth], "times", [Bound("linear", MAX_GROWTH)]))
    return lines


def data_files(count: int, start: int = 0) -> list[DataFile]:
    """Files of a table that a run would have stored; only their names are committed."""
    found = []
    for number in range(start, start + count):
        date = f"2025-11-{number % DAYS + 1:02}"
        path = f"frames/date={date}/part-{number:012x}-{number:012x}.parquet"
        found.append(DataFile("frames", path, 64 << 20, 1 << 20, {"date": date}))
    return found


def commit_seconds(lake: Lake, files: list[DataFile]) -> float:
    """The processor time of a commit."""
    staging = lake.begin()
    begun = time.process_time()
    lake.commit(staging, added=files)
    return time.process_time() - begun


def simulated_totals(tasks: Sequence[Sequence[object]]) -> IndexTotals:
    """The sum of what these index tasks would return, each a packed result."""
    buckets = bucket_count(len(tasks))
    totals = IndexTotals(buckets)
    random = Random(2)
    for number, spans in enumerate(tasks):
        sessions = len(spans) * SESSIONS_PER_FILE
        costs = {random.randrange(buckets): 1000 for _ in range(HEAVIEST_BUCKETS)}
        result = IndexResult(
            f"{number:032x}", ['{"file": "/captures/x.pcapng", "status": "whole"}'] * len(spans),
            10 * sessions, 10 * sessions * PACKET_COST, costs,
        )  # fmt: skip
        totals.add(IndexResult.unpack(result.pack()))
    return totals


if __name__ == "__main__":
    main(sys.argv[1:])
