"""Following a growing folder of captures: micro-batches of finished sessions into tables."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polymux.analysis.options import Plan, parse_ports
from polymux.capture.io.paths import AnyPath, one_path
from polymux.core.errors import CaptureError
from polymux.spark.datasource.stream_reader import MOST, FollowSource, Told
from polymux.spark.streaming.open_sessions import Waits
from polymux.spark.streaming.table_output import FollowTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

EVERY = 1.0  # seconds between two looks into the folder


@dataclass(frozen=True)
class BatchDone:
    """What one micro-batch came to. `lag` is how old the newest packet is, in seconds."""

    batch: int
    files: int
    octets: int
    rows: int
    sessions: int
    open: int
    late_packets: int
    unbalanced: int
    lag: float


def start_following(
    spark: SparkSession,
    folder: AnyPath,
    out: AnyPath,
    *,
    protocol: str = "auto",
    ports: Sequence[str] = (),
    filters: Sequence[str] = (),
    content: bool = False,
    waits: Waits | None = None,
    available_now: bool = False,
    most: int = MOST,
    every: float = EVERY,
    tell: Callable[[BatchDone], None] | None = None,
) -> StreamingQuery:
    """Begin to follow `folder` into the tables under `out`; returns the running query.

    Sessions are given out when they are over (see `Waits`), every row once, also after a kill:
    started again with the same `out` it goes on where it was. With `available_now` the query ends
    when what is there now has been read. `tell` hears of every batch. Errors about the options
    and the directories are raised before anything runs.
    """
    folder, out = one_path(folder), one_path(out)
    if not os.path.isdir(folder):
        raise CaptureError("no such directory; watching reads a directory that grows", folder)
    Plan(protocol, parse_ports(ports))
    waits = waits or Waits()
    settings = {
        "path": os.path.abspath(folder),
        "protocol": protocol,
        "ports": json.dumps(list(ports)),
        "filters": json.dumps(list(filters)),
        "content": "true" if content else "false",
        "sessionGrace": f"{waits.linger:g}",
        "sessionTimeout": f"{waits.idle:g}",
        "idleTimeout": f"{waits.patience:g}",
        "dedupWindow": f"{waits.remember:g}",
    }
    tables = FollowTables(out, settings)
    spark.dataSource.register(FollowSource)
    reader = spark.readStream.format(FollowSource.NAME).options(
        **settings, staging=str(tables.staging), most=str(most)
    )

    def publish(rows: DataFrame, batch: int) -> None:
        told = [Told(**json.loads(row[0])) for row in rows.collect()]
        tables.publish(batch, told)
        if tell is not None:
            tell(summed(batch, told))

    writer = reader.load().writeStream.foreachBatch(publish)
    writer = writer.option("checkpointLocation", str(tables.checkpoint))
    if available_now:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{max(1, int(every * 1000))} milliseconds")
    return writer.start()


def summed(batch: int, told: Sequence[Told]) -> BatchDone:
    status: dict[str, int] = next((part.status for part in told if part.status), {})
    newest = status.get("newest", 0)
    return BatchDone(
        batch,
        status.get("files", 0),
        status.get("bytes", 0),
        sum(part.rows for part in told),
        sum(part.sessions for part in told),
        status.get("open", 0),
        status.get("late_packets", 0),
        sum(part.unbalanced for part in told),
        (status.get("clock", 0) - newest) / 1000 if newest else 0.0,
    )
