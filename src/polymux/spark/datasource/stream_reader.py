"""`spark.readStream.format("polymux")`: a growing folder of captures as a stream of final rows.

A row is given once, when its session is over. The offset is the whole state of the stream (see
`follow_place`): nothing else has to survive a kill, and a micro-batch that is replayed gives the
same rows again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra, PolymuxError

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    raise MissingExtra("spark", "following captures") from None

from polymux.analysis.arrow.batches import decode_dictionaries, make_batch
from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.session.analyzer import analyze_session_steps
from polymux.analysis.session.interleaving import interleave
from polymux.analysis.session.summary import SessionSummary
from polymux.capture import CaptureLimits, FilePool, TcpSession, sessions_of
from polymux.capture.io.file_pool import WORKER_RESIDENT_LIMIT
from polymux.capture.io.read_ahead import ReadAhead
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.runtime.worker_memory import release_memory
from polymux.spark.streaming.micro_batches import AvailableFiles, BatchTask, FolderFollower
from polymux.spark.streaming.offset import FolderOffset
from polymux.spark.streaming.open_sessions import SessionSelection, SessionTimeouts

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_BYTES_PER_TRIGGER = 256 << 20  # bytes of captures in a micro-batch
UNLIMITED_BYTES = 1 << 62
MAX_BATCH_ROWS = 8192
SNAPSHOT_TABLES = frozenset({"sessions", "streams"})
# option -> field of `Waits`
TIMEOUT_FIELDS = {
    "sessionGrace": "session_grace", "sessionTimeout": "session_timeout",
    "idleTimeout": "idle_timeout", "dedupWindow": "dedup_window",
}  # fmt: skip


class BadStreamOption(PolymuxError):
    """A time or size of the stream that makes no sense; says which."""


def parse_timeouts(options: Mapping[str, str]) -> SessionTimeouts:
    """The four time-outs of a stream, in seconds; what is not given has its default."""
    said = {name.lower(): value for name, value in options.items()}
    given = {}
    for name, field in TIMEOUT_FIELDS.items():
        if name.lower() in said:
            text = said[name.lower()]
            try:
                given[field] = float(text)
            except ValueError:
                raise BadStreamOption(f"{name} {text!r} is no number of seconds") from None
            if not 0 <= given[field] < 1e9:
                raise BadStreamOption(f"{name} {text!r} is no number of seconds from 0 on")
    return SessionTimeouts(**given)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both stream readers share: places in the folder. `read` runs in tasks."""

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
    ) -> None:
        self.path = path
        self.analysis_options = analysis_options
        self.filters = filters
        self.timeouts = timeouts
        self.max_bytes_per_trigger = max_bytes_per_trigger
        self.available_files: AvailableFiles | None = (
            None  # for a run that ends when it has read this
        )
        self._follower: FolderFollower | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tasks get the settings; the place in the folder stays with the driver."""
        return {**self.__dict__, "_follower": None}

    @property
    def follower(self) -> FolderFollower:
        if self._follower is None:
            self._follower = FolderFollower(
                self.path,
                timeouts=self.timeouts,
                ports=tuple(self.analysis_options.ports),
                filters=self.filters,
            )
        return self._follower

    def initialOffset(self) -> dict[str, int | str]:
        return self._spark_offset(FolderOffset())

    def _spark_offset(self, offset: FolderOffset) -> dict[str, int | str]:
        return {**offset.to_dict(), "settings": self._settings()}

    def _folder_offset(self, offset: dict[str, int | str]) -> FolderOffset:
        """Where an offset stands. With other settings it would mean something else: what they say
        is over may never have been given out."""
        if offset["settings"] != self._settings():
            raise BadStreamOption(
                f"this checkpoint was begun with {offset['settings']}, not {self._settings()}: "
                "say the same again, or begin another"
            )
        return FolderOffset.from_dict(offset)

    def _settings(self) -> str:
        waits = self.timeouts
        said = [f"{name}={getattr(waits, field):g}" for name, field in TIMEOUT_FIELDS.items()]
        said += [f"port={port}" for port in sorted(self.analysis_options.ports)]
        return " ".join(said + [f"filter={text}" for text in sorted(self.filters)])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self.available_files = self.follower.available_files()

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.max_bytes_per_trigger
        if isinstance(limit, ReadAllAvailable):
            most = UNLIMITED_BYTES
        return self._spark_offset(
            self.follower.next_offset(self._folder_offset(start), most, self.available_files)
        )

    def partitions(
        self, start: dict[str, int | str], end: dict[str, int | str]
    ) -> list[InputPartition]:
        if start == end:
            return []
        works = self.follower.plan_batch(self._folder_offset(start), self._folder_offset(end))
        return [InputPartition(work) for work in works]

    def sessions(
        self,
        selections: list[SessionSelection],
        files: FilePool,
        read_ahead: ReadAhead | None = None,
    ) -> Iterator[TcpSession]:
        """The sessions that are meant, ready to be walked."""
        for each in selections:
            found = sessions_of(
                each.rows,
                files.reader,
                limits=files.limits,
                ports=self.analysis_options.ports,
                read_ahead=read_ahead,
            )
            for session in found:
                if make_session_id(session.flow, session.started_at) in each.session_ids:
                    yield session


class TableStreamReader(CaptureStreamReader):
    """Rows of one table, in the columns that were asked for."""

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
        table: str,
        columns: tuple[str, ...],
    ) -> None:
        super().__init__(path, analysis_options, filters, timeouts, max_bytes_per_trigger)
        self.table = table
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(partition.value):
            exact = self._cast_to_schema(batch)
            for start in range(0, exact.num_rows, MAX_BATCH_ROWS):
                yield exact.slice(start, MAX_BATCH_ROWS)

    def _batches(self, task: BatchTask) -> Iterator[pa.RecordBatch]:
        if self.table == "captures":
            rows = [asdict(summary) for summary in task.captures]
            if rows:
                yield make_batch(
                    "captures", {name: [row[name] for row in rows] for name in rows[0]}
                )
            return
        waiting: list[pa.RecordBatch] = []

        def emit(table: str, batch: pa.RecordBatch) -> None:
            waiting.append(batch)

        with FilePool(CaptureLimits()) as files:
            for session in self.sessions(task.finished, files):
                for _ in analyze_session_steps(session, self.analysis_options, emit):
                    yield from waiting
                    waiting.clear()
                yield from waiting
                waiting.clear()

    def _cast_to_schema(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from polymux.spark.datasource.types import spark_schema

        schema = to_arrow_schema(spark_schema(self.table, self.columns), timezone="UTC")
        chosen = decode_dictionaries(self.table, batch).select(list(self.columns))
        columns = [
            column.cast(wanted.type) for column, wanted in zip(chosen.columns, schema, strict=True)
        ]
        return pa.record_batch(columns, schema=schema)


def table_stream_reader(
    source_options: SourceOptions, options: Mapping[str, str]
) -> TableStreamReader:
    """The reader of `spark.readStream.format("polymux")`."""
    if len(source_options.paths) != 1:
        raise BadStreamOption("a stream follows one directory: write load('captures/')")
    said = {name.lower(): value for name, value in options.items()}
    most = said.get("maxbytespertrigger", str(DEFAULT_MAX_BYTES_PER_TRIGGER))
    if not most.isdecimal() or not int(most):
        raise BadStreamOption(f"maxBytesPerTrigger {most!r} is no number of bytes")
    return TableStreamReader(
        source_options.paths[0],
        source_options.analysis_options,
        source_options.filters,
        parse_timeouts(options),
        int(most),
        source_options.table,
        source_options.columns,
    )


@dataclass
class TaskReport:
    """What one task of a following query wrote, below its staging folder, and counted."""

    folder: str
    tables: list[str]
    open_tables: list[str]
    unchanged: list[str]
    rows: int = 0
    sessions: int = 0
    frames: int = 0
    total_bytes: int = 0
    unbalanced: int = 0
    status: dict[str, int] | None = None


class AllTablesReader(CaptureStreamReader):
    """Writes the rows of all tables under a staging folder and tells where they are."""

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
        staging: str,
    ) -> None:
        super().__init__(path, analysis_options, filters, timeouts, max_bytes_per_trigger)
        self.staging = staging

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from polymux.analysis.arrow.arrays import make_array

        told = self.write(partition.value)
        yield pa.record_batch({"told": make_array([json.dumps(asdict(told))], pa.string())})

    def write(self, task: BatchTask) -> TaskReport:
        """Files of this attempt's own, whatever else runs or ran."""
        folder = uuid.uuid4().hex
        told = TaskReport(folder, [], [], task.unchanged, status=task.status or None)
        home = Path(self.staging) / folder
        release_memory()
        with FilePool(CaptureLimits(), resident_limit=WORKER_RESIDENT_LIMIT) as files:
            with TableWriter(home, "part") as writer:
                for summary in self._analyze(task.finished, self.analysis_options, files, writer):
                    told.sessions += 1
                    told.frames += summary.frames
                    told.total_bytes += summary.bytes_dialer + summary.bytes_acceptor
                    told.unbalanced += not summary.balanced
                writer.add_captures(task.captures)
                told.tables = list(writer.row_counts())
                told.rows = sum(writer.row_counts().values())
            with TableWriter(home / "open", "part") as writer:
                plan = AnalysisOptions(
                    self.analysis_options.protocol, self.analysis_options.ports, SNAPSHOT_TABLES
                )
                for _ in self._analyze(task.still_open, plan, files, writer):
                    pass
                told.open_tables = list(writer.row_counts())
        return told

    def _analyze(
        self,
        selections: list[SessionSelection],
        options: AnalysisOptions,
        files: FilePool,
        writer: TableWriter,
    ) -> list[SessionSummary]:
        summaries: list[SessionSummary] = []

        def steps(one: SessionSelection, companion: ReadAhead) -> Iterator[int]:
            for session in self.sessions([one], files, companion):
                summaries.append(
                    (
                        yield from analyze_session_steps(
                            session, options, writer.emit, writer.batcher
                        )
                    )
                )

        for _ in interleave(selections, steps):
            pass
        return summaries


class AllTablesSource(DataSource):
    """The source behind `polymux analyze --watch`; see `follow`."""

    NAME = "polymux_follow"

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def schema(self) -> str:
        return "told string"

    def streamReader(self, schema: object) -> AllTablesReader:
        said = {name.lower(): value for name, value in self.options.items()}
        plan = AnalysisOptions(said["protocol"], parse_ports(json.loads(said["ports"])))
        if said["content"] == "true":
            plan = plan.with_content()
        return AllTablesReader(
            said["path"], plan, tuple(json.loads(said["filters"])), parse_timeouts(said),
            int(said["most"]), said["staging"],
        )  # fmt: skip
