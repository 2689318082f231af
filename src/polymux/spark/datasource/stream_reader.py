"""`spark.readStream.format("polymux")`: a growing folder of captures as a stream of final rows.

A row is emitted once, when its session has ended. The offset is the complete state of the stream
(see `streaming.offset`): nothing else has to survive a crash, and a micro-batch that is replayed
emits the same rows again.

Two readers share `CaptureStreamReader`: `TableStreamReader` is the public one and emits one table;
`AllTablesReader` is behind `polymux analyze --watch`, writes all tables to a staging folder and
emits only a report per task.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
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

from polymux.analysis.options import AnalysisOptions, parse_ports
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.output.session_rows import make_session_id
from polymux.analysis.session.analyzer import SessionSummary, analyze_session_steps
from polymux.analysis.tls.key_files import read_key_option
from polymux.capture import CaptureLimits, FlowFilter, SensorNaming, TcpSession, sessions_of
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.read_ahead import ReadAhead, interleave
from polymux.capture.tcp.sessions import consume_sessions
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.selection import RowSelection
from polymux.spark.datasource.table_batches import (
    capture_batches,
    session_batches,
    spark_batches,
)
from polymux.spark.runtime.worker_memory import release_memory, use_spark_local_dirs
from polymux.spark.streaming.index_store import IndexStore
from polymux.spark.streaming.micro_batches import (
    DEFAULT_TASKS,
    AvailableFiles,
    BatchTask,
    FolderFollower,
)
from polymux.spark.streaming.offset import FolderOffset
from polymux.spark.streaming.open_sessions import SessionSelection, SessionTimeouts

if TYPE_CHECKING:
    import pyarrow as pa

DEFAULT_MAX_BYTES_PER_TRIGGER = 256 << 20  # bytes of captures per micro-batch
UNLIMITED_BYTES = 1 << 62
SNAPSHOT_TABLES = frozenset({"sessions", "streams"})
# Spark option -> field of `SessionTimeouts`
TIMEOUT_FIELDS = {
    "sessionGrace": "session_grace", "sessionTimeout": "session_timeout",
    "idleTimeout": "idle_timeout", "dedupWindow": "dedup_window",
}  # fmt: skip


class BadStreamOption(PolymuxError):
    """A duration or size option of the stream is invalid; the message names it."""


def parse_timeouts(options: Mapping[str, str]) -> SessionTimeouts:
    """Parse the four timeout options, in seconds. A missing option keeps its default.

    Raises:
        BadStreamOption: A value is not a number of seconds from 0 to 1e9.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    seconds = {}
    for name, field in TIMEOUT_FIELDS.items():
        if name.lower() in by_name:
            text = by_name[name.lower()]
            try:
                seconds[field] = float(text)
            except ValueError:
                raise BadStreamOption(f"{name} {text!r} is not a number of seconds") from None
            if not 0 <= seconds[field] < 1e9:
                raise BadStreamOption(f"{name} {text!r} is not a number of seconds of 0 or more")
    return SessionTimeouts(**seconds)


class CaptureStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets and planning, shared by both stream readers.

    Spark calls `initialOffset`, `latestOffset` and `partitions` on the driver, for every
    micro-batch, and `read` in tasks.
    """

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
        max_tasks: int = 0,
        key_files: tuple[str, ...] = (),
        index_folder: str = "",
    ) -> None:
        self.path = path
        self.index_store = IndexStore(index_folder) if index_folder else None
        self.max_tasks = max_tasks or max(DEFAULT_TASKS, 2 * (os.cpu_count() or 1))
        self.analysis_options = analysis_options
        self.filters = filters
        self.timeouts = timeouts
        self.max_bytes_per_trigger = max_bytes_per_trigger
        self.key_files = key_files  # read again for every micro-batch: they grow
        # Set for a run with the trigger `availableNow`, which ends when these are read.
        self.available_files: AvailableFiles | None = None
        self._follower: FolderFollower | None = None

    def __getstate__(self) -> dict[str, object]:
        """Leave the follower out: tasks need only the settings."""
        return {**self.__dict__, "_follower": None}

    @property
    def follower(self) -> FolderFollower:
        if self._follower is None:
            self._follower = FolderFollower(
                self.path,
                timeouts=self.timeouts,
                ports=tuple(self.analysis_options.ports),
                filters=self.filters,
                max_tasks=self.max_tasks,
                sensors=self.analysis_options.sensors,
                store=self.index_store,
            )
        return self._follower

    def initialOffset(self) -> dict[str, int | str]:
        return self._spark_offset(FolderOffset())

    def _spark_offset(self, offset: FolderOffset) -> dict[str, int | str]:
        return {**offset.to_dict(), "settings": self._settings()}

    def _folder_offset(self, offset: dict[str, int | str]) -> FolderOffset:
        """Decode a Spark offset. Raise BadStreamOption if it was written with other settings.

        With other timeouts or filters the offset would mark sessions as ended that were never
        emitted.
        """
        if offset["settings"] != self._settings():
            raise BadStreamOption(
                f"this checkpoint was created with {offset['settings']}, not {self._settings()}: "
                "use the same options, or another checkpoint"
            )
        return FolderOffset.from_dict(offset)

    def _settings(self) -> str:
        """Everything that decides which sessions have ended, as text."""
        parts = [
            f"{name}={getattr(self.timeouts, field):g}" for name, field in TIMEOUT_FIELDS.items()
        ]
        parts += [f"port={port}" for port in sorted(self.analysis_options.ports)]
        parts += [f"filter={text}" for text in sorted(self.filters)]
        sensors = self.analysis_options.sensors
        parts += [f"sensor={sensors.name}"] if sensors.name else []
        parts += [f"sensorFrom={sensors.pattern}"] if sensors.pattern else []
        return " ".join(parts)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.max_bytes_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self.available_files = self.follower.available_files()

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:
        max_bytes = self.max_bytes_per_trigger
        if isinstance(limit, ReadMaxBytes):
            max_bytes = limit.max_bytes
        elif isinstance(limit, ReadAllAvailable):
            max_bytes = UNLIMITED_BYTES
        return self._spark_offset(
            self.follower.next_offset(self._folder_offset(start), max_bytes, self.available_files)
        )

    def partitions(
        self, start: dict[str, int | str], end: dict[str, int | str]
    ) -> list[InputPartition]:
        if start == end:
            return []
        target = self._folder_offset(end)
        tasks = self.follower.plan_batch(self._folder_offset(start), target)
        keys = read_key_option(self.key_files).merged(self.follower.secrets(target))
        for task in tasks:
            task.keys = keys
        return [InputPartition(task) for task in tasks]

    def sessions(
        self,
        selections: list[SessionSelection],
        files: UrlFilePool,
        read_ahead: ReadAhead | None = None,
    ) -> Iterator[TcpSession]:
        """Yield the selected sessions, ready to be analyzed."""
        for selection in selections:
            of_flow = sessions_of(
                selection.rows,
                files.reader,
                limits=files.limits,
                ports=self.analysis_options.ports,
                read_ahead=read_ahead,
            )
            for session in consume_sessions(of_flow):
                if make_session_id(session.flow, session.started_at) in selection.session_ids:
                    yield session


class TableStreamReader(CaptureStreamReader):
    """Emits the rows of one table, in the requested columns."""

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
        selection: RowSelection,
        columns: tuple[str, ...],
        key_files: tuple[str, ...] = (),
    ) -> None:
        super().__init__(
            path,
            analysis_options,
            filters,
            timeouts,
            max_bytes_per_trigger,
            key_files=key_files,
        )
        self.selection = selection
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the sessions that ended in this micro-batch. Runs in a task."""
        yield from spark_batches(self.selection, self.columns, self._batches(partition.value))

    def _batches(self, task: BatchTask) -> Iterator[pa.RecordBatch]:
        if self.selection.table == "captures":
            yield from capture_batches(task.captures)
            return
        options = replace(self.analysis_options, keys=task.keys)
        use_spark_local_dirs()
        with UrlFilePool(CaptureLimits(), task.identities) as files:

            def sessions(selected: SessionSelection, read_ahead: ReadAhead) -> Iterator[TcpSession]:
                return self.sessions([selected], files, read_ahead)

            yield from session_batches(task.finished, sessions, options, self.selection)


def table_stream_reader(
    source_options: SourceOptions, options: Mapping[str, str]
) -> TableStreamReader:
    """Create the reader of `spark.readStream.format("polymux")`.

    Raises:
        BadStreamOption: More than one path, or an option that is not a number.
    """
    if len(source_options.paths) != 1:
        raise BadStreamOption("a stream follows one directory: write load('captures/')")
    by_name = {name.lower(): value for name, value in options.items()}
    max_bytes = by_name.get("maxbytespertrigger", str(DEFAULT_MAX_BYTES_PER_TRIGGER))
    if not max_bytes.isdecimal() or not int(max_bytes):
        raise BadStreamOption(f"maxBytesPerTrigger {max_bytes!r} is not a number of bytes")
    return TableStreamReader(
        source_options.paths[0],
        source_options.analysis_options,
        source_options.filters,
        parse_timeouts(options),
        int(max_bytes),
        source_options.selection,
        source_options.columns,
        source_options.key_files,
    )


@dataclass
class TaskReport:
    """What one task of `AllTablesReader` wrote below the staging folder, and its counters.

    `unchanged` are the ids of open sessions whose rows in the snapshot stay valid. `status` is set
    in the report of the first task only; see `FolderFollower.plan_batch`.
    """

    folder: str
    tables: list[str]
    open_tables: list[str]
    unchanged: list[str]
    rows: int = 0
    sessions: int = 0
    frames: int = 0
    violations: int = 0
    total_bytes: int = 0
    read_bytes: int = 0  # of captures, after their index
    written_bytes: int = 0  # of table files, without the snapshot
    unbalanced: int = 0
    status: dict[str, int] | None = None


class AllTablesReader(CaptureStreamReader):
    """Writes the rows of all tables below a staging folder and emits a `TaskReport` per task."""

    def __init__(
        self,
        path: str,
        analysis_options: AnalysisOptions,
        filters: tuple[str, ...],
        timeouts: SessionTimeouts,
        max_bytes_per_trigger: int,
        staging: str,
        max_tasks: int = 0,
        key_files: tuple[str, ...] = (),
        index_folder: str = "",
    ) -> None:
        super().__init__(
            path,
            analysis_options,
            filters,
            timeouts,
            max_bytes_per_trigger,
            max_tasks,
            key_files,
            index_folder,
        )
        self.staging = staging

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from polymux.analysis.output.arrow_batches import make_array

        report = json.dumps(asdict(self.write(partition.value)))
        yield pa.record_batch({"report": make_array([report], pa.string())})

    def write(self, task: BatchTask) -> TaskReport:
        """Write the task's rows to a new folder, so that attempts never share a file.

        Raises:
            LostInput: A capture cannot be read, or has changed since it was indexed.
        """
        folder = uuid.uuid4().hex
        report = TaskReport(folder, [], [], task.unchanged, status=task.status or None)
        home = Path(self.staging) / folder
        use_spark_local_dirs()
        release_memory()
        options = replace(self.analysis_options, keys=task.keys)
        if self.index_store is not None:
            flow_filter = FlowFilter(tuple(options.ports), self.filters, options.sensors)
            for path in task.to_index:
                self.index_store.add(path, CaptureLimits(), flow_filter)
        with UrlFilePool(CaptureLimits(), task.identities) as files:
            with TableWriter(home, "part") as writer:
                for summary in self._analyze(task.finished, options, files, writer):
                    report.sessions += 1
                    report.frames += summary.frames
                    report.violations += summary.violations
                    report.total_bytes += summary.bytes_dialer + summary.bytes_acceptor
                    report.unbalanced += not summary.balanced
                writer.add_captures(task.captures)
                report.tables = list(writer.row_counts())
                report.rows = sum(writer.row_counts().values())
            report.written_bytes = sum(
                path.stat().st_size for path in home.glob("*/*.parquet") if path.is_file()
            )
            with TableWriter(home / "open", "part") as writer:
                snapshot_options = AnalysisOptions(
                    options.protocol, options.ports, SNAPSHOT_TABLES, keys=task.keys
                )
                self._analyze(task.still_open, snapshot_options, files, writer)
                report.open_tables = list(writer.row_counts())
        report.read_bytes = files.bytes_read
        return report

    def _analyze(
        self,
        selections: list[SessionSelection],
        options: AnalysisOptions,
        files: UrlFilePool,
        writer: TableWriter,
    ) -> list[SessionSummary]:
        """Analyze the selected sessions, interleaved by timestamp, into `writer`."""
        summaries: list[SessionSummary] = []

        def steps(selection: SessionSelection, read_ahead: ReadAhead) -> Iterator[int]:
            for session in self.sessions([selection], files, read_ahead):
                summary = yield from analyze_session_steps(
                    session, options, writer.emit, writer.batcher
                )
                summaries.append(summary)

        for _ in interleave(selections, steps):
            pass
        return summaries


class AllTablesSource(DataSource):
    """The data source behind `polymux analyze --watch`; see `streaming.query.start_following`.

    Its options are internal; every row is the JSON of one `TaskReport`.
    """

    NAME = "polymux_follow"

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def schema(self) -> str:
        return "report string"

    def streamReader(self, schema: object) -> AllTablesReader:
        options = {name.lower(): value for name, value in self.options.items()}
        sensors = SensorNaming(options.get("sensor", ""), options.get("sensorfrom", ""))
        ports = parse_ports(json.loads(options["ports"]))
        analysis = AnalysisOptions(options["protocol"], ports, sensors=sensors)
        if options["content"] == "true":
            analysis = analysis.with_content()
        return AllTablesReader(
            options["path"],
            analysis,
            tuple(json.loads(options["filters"])),
            parse_timeouts(options),
            int(options["maxbytespertrigger"]),
            options["staging"],
            int(options["maxtasks"]),
            tuple(json.loads(options["keys"])),
            options["indexfolder"],
        )
