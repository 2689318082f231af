"""Following a folder in micro-batches, beside one batch over the same captures.

Each capture has complete sessions of its own and is one micro-batch.
The steady state is measured: from the end of the first micro-batch to the end of the last.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.pipeline_captures import Conversations
from bench.pipeline_runs import processor_seconds

from polymux.spark.streaming.open_sessions import SessionTimeouts
from polymux.spark.streaming.query import BatchReport, start_following

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAPTURES = 5
SESSIONS = 16
HOUR = 3600


def write_captures(folder: Path, size: int) -> list[Path]:
    """Write about `size` bytes of captures, modified an hour ago: all sessions have ended."""
    folder.mkdir()
    paths = []
    for number in range(CAPTURES):
        path = folder / f"capture-{number}.pcap"
        talks = Conversations(SESSIONS, number=number)
        talks.write(path, size // CAPTURES)
        written = time.time() - HOUR + 60 * number
        os.utime(path, (written, written))
        paths.append(path)
    return paths


def run_streaming_query(
    spark: SparkSession, folder: Path, out: Path
) -> list[tuple[float, float, int]]:
    """Follow the existing captures, one per micro-batch.

    Returns for each micro-batch: its end, the CPU seconds of all processes until then, its bytes.
    """
    ends: list[tuple[float, float, int]] = []
    sessions = 0

    def tell(done: BatchReport) -> None:
        nonlocal sessions
        assert done.unbalanced == 0
        sessions += done.sessions
        if done.capture_bytes:
            ends.append((time.perf_counter(), processor_seconds(), done.capture_bytes))

    largest = max(path.stat().st_size for path in folder.iterdir())
    timeouts = SessionTimeouts(session_grace=0)  # the files do not grow
    query = start_following(
        spark,
        str(folder),
        str(out),
        timeouts=timeouts,
        max_bytes_per_trigger=largest,
        available_now=True,
        on_batch=tell,
    )
    query.awaitTermination()
    shutil.rmtree(out, ignore_errors=True)  # the query gives its lock up meanwhile
    assert sessions == SESSIONS * CAPTURES, sessions
    assert len(ends) == CAPTURES, ends
    return ends
