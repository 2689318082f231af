# mypyc: compiled
"""Rows of one session: collected from observer and tracker, and added to the batcher."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from polymux.analysis.output.row_columns import ContentCollector, stream_row
from polymux.analysis.output.row_sink import Row, RowSink
from polymux.analysis.schema.tables import SIDES, UNFINISHED_ENDINGS
from polymux.analysis.tracking.request_latency import (
    PERCENTILES,
    RequesterLatency,
    RequestLatencies,
)
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.analysis.tracking.stall_evidence import SENDER_IDLE, StallRows
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.timeline import Timeline
from polymux.core.observer import Observer
from polymux.core.rules import Violation
from polymux.core.streams import StreamState

Emit = Callable[[str, Any], None]  # the name of a table, and a `pyarrow.RecordBatch` of its rows
MAX_PENDING_STREAMS = 4096
MAX_PENDING_STREAM_TEXT_BYTES = 1048576  # of names and error texts
CONTENT_BATCH_BYTES = 4 * 1048576


def make_session_id(flow: bytes, started_at: int) -> str:
    """The id of a session in every table: a hash of its flow and first timestamp."""
    digest = hashlib.blake2b(flow, digest_size=8)
    digest.update(started_at.to_bytes(8, "little", signed=True))
    return digest.hexdigest()


class SessionRows:
    """Moves the rows of one session from observer and tracker to the batcher, and counts them.

    `emit` receives batches of content, `batcher` the rows of all other tables. `has_requests`:
    every stream of the protocol is a request and its reply. Memory is bounded by
    a page of frames, MAX_PENDING_STREAMS streams and CONTENT_BATCH_BYTES of content.
    """

    def __init__(
        self,
        session_id: str,
        emit: Emit,
        batcher: RowSink,
        tables: frozenset[str],
        has_requests: bool,
    ) -> None:
        self.session_id = session_id
        self.emit = emit
        self.batcher = batcher
        self.tables = tables
        self.stream_count = 0
        self.violation_count = 0
        self.violation_findings = 0  # violations of severity warning or worse
        self.stall_findings = 0  # stalls of any cause but sender-idle
        self.unfinished_streams = 0
        self.payload_bytes = [0, 0]
        self._streams: list[Row] = []
        self._stream_text_bytes = 0  # of the names and error texts in them
        self._latencies = RequestLatencies() if has_requests and "requests" in tables else None

    def collect(self, observer: Observer, tracker: SessionTracker, timestamp: int) -> None:
        """Emit all finished rows.

        With batching off, a stream's violations and stalls are emitted before its own row.
        """
        self._add_frames(observer, tracker)
        for stream in observer.take_removed_streams():
            self._add_stream(observer, tracker, stream, timestamp)
        self._add_violations(observer, tracker)
        self._add_stalls_and_timeline(tracker.stalls, tracker.timeline)
        if len(self._streams) >= MAX_PENDING_STREAMS:
            self._flush_streams()
        if tracker.content_collector is not None:
            self._emit_content(tracker.content_collector, CONTENT_BATCH_BYTES)

    def close(self, observer: Observer, tracker: SessionTracker, timestamp: int) -> None:
        """Emit the remaining rows; the observer and the tracker must have been closed."""
        self._add_frames(observer, tracker)
        for stream in [*observer.take_removed_streams(), *observer.protocol.streams.all()]:
            self._add_stream(observer, tracker, stream, timestamp)
        self._add_violations(observer, tracker)
        self._add_stalls_and_timeline(tracker.stalls, tracker.timeline)
        self._flush_streams()
        latencies = self._latencies.rows() if self._latencies is not None else []
        if latencies:
            self.batcher.add("requests", requests_rows(latencies, self.session_id))
        if tracker.content_collector is not None:
            self._emit_content(tracker.content_collector, 0)

    def _add_frames(self, observer: Observer, tracker: SessionTracker) -> None:
        pages = tracker.take_pages()
        if "frames" in self.tables:
            for page in pages:
                self.batcher.add_frames(page, self.session_id, observer.protocol)

    def _add_stream(
        self, observer: Observer, tracker: SessionTracker, stream: StreamState, timestamp: int
    ) -> None:
        track = tracker.release_stream(stream, timestamp)
        self.stream_count += 1
        self.payload_bytes[0] += stream.dialer.content_bytes
        self.payload_bytes[1] += stream.acceptor.content_bytes
        if "streams" in self.tables:
            ending = observer.protocol.ending(stream)
            if ending in UNFINISHED_ENDINGS:
                self.unfinished_streams += 1
            self._streams.append(
                stream_row(
                    self.session_id,
                    observer.protocol,
                    stream,
                    track,
                    ending,
                    tracker.stalls.rtt_ns,
                )
            )
            self._stream_text_bytes += len(stream.name or b"") + len(stream.error or b"")
            if self._stream_text_bytes >= MAX_PENDING_STREAM_TEXT_BYTES:
                self._flush_streams()
        if self._latencies is not None:
            self._latencies.add(observer.protocol, stream)

    def _flush_streams(self) -> None:
        if self._streams:
            self.batcher.add("streams", self._streams)
            self._streams = []
            self._stream_text_bytes = 0

    def _add_violations(self, observer: Observer, tracker: SessionTracker) -> None:
        violations = observer.take_violations()
        if violations:
            for violation in violations:
                violation.byte_offset = tracker.wire_offset(violation.sender, violation.byte_offset)
            self.violation_count += len(violations)
            self.violation_findings += sum(
                1 for violation in violations if violation.rule.severity.value != "note"
            )
            if "violations" in self.tables:
                self.batcher.add("violations", violations_rows(violations, self.session_id))

    def _add_stalls_and_timeline(self, stalls: StallDetector, timeline: Timeline) -> None:
        stall_rows, timeline_rows = stalls.take_rows(), timeline.take_rows()
        self.stall_findings += len(stall_rows.cause) - stall_rows.cause.count(SENDER_IDLE)
        if stall_rows.stream and "stalls" in self.tables:
            self.batcher.add("stalls", stalls_rows(stall_rows, self.session_id))
        if timeline_rows.row_count and "timeline" in self.tables:
            self.batcher.add_timeline(timeline_rows, self.session_id)

    def _emit_content(self, collector: ContentCollector, min_bytes: int) -> None:
        if collector.buffered_bytes >= min_bytes and collector.rows.stream:
            from polymux.analysis.output.arrow_batches import content_batch

            self.emit("content", content_batch(collector.take_rows(), self.session_id))


# Rows as lists. Without Arrow, so that a command that prints a few of them starts quickly.


def violations_rows(violations: Sequence[Violation], session_id: str) -> list[Row]:
    return [
        [
            session_id,
            SIDES[violation.sender],
            violation.frame_index,
            violation.byte_offset,
            violation.time // 1000,
            violation.stream or None,
            violation.rule.name,
            violation.rule.origin.value,
            violation.rule.severity.value,
            violation.certainty.value,
            violation.detail or None,
        ]
        for violation in violations
    ]


def stalls_rows(rows: StallRows, session_id: str) -> list[Row]:
    return [
        [
            session_id,
            rows.stream[n],
            SIDES[rows.sender[n]],
            rows.started_us[n],
            rows.duration_us[n],
            rows.cause[n],
            rows.blocking_stream[n] or None,
            rows.detail[n],
        ]
        for n in range(len(rows.stream))
    ]


def requests_rows(rows: Sequence[RequesterLatency], session_id: str) -> list[Row]:
    return [
        [
            session_id,
            SIDES[row.side],
            row.requests,
            row.answered,
            *[row.percentile(share) for _, share in PERCENTILES],
            row.max_us,
        ]
        for row in rows
    ]
