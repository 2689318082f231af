"""`df.write.format("polymux")` and `writeStream`: rows of a DataFrame over multiplexed streams.

Every task has a session of its own and a stream for each value of the column `stream`. A task
succeeds when the peer has taken everything it sent. Retried tasks send again: readers tell attempts
apart by the streams' names, and the driver's commit says which count (`sink_names`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polymux.core.errors import MissingExtra, PolymuxError

try:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
except ImportError:
    raise MissingExtra("spark", "sending DataFrames") from None

from polymux.aio import connect
from polymux.aio.urls import parse_url
from polymux.protocols.registry import create
from polymux.spark.sink.senders import NotAcknowledged, OutgoingStream, StreamOpener
from polymux.spark.sink.stream_labels import (
    DEFAULT_STREAM,
    MESSAGES,
    PREFIXED,
    RAW,
    StreamLabel,
    commit_label,
    encode_commit,
    length_prefixed,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_OPTIONS = (
    "url", "protocol", "framing", "commit", "job", "timeout", "ca", "cert", "key", "servername",
    "path", "checkpointlocation", "queryname",
)  # fmt: skip
SEND_BATCH_BYTES = 64 * 1024  # bytes of rows that are sent together where rows have a prefix
MAX_OPEN_STREAMS = 100  # streams of a task at a time


class BadSink(PolymuxError):
    """An option or a column of the sink that cannot be used; says which, and what would do."""


@dataclass(frozen=True)
class SinkOptions:
    """Where and how to send; plain data that goes to the tasks."""

    url: str
    protocol: str
    framing: str  # "", or raw
    commits: bool
    job: str
    timeout: float
    ca: str
    cert: str
    key: str
    server_name: str

    @classmethod
    def parse(cls, options: Mapping[str, str], streaming: bool) -> SinkOptions:
        said = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(said) - set(SINK_OPTIONS))
        if unknown:
            raise BadSink(
                f"option {unknown[0]!r} is not known; there are url, protocol, framing, commit, "
                "job, timeout, ca, cert, key and serverName"
            )
        for name in ("url", "protocol"):
            if not said.get(name):
                raise BadSink(f"no {name}: write option({name!r}, ...)")
        parse_url(said["url"])
        create(said["protocol"])
        rows = said.get("framing", "auto")
        if rows not in ("auto", RAW):
            raise BadSink(f"framing {rows!r}: auto keeps rows apart, raw sends their bytes only")
        commit = said.get("commit", "false" if rows == RAW else "true")
        if commit not in ("true", "false"):
            raise BadSink(f"commit {commit!r} is neither true nor false")
        try:
            timeout = float(said.get("timeout", "60"))
        except ValueError:
            raise BadSink(f"timeout {said['timeout']!r} is no number of seconds") from None
        where = said.get("checkpointlocation", "")
        job = said.get("job", "")
        if not job and streaming and where:
            # The same after a restart, so that a replayed batch is known again.
            job = hashlib.blake2b(where.encode(), digest_size=8).hexdigest()
        return cls(
            said["url"],
            said["protocol"],
            rows if rows == RAW else "",
            commit == "true",
            job or uuid.uuid4().hex[:16],
            timeout,
            said.get("ca", ""),
            said.get("cert", ""),
            said.get("key", ""),
            said.get("servername", ""),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        if not self.url.startswith(("tls://", "wss://")):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca or None)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.cert:
                context.load_cert_chain(self.cert, self.key or None)
        except OSError as problem:
            names = " ".join(name for name in (self.ca, self.cert, self.key) if name)
            raise BadSink(f"{names}: cannot be used: {problem.strerror or problem}") from None
        return context


@dataclass
class TaskCommit(WriterCommitMessage):
    """What a task sent, and who it was."""

    task: str
    rows: int
    total_bytes: int


class RowSender:
    """What the writers share."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = options
        names = [field.name for field in schema.fields]
        if "data" not in names:
            raise BadSink(f"no column data among {', '.join(names)}: it holds what is sent")
        extra = [name for name in names if name not in ("data", "stream")]
        if extra:
            raise BadSink(f"column {extra[0]!r}: the sink takes data and stream, nothing else")
        for field in schema.fields:
            kind = field.dataType.typeName()
            if kind not in (("binary", "string") if field.name == "data" else ("string",)):
                raise BadSink(f"column {field.name!r} is {kind}: make it a string, or data binary")

    def send(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """In a task: send its rows, and return when the peer has taken all of them."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        epoch = context.getLocalProperty("streaming.sql.batchId") or "0"
        label = StreamLabel(
            DEFAULT_STREAM,
            self.options.job,
            int(epoch),
            context.partitionId(),
            context.attemptNumber(),
            uuid.uuid4().hex[:16],
            "",
        )
        return asyncio.run(SinkSession(self.options, label).send_rows(batches))

    def commit_all(self, messages: list[WriterCommitMessage | None], epoch: int) -> None:
        """On the driver: say which tasks count."""
        tasks = [message.task for message in messages if isinstance(message, TaskCommit)]
        if self.options.commits and tasks:
            label = commit_label(self.options.job, epoch, uuid.uuid4().hex[:16])
            asyncio.run(SinkSession(self.options, label).send_commit(encode_commit(tasks)))


class SinkSession:
    """One session to the target, for one task or for a commit."""

    def __init__(self, options: SinkOptions, label: StreamLabel) -> None:
        self.options = options
        self.label = label
        self._open_streams: OrderedDict[str, OutgoingStream] = OrderedDict()
        self._parts: dict[str, int] = {}
        self._moved = 0.0

    async def send_rows(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        from dataclasses import replace

        target = self.options
        sent = TaskCommit(self.label.task, 0, 0)
        first = next(batches, None)
        if first is None:
            return sent
        async with connect(
            target.url, protocol=target.protocol, tls=target.tls_context(),
            server_hostname=target.server_name or None,
        ) as session:  # fmt: skip
            outlets = StreamOpener(session)
            form = (
                RAW
                if target.framing == RAW
                else MESSAGES
                if outlets.preserves_message_boundaries
                else PREFIXED
            )
            self.label = replace(self.label, framing=form)
            waiting: dict[str, list[bytes]] = {}
            sizes: dict[str, int] = {}
            batch: pa.RecordBatch | None = first
            while batch is not None:
                for name, row in rows_of(batch):
                    sent.rows += 1
                    sent.total_bytes += len(row)
                    if form == MESSAGES:
                        await self._send(outlets, name, row)
                        continue
                    waiting.setdefault(name, []).append(
                        length_prefixed(row) if form == PREFIXED else row
                    )
                    sizes[name] = sizes.get(name, 0) + len(row) + 4
                    if sizes[name] >= SEND_BATCH_BYTES:
                        await self._send(outlets, name, b"".join(waiting.pop(name)))
                        sizes[name] = 0
                batch = next(batches, None)
            for name, pieces in waiting.items():
                await self._send(outlets, name, b"".join(pieces))
            for name in list(self._open_streams):
                await self._finish(name)
        return sent

    async def send_commit(self, data: bytes) -> None:
        """A stream with just this."""
        async with connect(
            self.options.url,
            protocol=self.options.protocol,
            tls=self.options.tls_context(),
            server_hostname=self.options.server_name or None,
        ) as session:
            outgoing = await StreamOpener(session).open(str(self.label))
            await self._with_timeout(outgoing.send(data))
            await self._with_timeout(outgoing.finish())

    async def _send(self, opener: StreamOpener, name: str, data: bytes) -> None:
        from dataclasses import replace

        outgoing = self._open_streams.get(name)
        if outgoing is None:
            if len(self._open_streams) >= MAX_OPEN_STREAMS:
                await self._finish(next(iter(self._open_streams)))
            part = self._parts[name] = self._parts.get(name, 0) + 1
            label = replace(self.label, stream=name, part=part)
            outgoing = self._open_streams[name] = await self._open_stream(opener, str(label))
        self._open_streams.move_to_end(name)
        await self._with_timeout(outgoing.send(data))

    async def _open_stream(self, opener: StreamOpener, name: str) -> OutgoingStream:
        try:
            return await asyncio.wait_for(opener.open(name), self.options.timeout)
        except TimeoutError:
            raise self._timeout_error() from None

    async def _finish(self, name: str) -> None:
        await self._with_timeout(self._open_streams.pop(name).finish())

    async def _with_timeout(self, work: object) -> None:
        try:
            await asyncio.wait_for(work, self.options.timeout)  # type: ignore[arg-type] # awaitable
        except TimeoutError:
            raise self._timeout_error() from None

    def _timeout_error(self) -> NotAcknowledged:
        return NotAcknowledged(
            f"{self.options.url}: the peer took nothing for {self.options.timeout:g} s; allow more "
            "with option('timeout', ...)"
        )


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """Stream and bytes of each row; a missing stream is the usual one, missing data is refused."""
    names = batch.schema.names
    data = batch.column(names.index("data")).to_pylist()
    streams = [DEFAULT_STREAM] * len(data)
    if "stream" in names:
        streams = [
            name or DEFAULT_STREAM for name in batch.column(names.index("stream")).to_pylist()
        ]
    for name, value in zip(streams, data, strict=True):
        if value is None:
            raise BadSink("a row without data: the sink cannot send null; filter such rows out")
        yield name, value.encode() if isinstance(value, str) else bytes(value)


class BatchSink(DataSourceArrowWriter):
    """`df.write`: see the module."""

    def __init__(self, sender: RowSender) -> None:
        self.sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sender.commit_all(messages, 0)


class StreamSink(DataSourceStreamArrowWriter):
    """`df.writeStream`: the same, once for each micro-batch."""

    def __init__(self, sender: RowSender) -> None:
        self.sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.sender.commit_all(messages, batchId)


def batch_sink(options: Mapping[str, str], schema: StructType) -> BatchSink:
    return BatchSink(RowSender(SinkOptions.parse(options, streaming=False), schema))


def stream_sink(options: Mapping[str, str], schema: StructType) -> StreamSink:
    return StreamSink(RowSender(SinkOptions.parse(options, streaming=True), schema))
