"""One session's rows on their way out: made into Arrow batches and handed on as they fill."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from polymux.analysis.arrow import batches as arrow_rows
from polymux.analysis.output.content_rows import Contents
from polymux.analysis.output.row_batcher import Gathering
from polymux.analysis.output.stream_columns import StreamColumns
from polymux.analysis.session.summary import UNFINISHED
from polymux.analysis.tracking.request_latency import Latencies
from polymux.analysis.tracking.session_tracker import Watch
from polymux.analysis.tracking.stall_rows import IDLE
from polymux.analysis.tracking.stalls import Stalls
from polymux.analysis.tracking.timeline import Timeline
from polymux.core.observer import Observer
from polymux.core.streams import Stream

if TYPE_CHECKING:
    import pyarrow as pa

Emit = Callable[[str, "pa.RecordBatch"], None]
STREAM_ROWS = 4096
STREAM_OCTETS = 1 << 20  # of their names and errors
CONTENT_OCTETS = 4 << 20


def session_id(flow: bytes, started_at: int) -> str:
    """The name of a session in every table: a hash of its flow and first instant."""
    digest = hashlib.blake2b(flow, digest_size=8)
    digest.update(started_at.to_bytes(8, "little", signed=True))
    return digest.hexdigest()


class Rows:
    """Collects from an observer and its watch, hands on batches, and counts what it handed on.

    `emit` gets batches of content, `gathering` the rows of all other tables. Memory: at most a page
    of frames, some thousand streams and a few megabytes of content.
    """

    def __init__(self, name: str, emit: Emit, gathering: Gathering, wanted: frozenset[str]) -> None:
        self.name = name
        self.emit = emit
        self.gathering = gathering
        self.wanted = wanted
        self.streams = 0
        self.violations = 0
        self.broken = 0  # violations that are findings
        self.stalls = 0  # stalls that are
        self.unfinished = 0  # streams
        self.payload = [0, 0]
        self._columns = StreamColumns()
        self._texts = 0  # octets of names and errors in them
        self._latencies = Latencies()

    def collect(self, observer: Observer, watch: Watch, at: int) -> None:
        """Everything that is ready now. What is said about a stream leaves before its own row, if
        nothing waits for rows of others."""
        self._frames(observer, watch)
        for stream in observer.take_gone():
            self._stream(observer, watch, stream, at)
        self._violations(observer)
        self._measured(watch.stalls, watch.timeline)
        if self._columns.rows >= STREAM_ROWS:
            self._flush_streams()
        if watch.contents is not None:
            self._content(watch.contents, CONTENT_OCTETS)

    def close(self, observer: Observer, watch: Watch, at: int) -> None:
        """What is left once the observer and the watch have been finished."""
        self._frames(observer, watch)
        for stream in [*observer.take_gone(), *observer.protocol.streams.all()]:
            self._stream(observer, watch, stream, at)
        self._violations(observer)
        self._measured(watch.stalls, watch.timeline)
        self._flush_streams()
        asked = self._latencies.rows()
        if asked and "requests" in self.wanted:
            self.gathering.put("requests", arrow_rows.requests_columns(asked, self.name))
        if watch.contents is not None:
            self._content(watch.contents, 0)

    def _frames(self, observer: Observer, watch: Watch) -> None:
        pages = watch.take_pages()
        if "frames" in self.wanted:
            for page in pages:
                self.gathering.put_frames(page, self.name, observer.protocol)

    def _stream(self, observer: Observer, watch: Watch, stream: Stream, at: int) -> None:
        track = watch.leave(stream, at)
        self.streams += 1
        self.payload[0] += stream.dialer.octets
        self.payload[1] += stream.acceptor.octets
        if "streams" in self.wanted:
            self._columns.add(observer.protocol, stream, track, watch.stalls.rtt)
            self._texts += len(stream.name or b"") + len(stream.error or b"")
            if self._texts >= STREAM_OCTETS:
                self._flush_streams()
        if "requests" in self.wanted:
            self._latencies.add(observer.protocol, stream)

    def _flush_streams(self) -> None:
        if self._columns.rows:
            self.unfinished += sum(map(self._columns.ending.count, UNFINISHED))
            self.gathering.put("streams", arrow_rows.streams_columns(self._columns, self.name))
            self._columns = StreamColumns()
            self._texts = 0

    def _violations(self, observer: Observer) -> None:
        found = observer.take_violations()
        if found:
            self.violations += len(found)
            self.broken += sum(1 for each in found if each.rule.severity.value != "note")
            if "violations" in self.wanted:
                self.gathering.put("violations", arrow_rows.violations_columns(found, self.name))

    def _measured(self, stalls: Stalls, timeline: Timeline) -> None:
        stood, passed = stalls.take(), timeline.take()
        self.stalls += len(stood.cause) - stood.cause.count(IDLE)
        if stood.stream and "stalls" in self.wanted:
            self.gathering.put("stalls", arrow_rows.stalls_columns(stood, self.name))
        if passed.count and "timeline" in self.wanted:
            self.gathering.put_timeline(passed, self.name)

    def _content(self, contents: Contents, least: int) -> None:
        if contents.octets >= least and contents.rows.stream:
            self.emit("content", arrow_rows.content_batch(contents.take(), self.name))
