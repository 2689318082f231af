"""Rows of one session: collected from observer and tracker, and added to the batcher."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from polymux.analysis.output.row_columns import ContentCollector, HalfColumns, StreamColumns
from polymux.analysis.output.row_sink import RowSink, TableColumns
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

if TYPE_CHECKING:
    import pyarrow as pa

Emit = Callable[[str, "pa.RecordBatch"], None]
MAX_PENDING_STREAMS = 4096
MAX_PENDING_STREAM_TEXT_BYTES = 1 << 20  # of names and error texts
CONTENT_BATCH_BYTES = 4 << 20


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
        self._stream_columns = StreamColumns()
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
        if self._stream_columns.row_count >= MAX_PENDING_STREAMS:
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
            self.batcher.add("requests", requests_columns(latencies, self.session_id))
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
            self._stream_columns.add(observer.protocol, stream, track, tracker.stalls.rtt_ns)
            self._stream_text_bytes += len(stream.name or b"") + len(stream.error or b"")
            if self._stream_text_bytes >= MAX_PENDING_STREAM_TEXT_BYTES:
                self._flush_streams()
        if self._latencies is not None:
            self._latencies.add(observer.protocol, stream)

    def _flush_streams(self) -> None:
        if self._stream_columns.row_count:
            self.unfinished_streams += sum(
                map(self._stream_columns.ending.count, UNFINISHED_ENDINGS)
            )
            self.batcher.add("streams", streams_columns(self._stream_columns, self.session_id))
            self._stream_columns = StreamColumns()
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
                self.batcher.add("violations", violations_columns(violations, self.session_id))

    def _add_stalls_and_timeline(self, stalls: StallDetector, timeline: Timeline) -> None:
        stall_rows, timeline_rows = stalls.take_rows(), timeline.take_rows()
        self.stall_findings += len(stall_rows.cause) - stall_rows.cause.count(SENDER_IDLE)
        if stall_rows.stream and "stalls" in self.tables:
            self.batcher.add("stalls", stalls_columns(stall_rows, self.session_id))
        if timeline_rows.row_count and "timeline" in self.tables:
            self.batcher.add_timeline(timeline_rows, self.session_id)

    def _emit_content(self, collector: ContentCollector, min_bytes: int) -> None:
        if collector.buffered_bytes >= min_bytes and collector.rows.stream:
            from polymux.analysis.output.arrow_batches import content_batch

            self.emit("content", content_batch(collector.take_rows(), self.session_id))


# Rows as columns by name. Without Arrow, so that a command that prints a few rows starts quickly.


def streams_columns(rows: StreamColumns, session_id: str) -> TableColumns:
    columns: dict[str, Sequence[Any]] = {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "opener": rows.opener,
        "stream_id": rows.stream_id,
        "incarnation": rows.incarnation,
        "name": _decode_texts(rows.name),
        "name_bytes": rows.name,
        "opened_at": rows.opened_at,
        "accepted_at": rows.accepted_at,
        "closed_at": rows.closed_at,
        "ending": rows.ending,
        "reset_by": rows.reset_by,
        "error": _decode_texts(rows.error),
    }
    for side, half in zip(SIDES, (rows.dialer, rows.acceptor), strict=True):
        columns |= _half_columns(side, half)
    return columns


def _half_columns(side: str, half: HalfColumns) -> dict[str, Sequence[Any]]:
    names = (
        "bytes", "units", "frames", "ended", "credit_granted", "peak_in_flight_bytes", "blocked_us",
        "first_at", "last_at", "window_bytes", "window_limit_bps", "throughput_bps", "stalled_us",
        "hol_blocked_us",
    )  # fmt: skip
    return {f"{name}_{side}": getattr(half, name) for name in names}


def violations_columns(violations: Sequence[Violation], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(violations),
        "sender": [SIDES[violation.sender] for violation in violations],
        "frame_index": [violation.frame_index for violation in violations],
        "byte_offset": [violation.byte_offset for violation in violations],
        "time": [violation.time // 1000 for violation in violations],
        "stream": [violation.stream or None for violation in violations],
        "rule": [violation.rule.name for violation in violations],
        "origin": [violation.rule.origin.value for violation in violations],
        "severity": [violation.rule.severity.value for violation in violations],
        "certainty": [violation.certainty.value for violation in violations],
        "detail": [violation.detail or None for violation in violations],
    }


def stalls_columns(rows: StallRows, session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows.stream),
        "stream": rows.stream,
        "sender": [SIDES[side] for side in rows.sender],
        "started_at": rows.started_us,
        "duration_us": rows.duration_us,
        "cause": rows.cause,
        "blocking_stream": [blocking or None for blocking in rows.blocking_stream],
        "detail": rows.detail,
    }


def requests_columns(rows: Sequence[RequesterLatency], session_id: str) -> TableColumns:
    return {
        "session_id": [session_id] * len(rows),
        "opener": [SIDES[row.side] for row in rows],
        "requests": [row.requests for row in rows],
        "answered": [row.answered for row in rows],
        **{
            f"latency_{name}_us": [row.percentile(share) for row in rows]
            for name, share in PERCENTILES
        },
        "latency_max_us": [row.max_us for row in rows],
    }


def _decode_texts(values: Sequence[bytes | None]) -> list[str | None]:
    return [None if value is None else value.decode("utf-8", "replace") for value in values]
