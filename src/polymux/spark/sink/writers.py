"""`df.write.format("polymux")` and `writeStream`: rows of a DataFrame over multiplexed streams.

Every task opens a session, and in it a stream for each value of the column `stream`. A task
succeeds when the peer has acknowledged everything it sent (`senders`). Retried tasks send again:
readers distinguish attempts by the streams' names, and the driver's commit lists those that count
(`stream_labels`, `readback`).
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from itertools import chain
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

from polymux.aio import Session, connect
from polymux.live.urls import parse_url
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
SEND_BATCH_BYTES = 64 * 1024  # bytes of prefixed rows that are sent in one call
MAX_OPEN_STREAMS = 100  # per task; the least recently used is finished first


class BadSink(PolymuxError):
    """An option or column of the sink is invalid; the message names it and what is valid."""


@dataclass(frozen=True)
class SinkOptions:
    """The options of a sink: where and how to send. Pickled and sent to the tasks."""

    url: str
    protocol: str
    framing: str  # "" keeps rows separate, RAW does not
    commits: bool
    job: str
    timeout: float
    ca: str
    cert: str
    key: str
    server_name: str

    @classmethod
    def parse(cls, options: Mapping[str, str], streaming: bool) -> SinkOptions:
        """Parse Spark's options, whose names are case-insensitive.

        Raises:
            BadSink: An option is unknown, missing or invalid.
        """
        values = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(values) - set(SINK_OPTIONS))
        if unknown:
            raise BadSink(
                f"option {unknown[0]!r} is not known; there are url, protocol, framing, commit, "
                "job, timeout, ca, cert, key and serverName"
            )
        for name in ("url", "protocol"):
            if not values.get(name):
                raise BadSink(f"no {name}: write option({name!r}, ...)")
        parse_url(values["url"])
        create(values["protocol"])
        framing = values.get("framing", "auto")
        if framing not in ("auto", RAW):
            raise BadSink(f"framing {framing!r}: auto separates rows, raw sends only their bytes")
        commit = values.get("commit", "false" if framing == RAW else "true")
        if commit not in ("true", "false"):
            raise BadSink(f"commit {commit!r} is neither true nor false")
        try:
            timeout = float(values.get("timeout", "60"))
        except ValueError:
            raise BadSink(f"timeout {values['timeout']!r} is not a number of seconds") from None
        checkpoint = values.get("checkpointlocation", "")
        job = values.get("job", "")
        if not job and streaming and checkpoint:
            # The same after a restart, so that readers recognise a replayed batch.
            job = hashlib.blake2b(checkpoint.encode(), digest_size=8).hexdigest()
        return cls(
            values["url"],
            values["protocol"],
            framing if framing == RAW else "",
            commit == "true",
            job or uuid.uuid4().hex[:16],
            timeout,
            values.get("ca", ""),
            values.get("cert", ""),
            values.get("key", ""),
            values.get("servername", ""),
        )

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for tls:// and wss://, else None. May raise BadSink."""
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
    """The commit message of a task: its unique id and what it sent."""

    task: str
    rows: int
    total_bytes: int


class RowSender:
    """Sends rows and commits; shared by the batch and the stream writer.

    Raises:
        BadSink: The schema has no column `data`, other columns than `data` and `stream`, or wrong
            types.
    """

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
        """Send the rows of a task; return when the peer has acknowledged them. Runs in a task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # Spark calls this in a task
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
        """Send the commit: the tasks whose rows count. Runs on the driver."""
        tasks = [message.task for message in messages if isinstance(message, TaskCommit)]
        if self.options.commits and tasks:
            label = commit_label(self.options.job, epoch, uuid.uuid4().hex[:16])
            asyncio.run(SinkSession(self.options, label).send_commit(encode_commit(tasks)))


class SinkSession:
    """One session to the receiver, for one task or for a commit."""

    def __init__(self, options: SinkOptions, label: StreamLabel) -> None:
        self.options = options
        self.label = label
        self._open_streams: OrderedDict[str, OutgoingStream] = OrderedDict()
        self._parts: dict[str, int] = {}

    async def send_rows(self, batches: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Send all rows and wait for the acknowledgement of every stream.

        Raises:
            NotAcknowledged: The peer did not read for `timeout` seconds.
        """
        sent = TaskCommit(self.label.task, 0, 0)
        first = next(batches, None)
        if first is None:
            return sent
        async with self._connect() as session:
            opener = StreamOpener(session)
            if self.options.framing == RAW:
                framing = RAW
            else:
                framing = MESSAGES if opener.preserves_message_boundaries else PREFIXED
            self.label = replace(self.label, framing=framing)
            buffers: dict[str, list[bytes]] = {}
            sizes: dict[str, int] = {}
            for batch in chain((first,), batches):
                for name, row in rows_of(batch):
                    sent.rows += 1
                    sent.total_bytes += len(row)
                    if framing == MESSAGES:
                        await self._send(opener, name, row)
                        continue
                    buffers.setdefault(name, []).append(
                        length_prefixed(row) if framing == PREFIXED else row
                    )
                    sizes[name] = sizes.get(name, 0) + len(row) + 4
                    if sizes[name] >= SEND_BATCH_BYTES:
                        await self._send(opener, name, b"".join(buffers.pop(name)))
                        sizes[name] = 0
            for name, pieces in buffers.items():
                await self._send(opener, name, b"".join(pieces))
            for name in list(self._open_streams):
                await self._finish(name)
        return sent

    async def send_commit(self, data: bytes) -> None:
        """Send one stream with this data and wait for its acknowledgement."""
        async with self._connect() as session:
            outgoing = await StreamOpener(session).open(str(self.label))
            await self._with_timeout(outgoing.send(data))
            await self._with_timeout(outgoing.finish())

    def _connect(self) -> AbstractAsyncContextManager[Session]:
        return connect(
            self.options.url,
            protocol=self.options.protocol,
            tls=self.options.tls_context(),
            server_hostname=self.options.server_name or None,
        )

    async def _send(self, opener: StreamOpener, name: str, data: bytes) -> None:
        """Send on the stream of this name, opening it if needed."""
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

    async def _with_timeout(self, work: Awaitable[None]) -> None:
        try:
            await asyncio.wait_for(work, self.options.timeout)
        except TimeoutError:
            raise self._timeout_error() from None

    def _timeout_error(self) -> NotAcknowledged:
        return NotAcknowledged(
            f"{self.options.url}: the peer read nothing for {self.options.timeout:g} s; allow more "
            "with option('timeout', ...)"
        )


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[str, bytes]]:
    """Yield stream and data of each row; a null stream is the default one.

    Raises:
        BadSink: The data of a row is null.
    """
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
    """The writer of `df.write`. Spark calls `write` in tasks and `commit` on the driver."""

    def __init__(self, sender: RowSender) -> None:
        self.sender = sender

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.sender.send(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.sender.commit_all(messages, 0)


class StreamSink(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`: the same, for each micro-batch."""

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
