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

from polymux.analysis.arrow.batches import batch_of, plain
from polymux.analysis.options import Plan, parse_ports
from polymux.analysis.output.parquet import TableWriter
from polymux.analysis.output.session_rows import session_id
from polymux.analysis.session.analyzer import walk_steps
from polymux.analysis.session.interleaving import together
from polymux.analysis.session.summary import SessionSummary
from polymux.capture import CaptureLimits, Files, TcpSession, sessions_of
from polymux.capture.io.lean_files import LeanFiles, release_memory
from polymux.capture.io.read_ahead import Companion
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.streaming.micro_batches import Available, Follower, Work
from polymux.spark.streaming.offset import Place
from polymux.spark.streaming.open_sessions import Given, Waits

if TYPE_CHECKING:
    import pyarrow as pa

MOST = 256 << 20  # octets of captures in a micro-batch
ALL = 1 << 62
ROWS = 8192
SNAPSHOT = frozenset({"sessions", "streams"})
# option -> field of `Waits`
WAITS = {
    "sessionGrace": "linger", "sessionTimeout": "idle", "idleTimeout": "patience",
    "dedupWindow": "remember",
}  # fmt: skip


class BadWait(PolymuxError):
    """A time or size of the stream that makes no sense; says which."""


def waits_of(options: Mapping[str, str]) -> Waits:
    """The four time-outs of a stream, in seconds; what is not given has its default."""
    said = {name.lower(): value for name, value in options.items()}
    given = {}
    for name, field in WAITS.items():
        if name.lower() in said:
            text = said[name.lower()]
            try:
                given[field] = float(text)
            except ValueError:
                raise BadWait(f"{name} {text!r} is no number of seconds") from None
            if not 0 <= given[field] < 1e9:
                raise BadWait(f"{name} {text!r} is no number of seconds from 0 on")
    return Waits(**given)


class Following(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What both stream readers share: places in the folder. `read` runs in tasks."""

    def __init__(
        self, path: str, plan: Plan, filters: tuple[str, ...], waits: Waits, most: int
    ) -> None:
        self.path = path
        self.plan = plan
        self.filters = filters
        self.waits = waits
        self.most = most
        self.until: Available | None = None  # for a run that ends when it has read this
        self._follower: Follower | None = None

    def __getstate__(self) -> dict[str, object]:
        """Tasks get the settings; the place in the folder stays with the driver."""
        return {**self.__dict__, "_follower": None}

    @property
    def follower(self) -> Follower:
        if self._follower is None:
            self._follower = Follower(
                self.path, waits=self.waits, ports=tuple(self.plan.ports), filters=self.filters
            )
        return self._follower

    def initialOffset(self) -> dict[str, int | str]:
        return self._offset(Place())

    def _offset(self, place: Place) -> dict[str, int | str]:
        return {**place.offset(), "settings": self._settings()}

    def _place(self, offset: dict[str, int | str]) -> Place:
        """Where an offset stands. With other settings it would mean something else: what they say
        is over may never have been given out."""
        if offset["settings"] != self._settings():
            raise BadWait(
                f"this checkpoint was begun with {offset['settings']}, not {self._settings()}: "
                "say the same again, or begin another"
            )
        return Place.read(offset)

    def _settings(self) -> str:
        waits = self.waits
        said = [f"{name}={getattr(waits, field):g}" for name, field in WAITS.items()]
        said += [f"port={port}" for port in sorted(self.plan.ports)]
        return " ".join(said + [f"filter={text}" for text in sorted(self.filters)])

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxBytes(self.most)

    def prepareForTriggerAvailableNow(self) -> None:
        self.until = self.follower.available()

    def latestOffset(self, start: dict[str, int | str], limit: ReadLimit) -> dict[str, int | str]:
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self.most
        if isinstance(limit, ReadAllAvailable):
            most = ALL
        return self._offset(self.follower.next(self._place(start), most, self.until))

    def partitions(
        self, start: dict[str, int | str], end: dict[str, int | str]
    ) -> list[InputPartition]:
        if start == end:
            return []
        works = self.follower.go_on(self._place(start), self._place(end))
        return [InputPartition(work) for work in works]

    def sessions(
        self, given: list[Given], files: Files, companion: Companion | None = None
    ) -> Iterator[TcpSession]:
        """The sessions that are meant, ready to be walked."""
        for each in given:
            found = sessions_of(
                each.rows, files.reader, limits=files.limits, ports=self.plan.ports,
                shared=companion,
            )  # fmt: skip
            for session in found:
                if session_id(session.flow, session.started_at) in each.names:
                    yield session


class TableStream(Following):
    """Rows of one table, in the columns that were asked for."""

    def __init__(
        self,
        path: str,
        plan: Plan,
        filters: tuple[str, ...],
        waits: Waits,
        most: int,
        table: str,
        columns: tuple[str, ...],
    ) -> None:
        super().__init__(path, plan, filters, waits, most)
        self.table = table
        self.columns = columns

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(partition.value):
            exact = self._exact(batch)
            for start in range(0, exact.num_rows, ROWS):
                yield exact.slice(start, ROWS)

    def _batches(self, work: Work) -> Iterator[pa.RecordBatch]:
        if self.table == "captures":
            rows = [asdict(summary) for summary in work.captures]
            if rows:
                yield batch_of("captures", {name: [row[name] for row in rows] for name in rows[0]})
            return
        waiting: list[pa.RecordBatch] = []

        def emit(table: str, batch: pa.RecordBatch) -> None:
            waiting.append(batch)

        with Files(CaptureLimits()) as files:
            for session in self.sessions(work.over, files):
                for _ in walk_steps(session, self.plan, emit):
                    yield from waiting
                    waiting.clear()
                yield from waiting
                waiting.clear()

    def _exact(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        from polymux.spark.datasource.types import spark_schema

        schema = to_arrow_schema(spark_schema(self.table, self.columns), timezone="UTC")
        chosen = plain(self.table, batch).select(list(self.columns))
        columns = [
            column.cast(wanted.type) for column, wanted in zip(chosen.columns, schema, strict=True)
        ]
        return pa.record_batch(columns, schema=schema)


def table_stream(asked: SourceOptions, options: Mapping[str, str]) -> TableStream:
    """The reader of `spark.readStream.format("polymux")`."""
    if len(asked.paths) != 1:
        raise BadWait("a stream follows one directory: write load('captures/')")
    said = {name.lower(): value for name, value in options.items()}
    most = said.get("maxbytespertrigger", str(MOST))
    if not most.isdecimal() or not int(most):
        raise BadWait(f"maxBytesPerTrigger {most!r} is no number of bytes")
    return TableStream(
        asked.paths[0], asked.plan, asked.filters, waits_of(options), int(most), asked.table,
        asked.columns,
    )  # fmt: skip


@dataclass
class Told:
    """What one task of a following query wrote, below its staging folder, and counted."""

    folder: str
    tables: list[str]
    open_tables: list[str]
    unchanged: list[str]
    rows: int = 0
    sessions: int = 0
    frames: int = 0
    octets: int = 0
    unbalanced: int = 0
    status: dict[str, int] | None = None


class AllTables(Following):
    """Writes the rows of all tables under a staging folder and tells where they are."""

    def __init__(
        self, path: str, plan: Plan, filters: tuple[str, ...], waits: Waits, most: int, staging: str
    ) -> None:
        super().__init__(path, plan, filters, waits, most)
        self.staging = staging

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from polymux.analysis.arrow.arrays import array_of

        told = self.write(partition.value)
        yield pa.record_batch({"told": array_of([json.dumps(asdict(told))], pa.string())})

    def write(self, work: Work) -> Told:
        """Files of this attempt's own, whatever else runs or ran."""
        folder = uuid.uuid4().hex
        told = Told(folder, [], [], work.unchanged, status=work.status or None)
        home = Path(self.staging) / folder
        release_memory()
        with LeanFiles(CaptureLimits()) as files:
            with TableWriter(home, "part") as writer:
                for summary in self._walked(work.over, self.plan, files, writer):
                    told.sessions += 1
                    told.frames += summary.frames
                    told.octets += summary.bytes_dialer + summary.bytes_acceptor
                    told.unbalanced += not summary.balanced
                writer.captures(work.captures)
                told.tables = list(writer.rows())
                told.rows = sum(writer.rows().values())
            with TableWriter(home / "open", "part") as writer:
                plan = Plan(self.plan.protocol, self.plan.ports, SNAPSHOT)
                for _ in self._walked(work.open, plan, files, writer):
                    pass
                told.open_tables = list(writer.rows())
        return told

    def _walked(
        self, given: list[Given], plan: Plan, files: Files, writer: TableWriter
    ) -> list[SessionSummary]:
        summaries: list[SessionSummary] = []

        def steps(one: Given, companion: Companion) -> Iterator[int]:
            for session in self.sessions([one], files, companion):
                summaries.append(
                    (yield from walk_steps(session, plan, writer.emit, writer.gathering))
                )

        for _ in together(given, steps):
            pass
        return summaries


class FollowSource(DataSource):
    """The source behind `polymux analyze --watch`; see `follow`."""

    NAME = "polymux_follow"

    @classmethod
    def name(cls) -> str:
        return cls.NAME

    def schema(self) -> str:
        return "told string"

    def streamReader(self, schema: object) -> AllTables:
        said = {name.lower(): value for name, value in self.options.items()}
        plan = Plan(said["protocol"], parse_ports(json.loads(said["ports"])))
        if said["content"] == "true":
            plan = plan.with_content()
        return AllTables(
            said["path"], plan, tuple(json.loads(said["filters"])), waits_of(said),
            int(said["most"]), said["staging"],
        )  # fmt: skip
