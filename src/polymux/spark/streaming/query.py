"""Following a growing folder of captures: micro-batches of ended sessions into tables."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.tls.key_files import read_key_option
from polymux.capture import SensorNaming
from polymux.capture.io.paths import AnyPath, one_path
from polymux.core.errors import CaptureError, PolymuxError
from polymux.spark.datasource.stream_reader import (
    DEFAULT_MAX_BYTES_PER_TRIGGER,
    AllTablesSource,
    TaskReport,
)
from polymux.spark.runtime.session_jobs import is_connect, jobs_of
from polymux.spark.streaming.open_sessions import SessionTimeouts
from polymux.spark.streaming.table_output import StreamingTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

TASKS_PER_CORE = 2  # most tasks of a micro-batch, for each core of the session
DEFAULT_INTERVAL_SECONDS = 1.0  # seconds between scans of the folder


_running: list[tuple[StreamingQuery, StreamingTables]] = []


@dataclass(frozen=True)
class BatchReport:
    """Counters of one micro-batch. `lag_seconds` is the age of the newest packet."""

    batch_id: int
    files: int
    capture_bytes: int
    rows: int
    sessions: int
    open_sessions: int
    late_packets: int
    unbalanced: int
    lag_seconds: float


def start_following(
    spark: SparkSession,
    folder: AnyPath,
    out: AnyPath,
    *,
    protocol: str = "auto",
    ports: Sequence[str] = (),
    filters: Sequence[str] = (),
    content: bool = False,
    keys: Sequence[str] = (),
    timeouts: SessionTimeouts | None = None,
    available_now: bool = False,
    max_bytes_per_trigger: int = DEFAULT_MAX_BYTES_PER_TRIGGER,
    interval: float = DEFAULT_INTERVAL_SECONDS,
    on_batch: Callable[[BatchReport], None] | None = None,
    sensors: SensorNaming | None = None,
) -> StreamingQuery:
    """Start to follow `folder` into the tables below `out`.

    The rows of a session are written once, when it has ended (see `SessionTimeouts`). A query that
    was stopped or killed resumes where it was when it is started again with the same `out`.

    Args:
        spark: The session that runs the query.
        folder: The directory to which captures are added.
        out: The directory of the tables; new, or from an earlier run with the same settings.
        protocol: A protocol string, or `auto` to detect the protocol of each session.
        ports: Protocols by port, each as `9000=mplex`.
        filters: Only these flows, each as `host:port`.
        content: Also write the table `content`.
        keys: TLS key logs: files, directories or globs, read again for every micro-batch.
        timeouts: When a session counts as ended.
        available_now: Stop once the files that exist now have been read.
        max_bytes_per_trigger: Most bytes of captures per micro-batch, but at least one file.
        interval: Seconds between scans of the folder.
        on_batch: Called after every micro-batch, in a thread of Spark.
        sensors: How the sensor of each capture is found.

    Returns:
        The running query.

    Raises:
        PolymuxError: An option or directory cannot be used. Raised before the query starts.
    """
    if is_connect(spark):
        raise PolymuxError(
            "watching publishes its tables in the driver's process, and this session is of Spark "
            "Connect, whose driver is elsewhere: give a master, add to a lake (--append), or read "
            "the captures with spark.readStream.format('polymux')"
        )
    _release_ended()
    folder, out = one_path(folder), one_path(out)
    if not os.path.isdir(folder):
        raise CaptureError("no such directory; watching reads a directory that grows", folder)
    AnalysisOptions(protocol, parse_ports(ports))
    read_key_option(keys)
    timeouts = timeouts or SessionTimeouts()
    settings = {
        "path": os.path.abspath(folder),
        "protocol": protocol,
        "ports": json.dumps(list(ports)),
        "filters": json.dumps(list(filters)),
        "content": "true" if content else "false",
        "sessionGrace": f"{timeouts.session_grace:g}",
        "sessionTimeout": f"{timeouts.session_timeout:g}",
        "idleTimeout": f"{timeouts.idle_timeout:g}",
        "dedupWindow": f"{timeouts.dedup_window:g}",
    }
    if sensors is not None and sensors != SensorNaming():
        settings |= {"sensor": sensors.name, "sensorFrom": sensors.pattern}
    tables = StreamingTables(out, settings)
    try:
        options = {
            **settings,
            "staging": str(tables.staging),
            "indexFolder": str(tables.index_folder),
            "maxBytesPerTrigger": str(max_bytes_per_trigger),
            "keys": json.dumps([os.path.abspath(name) for name in keys]),
            "maxTasks": str(TASKS_PER_CORE * jobs_of(spark).parallelism()),
        }
        trigger_seconds = None if available_now else interval
        query = _start_query(spark, options, tables, trigger_seconds, on_batch)
    except BaseException:
        tables.close()
        raise
    _running.append((query, tables))
    threading.Thread(target=_close_after, args=(query,), name="polymux-follow", daemon=True).start()
    return query


def _start_query(
    spark: SparkSession,
    options: dict[str, str],
    tables: StreamingTables,
    interval: float | None,
    on_batch: Callable[[BatchReport], None] | None,
) -> StreamingQuery:
    """Start the query that `AllTablesSource` reads for and `tables` publishes. An `interval` of
    None stops it once the files that exist now have been read."""
    spark.dataSource.register(AllTablesSource)
    reader = spark.readStream.format(AllTablesSource.NAME).options(**options)
    max_bytes = int(options["maxBytesPerTrigger"])

    def publish(rows: DataFrame, batch: int) -> None:
        reports = [TaskReport(**json.loads(row[0])) for row in rows.collect()]
        read = sum((report.status or {}).get("bytes", 0) for report in reports)
        tables.publish(batch, reports, more_waits=2 * read > max_bytes)
        counters = jobs_of(spark).counters()
        for report in reports:
            counters.add(counts_of(report))
        with suppress(Exception):  # its Java may be gone; the batch is published all the same
            counters.copy_to_metrics()
        if on_batch is not None:
            on_batch(merge_reports(batch, reports))

    writer = reader.load().writeStream.foreachBatch(publish)
    writer = writer.option("checkpointLocation", str(tables.checkpoint))
    if interval is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(1, int(interval * 1000))} milliseconds")
    return writer.start()


def _release_ended() -> None:
    """Give the locks of queries up that have ended just now."""
    for entry in list(_running):
        query, tables = entry
        ended = True
        with suppress(Exception):  # its Java may be gone
            ended = not query.isActive
        if ended:
            tables.close()
            with suppress(ValueError):
                _running.remove(entry)


def _close_after(query: StreamingQuery) -> None:
    """Give the lock of the output up when the query has ended."""
    with suppress(Exception):  # its Java may be gone
        query.awaitTermination()
    _release_ended()


def counts_of(report: TaskReport) -> dict[str, int]:
    """Return what a task of a micro-batch adds to the counters of the application.

    A data source's tasks have no accumulators, so that the driver adds what they have reported.
    What the index of new files read is not counted.
    """
    return {
        "input_bytes": report.read_bytes,
        "output_rows": report.rows,
        "output_bytes": report.written_bytes,
        "sessions": report.sessions,
        "frames": report.frames,
        "violations": report.violations,
    }


def merge_reports(batch_id: int, reports: Sequence[TaskReport]) -> BatchReport:
    """Sum the reports of a micro-batch's tasks."""
    status: dict[str, int] = next((part.status for part in reports if part.status), {})
    newest = status.get("newest", 0)
    return BatchReport(
        batch_id,
        status.get("files", 0),
        status.get("bytes", 0),
        sum(part.rows for part in reports),
        sum(part.sessions for part in reports),
        status.get("open", 0),
        status.get("late_packets", 0),
        sum(part.unbalanced for part in reports),
        (status.get("clock", 0) - newest) / 1000 if newest else 0.0,
    )
