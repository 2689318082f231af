"""Analyze one captured session: decode, validate and measure it, and emit the rows of its tables.

`ls` on a laptop and a Spark task run the same code. Batches are emitted as they fill, so memory
does not grow with the length of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from polymux.analysis.detection.detector import Detection
from polymux.analysis.detection.selection import select_protocol
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.content_rows import ContentCollector
from polymux.analysis.output.row_batcher import RowBatcher
from polymux.analysis.output.session_rows import Emit, SessionRows, make_session_id
from polymux.analysis.schema.stream_keys import parse_stream_key
from polymux.analysis.schema.tables import VANTAGES, bucket_width_us
from polymux.analysis.session.outcome import accounts_for_all_bytes, session_ending, session_note
from polymux.analysis.session.peeked_session import PeekedSession
from polymux.analysis.session.summary import SessionSummary
from polymux.analysis.tracking.request_latency import has_requests
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture import FlowRefs, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits
from polymux.capture.tcp.sessions import BATCH_BYTES, ReadAt
from polymux.core.errors import CaptureError
from polymux.core.events import NullSink
from polymux.core.frames import ACCEPTS
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.core.side import Vantage
from polymux.protocols.registry import create

CLOSED_STREAMS_REMEMBERED = 65_536  # a late frame on any of these is not on an unknown stream
MAX_OPEN_STREAMS = 262_144  # with more streams open at once, decoding of a session stops
_STREAMLESS_CONTENT_KIND = "CONTROL_MESSAGE"  # a kind of frame that is content without a stream

Progress = Callable[[int], None]
OnStart = Callable[[SessionSummary], None]
Steps = Generator[int, None, SessionSummary]


def analyze_session(
    session: TcpSession,
    options: AnalysisOptions,
    emit: Emit,
    progress: Progress | None = None,
    batcher: RowBatcher | None = None,
    on_start: OnStart | None = None,
) -> SessionSummary:
    """Decode, validate and measure one session.

    Nothing is raised about captured data: a file that cannot be read any further ends the session
    there and is named in its note.

    Args:
        session: the session to analyze.
        options: the protocol and the tables.
        emit: called as `emit(table, batch)` with the rows of the selected tables, the session's
            own row last.
        progress: called with the number of bytes read by each step.
        batcher: receives the rows of all tables but `content`, to batch them with those of other
            sessions; None emits them without batching.
        on_start: called before the first row with what is known then, the note included.

    Returns:
        The session's row and totals.
    """
    steps = analyze_session_steps(session, options, emit, batcher, on_start)
    while True:
        try:
            size = next(steps)
        except StopIteration as end:
            summary: SessionSummary = end.value
            return summary
        if progress is not None:
            progress(size)


def analyze_session_steps(
    session: TcpSession,
    options: AnalysisOptions,
    emit: Emit,
    batcher: RowBatcher | None = None,
    on_start: OnStart | None = None,
) -> Steps:
    """Analyze a session in steps, so that the caller can work on other sessions in between.

    The arguments are those of `analyze_session`. Yields the bytes read by each step and returns
    the summary.
    """
    batcher = batcher or RowBatcher(emit, batch_rows=1)
    try:
        session.scan_packets()
        if session.prefetch(BATCH_BYTES):
            yield 0
        peeked = PeekedSession(session, BATCH_BYTES)
        detection = select_protocol(session, options, peeked.sample())
    except CaptureError as problem:
        return _summarize_unreadable(session, batcher, options, problem)
    if on_start is not None:
        on_start(_initial_summary(session, detection))
    if detection.protocol is None:
        summary = _summarize_undecoded(session, detection)
    else:
        summary = yield from _decode_session(session, peeked, detection, options, emit, batcher)
    _add_session_row(summary, options, batcher)
    return summary


def analyze_flow(
    refs: Iterable[FlowRefs],
    open_reader: Callable[[str], ReadAt],
    options: AnalysisOptions,
    emit: Emit,
    *,
    limits: CaptureLimits | None = None,
    batcher: RowBatcher | None = None,
) -> list[SessionSummary]:
    """Analyze all sessions of one flow, from its packed references in any order.

    Args:
        refs: the flow's references from the index of all files.
        open_reader: opens a capture file for reading payload (`capture.FilePool(limits).reader`).
        options, emit, batcher: as in `analyze_session`.
        limits: limits of reassembly.
    """
    sessions = sessions_of(refs, open_reader, limits=limits, ports=options.ports)
    return [analyze_session(session, options, emit, batcher=batcher) for session in sessions]


def _decode_session(
    session: TcpSession,
    peeked: PeekedSession,
    detection: Detection,
    options: AnalysisOptions,
    emit: Emit,
    batcher: RowBatcher,
) -> Steps:
    assert detection.protocol is not None  # the caller checked it
    summary = _initial_summary(session, detection)
    vantage = Vantage[summary.vantage.upper()]
    protocol = create(
        detection.protocol, Limits(closed_streams_remembered=CLOSED_STREAMS_REMEMBERED), vantage
    )
    collector = None
    if "content" in options.tables:
        kinds = [
            number
            for number, kind in protocol.kinds.items()
            if kind.name == _STREAMLESS_CONTENT_KIND
        ]
        collector = ContentCollector(kinds[0] if kinds else -1)
        if options.content_stream:
            collector.select(*parse_stream_key(options.content_stream))
    tracker = SessionTracker(collector)
    observer = Observer(protocol, True, tracker)
    tracker.attach(
        observer, _make_timeline(session), _make_stall_detector(session, tracker, protocol)
    )
    if not session.saw_syn or detection.mismatch:
        observer.mark_uncertain()
    if session.unseen_side is not None:
        tracker.mark_side_missing(session.unseen_side, session.started_at)
    tracker.skip_prefix(detection.skip_bytes[0], detection.skip_bytes[1], session.saw_syn)
    rows = SessionRows(summary.session_id, emit, batcher, options.tables)
    try:
        for batch in peeked.batches():
            tracker.feed(batch.events, batch.data)
            rows.collect(observer, tracker, session.ended_at)
            if open_stream_count(observer) > MAX_OPEN_STREAMS:
                tracker.stop_decoding(
                    f"more than {MAX_OPEN_STREAMS} streams are open at once", session.ended_at
                )
            size = len(batch.data)
            del batch  # free it before other sessions run
            yield size
    except CaptureError as problem:
        summary.read_error = str(problem)
    tracker.close(session.ended_at)
    rows.close(observer, tracker, session.ended_at)
    _complete_summary(summary, session, observer, tracker, rows)
    # Break the reference cycle between observer and tracker, so that both are freed at once.
    observer.connection.sink = NullSink()
    return summary


def open_stream_count(observer: Observer) -> int:
    """The number of streams that are open; above MAX_OPEN_STREAMS, decoding stops."""
    streams = observer.protocol.streams
    return int(streams.used_slots) - (len(streams.closed) - int(streams.first_closed))


def _make_timeline(session: TcpSession) -> Timeline:
    started = session.started_at // 1000
    return Timeline(started, bucket_width_us(max(0, session.ended_at // 1000 - started)))


def _make_stall_detector(
    session: TcpSession, tracker: SessionTracker, protocol: Protocol
) -> StallDetector:
    closed, repaired = session.zero_windows, session.retransmissions
    rtt = session.rtt_ns if session.rtt_ns is not None else -1
    kinds = protocol.kinds.values()
    return StallDetector(
        tracker.stream_trackers.empty_slot,
        rtt,
        closed[0],
        closed[1],
        repaired[0],
        repaired[1],
        protocol.two_way,
        any(kind.effect == ACCEPTS for kind in kinds),
        has_requests(protocol),
    )


def _initial_summary(session: TcpSession, detection: Detection) -> SessionSummary:
    """The summary before any frame is decoded."""
    vantage = "unordered" if not session.ordered else session.vantage_hint or "middle"
    assert vantage in VANTAGES
    return SessionSummary(
        session_id=make_session_id(session.flow, session.started_at),
        capture=list(session.captures),
        protocol=detection.protocol.partition(":")[0] if detection.protocol else None,
        version=None,
        dialect=None,
        evidence=detection.evidence or None,
        vantage=vantage,
        dialer=session.dialer,
        acceptor=session.acceptor,
        started_at=session.started_at // 1000,
        ended_at=session.ended_at // 1000,
        rtt_us=session.rtt_ns // 1000 if session.rtt_ns is not None else None,
        note=detection.mismatch or None,
    )


def _summarize_undecoded(session: TcpSession, detection: Detection) -> SessionSummary:
    """The summary of a session whose protocol was not detected: its bytes are only counted."""
    summary = _initial_summary(session, detection)
    (summary.missing_bytes_dialer, summary.missing_bytes_acceptor) = session.missing_bytes
    (summary.undecoded_bytes_dialer, summary.undecoded_bytes_acceptor) = session.reassembled_bytes
    summary.bytes_dialer = session.reassembled_bytes[0] + session.missing_bytes[0]
    summary.bytes_acceptor = session.reassembled_bytes[1] + session.missing_bytes[1]
    ended = session.ends[0] is not None and session.ends[1] is not None
    if any(session.reassembled_bytes):
        summary.ending = "undecodable"
        reason = "the protocol was not recognised; name it with --protocol or --port"
    else:
        summary.ending = "clean" if ended else "unknown"
        reason = "no bytes were exchanged"
    summary.note = f"{session.note}; {reason}" if session.note else reason
    return summary


def _summarize_unreadable(
    session: TcpSession, batcher: RowBatcher, options: AnalysisOptions, problem: CaptureError
) -> SessionSummary:
    summary = _summarize_undecoded(session, Detection(None, "the capture could not be read"))
    summary.read_error = str(problem)
    summary.note = f"{session.note}; {problem}" if session.note else str(problem)
    _add_session_row(summary, options, batcher)
    return summary


def _complete_summary(
    summary: SessionSummary,
    session: TcpSession,
    observer: Observer,
    tracker: SessionTracker,
    rows: SessionRows,
) -> None:
    dialer, acceptor = observer.connection.dialer, observer.connection.acceptor
    protocol = observer.protocol
    summary.version = protocol.version() or None
    summary.dialect = protocol.dialect() or None
    summary.frames = tracker.frame_count
    summary.streams, summary.violations = rows.stream_count, rows.violation_count
    summary.findings = rows.violation_findings + rows.stall_findings
    summary.stalls, summary.unfinished = rows.stall_findings, rows.unfinished_streams
    summary.payload_bytes_dialer, summary.payload_bytes_acceptor = rows.payload_bytes
    summary.bytes_dialer, summary.bytes_acceptor = dialer.total_bytes, acceptor.total_bytes
    summary.missing_bytes_dialer, summary.missing_bytes_acceptor = (
        dialer.missing_bytes,
        acceptor.missing_bytes,
    )
    summary.undecoded_bytes_dialer, summary.undecoded_bytes_acceptor = (
        dialer.undecoded_bytes,
        acceptor.undecoded_bytes,
    )
    summary.overhead_bytes_dialer, summary.overhead_bytes_acceptor = (
        dialer.overhead_bytes,
        acceptor.overhead_bytes,
    )
    summary.balanced = accounts_for_all_bytes(summary, session, tracker)
    summary.ending = session_ending(session, observer, bool(summary.read_error))
    cut = tracker.content_collector.truncated_bytes if tracker.content_collector is not None else 0
    summary.note = session_note(session, observer, summary, cut)


def _add_session_row(
    summary: SessionSummary, options: AnalysisOptions, batcher: RowBatcher
) -> None:
    if "sessions" in options.tables:
        batcher.add("sessions", {name: [value] for name, value in summary.row().items()})
