"""Stage 1 of the batch pipeline: scan packet headers and write packet references.

The driver divides the captures into file ranges and groups these into tasks (`plan_index_tasks`).
The references stay in files under the staging folder. The driver receives only where they are, how
much work each group of flows is, a summary of each file range, and the TLS secrets found in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileRange,
    FileSummary,
    FlowFilter,
    FlowRefs,
    SensorNaming,
    index_range,
    merge_summaries,
    plan_ranges,
)
from polymux.capture.io.discovery import CaptureFile
from polymux.capture.io.paths import is_url
from polymux.capture.io.remote import open_capture
from polymux.capture.io.sources import (
    FileIdentity,
    IndexedSource,
    LostInput,
    StoredSource,
    open_source,
)
from polymux.capture.packets.file_summary import UNREADABLE
from polymux.capture.packets.flows import FlowName, flow_name
from polymux.core.errors import CaptureError, CaptureUnavailable
from polymux.core.urls import without_credentials
from polymux.spark.batch.capture_copies import MIN_FREE_BYTES, CaptureCopy
from polymux.spark.batch.reference_shuffle import (
    INDEX_FOLDER,
    MAX_REPORTED_BUCKETS,
    MIN_BUCKETS,
    IndexResult,
    IndexTotals,
    ReferenceWriter,
    bucket_count,
    reported_buckets,
)
from polymux.spark.runtime.session_jobs import Counters, jobs_of
from polymux.spark.runtime.stages import run_stage
from polymux.spark.runtime.worker_memory import freeze_gc, use_spark_local_dirs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MAX_TASK_BYTES = 1 << 30  # most bytes of captures per task
MIN_TASK_BYTES = 4 << 20  # a smaller task does not pay for its overhead of about 40 ms
SPLIT_TOLERANCE = 1.25  # a file up to this factor larger than the target is not split


@dataclass(frozen=True)
class IndexSpan:
    """A range of one file, for one task to index. `listed_bytes` is the size of the file when it
    was found, 0 if that is not known; `identity` what it was when it was cut (`FileIdentity`), ""
    if it was not. Of `flows`, if given, only these are kept (`flow_name`)."""

    path: str
    file_range: FileRange
    listed_bytes: int = 0
    flows: frozenset[FlowName] | None = None
    identity: str = ""


@dataclass(frozen=True)
class CutFile:
    """The ranges of a large file, and the identity of the file that they are of; "" if it could not
    be read."""

    ranges: list[FileRange]
    identity: str = ""


Cut = Callable[[Sequence[str], int], dict[str, CutFile]]


def plan_index_tasks(
    captures: Sequence[CaptureFile],
    cores: int,
    target_bytes: int = 0,
    cut: Cut | None = None,
) -> list[list[IndexSpan]]:
    """Group file ranges into index tasks of about equal size.

    Large files are split, small ones share a task. Files behind URLs are not split: finding the
    boundaries would mean fetching them once more.

    Args:
        captures: The files and their sizes.
        cores: The number of tasks that run at a time.
        target_bytes: Target size of a task; 0 chooses one that keeps every core busy.
        cut: Called with the paths of large files and the target size; returns each of them cut.
            None reads the files in this process.
    """
    target = target_bytes or max(MIN_TASK_BYTES, even_task_size(total_bytes(captures), cores))
    large = [
        capture.path
        for capture in captures
        if not is_url(capture.path) and capture.size > target * SPLIT_TOLERANCE
    ]
    pieces = (cut or cut_files)(large, target) if large else {}
    tasks: list[list[IndexSpan]] = []
    room = 0
    for capture in captures:
        whole = pieces.get(capture.path, CutFile([FileRange()]))
        for piece in whole.ranges:
            size = (piece.end if piece.end >= 0 else capture.size) - piece.start
            if not tasks or size > 2 * room:  # less than half of it fits
                tasks.append([])
                room = target
            tasks[-1].append(IndexSpan(capture.path, piece, capture.size, identity=whole.identity))
            room -= size
    return tasks


def cut_file(path: str, target: int) -> CutFile:
    """Divide a local file into ranges of about `target` bytes.

    Raises:
        LostInput: The file was replaced or written to meanwhile.
    """
    limits = CaptureLimits()
    try:
        source = open_source(path, limits)
    except CaptureError:
        return CutFile([FileRange()])  # indexing it reports the error
    try:
        identity = _identity(source)
        ranges = plan_ranges(path, target=target, limits=limits, source=source)
        _check(identity, source)
    finally:
        source.close()
    return CutFile(ranges, str(identity))


def cut_files(paths: Sequence[str], target: int) -> dict[str, CutFile]:
    """Divide each of these files into ranges of about `target` bytes."""
    return {path: cut_file(path, target) for path in paths}


def cut_in_tasks(spark: SparkSession, staging: str) -> Cut:
    """Return the function for `plan_index_tasks` that reads each large file in a task of its own.

    Finding the boundaries of packets reads a file once, unless there is an index beside it.
    """

    def cut(paths: Sequence[str], target: int) -> dict[str, CutFile]:
        if len(paths) == 1:
            return cut_files(paths, target)  # a single task would take as long
        cut_up = run_stage(spark, partial(cut_file, target=target), paths, staging)
        return dict(zip(paths, cut_up, strict=True))

    return cut


def total_bytes(captures: Sequence[CaptureFile]) -> int:
    """Return the size of all captures together, in bytes."""
    return sum(capture.size for capture in captures)


def even_task_size(total: int, cores: int) -> int:
    """Size of equal tasks: as few rounds over all cores as `MAX_TASK_BYTES` allows."""
    rounds = -(-total // (MAX_TASK_BYTES * cores))
    return -(-total // max(1, rounds * cores))


def run_index_stage(
    spark: SparkSession,
    tasks: list[list[IndexSpan]],
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...] = (),
    filters: tuple[str, ...] = (),
    analyze_tasks: int = 0,
    sensors: SensorNaming | None = None,
    buckets: int = 0,
) -> IndexTotals:
    """Run the stage on the workers. Return the sum of its results.

    `analyze_tasks` is how many tasks are expected to analyze the result, and decides into how many
    `buckets` flows are hashed if that is not given.

    Raises:
        CaptureUnavailable: A capture cannot be read, or has changed since it was found.
    """
    buckets = buckets or bucket_count(analyze_tasks or len(tasks))
    reported = reported_buckets(len(tasks))
    counters = jobs_of(spark).counters()
    run_task = index_task(
        staging, limits, ports, filters, buckets, reported, sensors, counters,
        room_to_leave(staging),
    )  # fmt: skip
    totals = IndexTotals(buckets)
    with counters.kept_current():
        for packed in run_stage(spark, run_task, tasks, staging):
            totals.add(IndexResult.unpack(packed))
    return totals


def room_to_leave(folder: str) -> int:
    """Return how many bytes of the disk of `folder` copies must leave free: half of what is now.

    Called by the driver as the index begins. All copies of the run share the other half, with the
    references that are written meanwhile.
    """
    return max(MIN_FREE_BYTES, shutil.disk_usage(folder).free // 2)


def index_task(
    staging: str,
    limits: CaptureLimits,
    ports: tuple[int, ...] = (),
    filters: tuple[str, ...] = (),
    buckets: int = MIN_BUCKETS,
    reported: int = MAX_REPORTED_BUCKETS,
    sensors: SensorNaming | None = None,
    counters: Counters | None = None,
    leave_free: int = 0,
) -> Callable[[list[IndexSpan]], bytes]:
    """Return the function of a Spark task, which indexes spans and returns a packed result.

    Copies of captures leave `leave_free` bytes of the disk free; by default half of what is now.
    """
    leave = leave_free or room_to_leave(staging)

    def run(spans: list[IndexSpan]) -> bytes:
        freeze_gc("index")
        use_spark_local_dirs()
        flow_filter = FlowFilter(ports, filters, sensors)
        with ReferenceWriter(staging, buckets, reported) as writer:
            for span in spans:
                index_into(writer, span, staging, limits, flow_filter, leave)
        result = writer.result
        if counters is not None:
            counters.add({"input_bytes": result.read_bytes, "input_packets": result.packets})
        return result.pack()

    return run


def index_into(
    writer: ReferenceWriter,
    span: IndexSpan,
    staging: str,
    limits: CaptureLimits,
    flow_filter: FlowFilter,
    leave_free: int,
) -> None:
    """Index a span, add its rows and its summary to `writer`, and copy a capture that is slow to
    read twice, as long as `leave_free` bytes of the disk stay free."""
    with ExitStack() as stack:
        opened = _open(span, limits)
        if isinstance(opened, FileSummary):
            _add_summary(writer, opened, SpanFacts(span.file_range.start))
            return
        stack.callback(opened.close)
        identity = _identity(opened)
        # Reading it once more would fetch or decompress it once more.
        slow = is_url(span.path) or bool(opened.compression)
        copy = CaptureCopy(Path(staging, INDEX_FOLDER), leave_free) if slow else None
        facts = SpanFacts(span.file_range.start, str(identity))

        def add(rows: list[FlowRefs]) -> None:
            if span.flows is not None:
                rows = [row for row in rows if flow_name(row.flow) in span.flows]
            facts.add(rows)
            writer.add(rows, facts.identity)

        try:
            index = index_range(
                span.path,
                span.file_range,
                limits=limits,
                wanted=flow_filter,
                source=IndexedSource(opened, copy.write if copy else None),
                emit=add,
            )
            _check(identity, opened)
        except BaseException:
            if copy is not None:
                copy.discard()
            raise
        add(index.rows)
        if copy is not None:
            copy.close()
            if copy.name:
                writer.add_copy(span.path, copy.name)
        writer.result.read_bytes += opened.bytes_read
        writer.result.secrets += index.secrets
    _add_summary(writer, index.summary, facts)


@dataclass
class SpanFacts:
    """What an index task says of a span, beside its summary: where it starts, the identity of the
    file, and the timestamps of the first and last packet that was kept, -1 if there is none."""

    start: int
    identity: str = ""
    first_at: int = -1
    last_at: int = -1

    def add(self, rows: Sequence[FlowRefs]) -> None:
        """Take the timestamps of rows into account."""
        if rows:
            first, last = min(row.first_at for row in rows), max(row.last_at for row in rows)
            self.first_at = first if self.first_at < 0 else min(self.first_at, first)
            self.last_at = max(self.last_at, last)


def _add_summary(writer: ReferenceWriter, summary: FileSummary, facts: SpanFacts) -> None:
    writer.result.summaries.append(json.dumps([asdict(summary), asdict(facts)]))


def index_span(
    span: IndexSpan,
    limits: CaptureLimits,
    flow_filter: FlowFilter,
    known: FileIdentity | None = None,
) -> tuple[FileIndex, FileIdentity | None]:
    """Scan the packet headers of a span of a local file or URL.

    Returns the index, and what the file was; None if there was nothing to read. Damage inside the
    file is in the summary of the index; it does not raise. `known` is what the file was when
    another span of it was indexed.

    Raises:
        LostInput: The file cannot be read, or has changed since it was listed or known.
    """
    opened = _open(span, limits)
    if isinstance(opened, FileSummary):
        return FileIndex(opened), None
    try:
        if known is not None:
            _check(known, opened)
        identity = _identity(opened)
        index = index_range(
            span.path, span.file_range, limits=limits, wanted=flow_filter,
            source=IndexedSource(opened),
        )  # fmt: skip
        _check(identity, opened)
        return index, identity
    finally:
        opened.close()


def _open(span: IndexSpan, limits: CaptureLimits) -> StoredSource | FileSummary:
    """Open the file of a span; or the summary of a file that can never be read.

    Raises:
        LostInput: The file cannot be opened, is shorter than it was when it was found, or is not
            the one that was cut.
    """
    try:
        open_file = open_capture if is_url(span.path) else open_source
        source = open_file(span.path, limits)
    except CaptureUnavailable as problem:
        raise LostInput(str(problem)) from None
    except CaptureError as failure:
        return FileSummary(without_credentials(span.path), None, UNREADABLE, error=str(failure))
    size = source.opened_version.size
    if size < span.listed_bytes:
        source.close()
        raise LostInput(
            f"{without_credentials(span.path)}: has {size} bytes here, but had "
            f"{span.listed_bytes} when it was found; driver and workers must see the same files"
        )
    if span.identity:
        try:
            _check(FileIdentity.parse(span.identity), source)
        except BaseException:
            source.close()
            raise
    return source


def _identity(source: StoredSource) -> FileIdentity:
    try:
        return FileIdentity.of(source)
    except CaptureUnavailable as problem:
        raise LostInput(str(problem)) from None


def _check(identity: FileIdentity, source: StoredSource) -> None:
    """Raise LostInput if the file is not that of this identity any more."""
    try:
        identity.check(source, source.version())
    except CaptureUnavailable as problem:
        raise LostInput(str(problem)) from None


def indexed_spans(totals: IndexTotals) -> list[tuple[FileSummary, SpanFacts]]:
    """Return what was said of all spans, sorted by file and offset."""
    spans = [
        (FileSummary(**summary), SpanFacts(**facts))
        for summary, facts in map(json.loads, totals.summaries)
    ]
    return sorted(spans, key=lambda span: (span[0].file, span[1].start))


def summaries_of(totals: IndexTotals) -> list[FileSummary]:
    """Return the summaries of all spans, sorted by file and offset."""
    return [summary for summary, _ in indexed_spans(totals)]


def merge_by_file(summaries: Iterable[FileSummary]) -> list[FileSummary]:
    """Merge the summaries of each file's ranges into one, sorted by file name.

    The summaries of one file must be in the order of their offsets.
    """
    ranges: dict[str, list[FileSummary]] = {}
    for summary in summaries:
        ranges.setdefault(summary.file, []).append(summary)
    return [merge_summaries(ranges[name]) for name in sorted(ranges)]
