# mypyc: compiled
"""Analyze one captured session: decode, validate and measure it, and emit the rows of its tables.

`ls` on a laptop and a Spark task run the same code. Batches are emitted as they fill, so memory
does not grow with the length of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING

from polymux.analysis.detection.confirmation import Expectation, confirm, expect, remember
from polymux.analysis.detection.detector import select_protocol
from polymux.analysis.detection.sample import PeekedSession, SessionSample, may_begin_client_hello
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.output.row_columns import ContentCollector
from polymux.analysis.output.row_sink import RowSink
from polymux.analysis.output.session_rows import Emit, SessionRows, make_session_id
from polymux.analysis.schema.stream_keys import parse_stream_key
from polymux.analysis.schema.tables import SIDES, TABLES, VANTAGES, bucket_width_us
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tracking.missing_content import MissingContent, MissingRange
from polymux.analysis.tracking.session_tracker import SessionTracker
from polymux.analysis.tracking.stalls import StallDetector
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture import FlowRefs, StreamBatch, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.flows import DEFAULT_SENSOR
from polymux.capture.tcp.sessions import BATCH_BYTES, ReadAt, consume_sessions
from polymux.core.errors import CaptureError
from polymux.core.events import NullSink
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.core.side import Vantage
from polymux.protocols.registry import create

if TYPE_CHECKING:
    from polymux.analysis.tls.layer import TlsLayer
    from polymux.analysis.tls.session import OpenedSession

CLOSED_STREAMS_REMEMBERED = 65_536  # a late frame on any of these is not on an unknown stream
MAX_REMEMBERED_BYTES = 2048  # of the packet of a session that has no other
MAX_REMEMBERED_PACKETS = 64
MAX_OPEN_STREAMS = 262_144  # with more streams open at once, decoding of a session stops
_SESSION_COLUMNS = TABLES["sessions"].column_names()
_session_values = attrgetter(*_SESSION_COLUMNS)
_REQUEST_REPLY_KINDS = {"Request", "Reply"}
_has_requests: dict[str, bool] = {}  # by the name of the protocol
_NO_SINK = NullSink()  # of observers that are released
_TRIAL_VANTAGE = "middle"  # of the observers of `detection`
_STREAMLESS_CONTENT_KIND = "CONTROL_MESSAGE"  # a kind of frame that is content without a stream


class SessionSummary:
    """A row of the `sessions` table as plain values, and the totals that commands print.

    Timestamps are microseconds. `findings` counts the violations of severity warning or worse and
    the `stalls` (without those of an idle sender). `unfinished` counts the streams that had not
    ended, if the `streams` table was selected. `balanced` says whether every byte is accounted for.
    `read_error` says why the capture could not be read to the session's end, "" if it could.
    `conflict` says that bytes were captured twice with different content, "" if they were not.
    """

    def __init__(
        self,
        session_id: str,
        capture: list[str],
        protocol: str | None,
        version: str | None,
        dialect: str | None,
        evidence: str | None,
        vantage: str,
        dialer: str,
        acceptor: str,
        started_at: int,
        ended_at: int,
    ) -> None:
        self.session_id = session_id
        self.capture = capture
        self.protocol = protocol
        self.version = version
        self.dialect = dialect
        self.evidence = evidence
        self.vantage = vantage
        self.dialer = dialer
        self.acceptor = acceptor
        self.started_at = started_at
        self.ended_at = ended_at
        self.frames: int = 0
        self.streams: int = 0
        self.bytes_dialer: int = 0
        self.bytes_acceptor: int = 0
        self.payload_bytes_dialer: int = 0
        self.payload_bytes_acceptor: int = 0
        self.missing_bytes_dialer: int = 0
        self.missing_bytes_acceptor: int = 0
        self.undecoded_bytes_dialer: int = 0
        self.undecoded_bytes_acceptor: int = 0
        self.overhead_bytes_dialer: int = 0
        self.overhead_bytes_acceptor: int = 0
        self.violations: int = 0
        self.ending: str = "unknown"
        self.note: str | None = None
        self.tls: str | None = None
        self.server_name: str | None = None
        self.alpn: str | None = None
        self.tls_records: int | None = None
        self.tls_unopened: int | None = None
        self.tls_handshake_us: int | None = None
        self.rtt_us: int | None = None
        self.sensor: str = DEFAULT_SENSOR
        self.connection_id: str | None = None
        self.balanced: bool = True
        self.findings: int = 0
        self.stalls: int = 0
        self.unfinished: int = 0
        self.read_error: str = ""
        self.conflict: str = ""

    def row(self) -> dict[str, object]:
        """The columns of the table."""
        return dict(zip(_SESSION_COLUMNS, _session_values(self), strict=True))

    def values(self) -> list[object]:
        """The columns of the table, in their order."""
        return list(_session_values(self))


Progress = Callable[[int], None]
OnStart = Callable[[SessionSummary], None]
OnMissing = Callable[[str, MissingRange], None]
Steps = Generator[int, None, SessionSummary]


def analyze_session(
    session: TcpSession,
    options: AnalysisOptions,
    emit: Emit,
    progress: Progress | None = None,
    batcher: RowSink | None = None,
    on_start: OnStart | None = None,
    on_missing: OnMissing | None = None,
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
        on_start: called before the first row of a session whose bytes contradict the named
            protocol, with what is known then, the note included.
        on_missing: called with the session's id and each range of bytes that is missing, before
            the rows of frames that come after it.

    Returns:
        The session's row and totals.
    """
    steps = analyze_session_steps(session, options, emit, batcher, on_start, on_missing)
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
    batcher: RowSink | None = None,
    on_start: OnStart | None = None,
    on_missing: OnMissing | None = None,
) -> Steps:
    """Analyze a session in steps, so that the caller can work on other sessions in between.

    The arguments are those of `analyze_session`. Yields the bytes read by each step and returns
    the summary.
    """
    batcher = batcher or _unbatched(emit)
    expected: Expectation | None = None
    decoding: Decoding | None = None
    detection: Detection | None = None
    try:
        session.scan_packets()
        conflict = _describe_conflicts(session)
        if session.prefetch(BATCH_BYTES):
            yield 0
        peeked = PeekedSession(session, BATCH_BYTES)
        sample = peeked.sample()
        opened = _open_tls(peeked, sample, options)
        if opened is not None:
            sample = opened.sample()
        elif not conflict:
            expected, detection, decoding = _confirm_expected(
                session, peeked, sample, options, on_missing is not None
            )
        if detection is None:
            detection = _detect_protocol(session, options, sample, opened)
            if expected is not None:
                remember(expected, detection)
    except CaptureError as problem:
        return _summarize_unreadable(session, batcher, options, problem)
    if options.only_protocols and _protocol_name(detection) not in options.only_protocols:
        if decoding is not None:
            decoding.release()
        return _initial_summary(session, detection)
    if on_start is not None and detection.mismatch:
        on_start(_initial_summary(session, detection))
    if detection.protocol is None:
        summary = _summarize_undecoded(session, detection, opened)
        if on_missing is not None:
            _report_undecoded_missing(session, summary.session_id, on_missing)
    else:
        is_plain = opened is None and on_missing is None
        key = _packet_key(session, detection, sample) if is_plain else None
        decoded = _frameless_packets.get(key) if key is not None else None
        if decoded is not None:
            summary = _initial_summary(session, detection)
            _complete_summary(summary, session, decoded, None)
        else:
            is_fed = decoding is not None
            if decoding is None:
                decoding = _start_decoding(
                    session,
                    opened.layer if opened is not None else None,
                    detection.protocol,
                    detection.skip_bytes,
                    options,
                    on_missing is not None,
                )
                if detection.mismatch or conflict:
                    decoding.observer.mark_uncertain()
            summary = yield from _decode_session(
                session,
                peeked.batches() if opened is None else opened.batches(session.ended_at),
                decoding,
                is_fed,
                detection,
                options,
                emit,
                batcher,
                on_missing,
                key,
            )
    if conflict:
        summary.conflict = conflict
        summary.note = f"{summary.note}; {conflict}" if summary.note else conflict
    _add_session_row(summary, options, batcher)
    return summary


def analyze_flow(
    refs: Iterable[FlowRefs],
    open_reader: Callable[[str], ReadAt],
    options: AnalysisOptions,
    emit: Emit,
    *,
    limits: CaptureLimits | None = None,
    batcher: RowSink | None = None,
) -> list[SessionSummary]:
    """Analyze all sessions of one flow, from its packed references in any order.

    Args:
        refs: the flow's references from the index of all files.
        open_reader: opens a capture file for reading payload (`capture.FilePool(limits).reader`).
        options, emit, batcher: as in `analyze_session`.
        limits: limits of reassembly.
    """
    sessions = sessions_of(refs, open_reader, limits=limits, ports=options.ports)
    return [
        analyze_session(session, options, emit, batcher=batcher)
        for session in consume_sessions(sessions)
    ]


def _detect_protocol(
    session: TcpSession,
    options: AnalysisOptions,
    sample: SessionSample,
    opened: OpenedSession | None,
) -> Detection:
    """The protocol of a session; inside TLS, of what was opened."""
    if opened is not None and opened.layer.failure:
        text = opened.layer.facts.text
        return Detection(None, f"TLS {text}" if text else "TLS", other_protocol="TLS")
    return select_protocol(session, options, sample)


class Decoding:
    """The decoding of one session. `layer` is None if the session is not inside TLS."""

    def __init__(
        self,
        observer: Observer,
        tracker: SessionTracker,
        layer: TlsLayer | None,
    ) -> None:
        self.observer = observer
        self.tracker = tracker
        self.layer = layer

    def release(self) -> None:
        """Break the cycle of references between both, so that they are freed at once."""
        self.observer.connection.sink = _NO_SINK


def _confirm_expected(
    session: TcpSession,
    peeked: PeekedSession,
    sample: SessionSample,
    options: AnalysisOptions,
    with_missing: bool,
) -> tuple[Expectation | None, Detection | None, Decoding | None]:
    """Decode a short session by the protocol that its acceptor is remembered to speak.

    Returns:
        What is expected of the session, for `remember`, if it can be confirmed at all; and, if it
        was confirmed, the detection and the decoding, which has been fed with the whole session.
    """
    whole = _confirmable_batch(session, peeked, sample)
    expected = expect(session, options, sample) if whole is not None else None
    if whole is None or expected is None or not expected.protocol:
        return expected, None, None
    decoding = _start_decoding(session, None, expected.protocol, (0, 0), options, with_missing)
    decoding.tracker.feed(whole.events, whole.data)
    detection = confirm(expected, sample, decoding.observer, decoding.tracker.frame_rows())
    if detection is None:
        decoding.release()
        return expected, None, None
    return expected, detection, decoding


def _confirmable_batch(
    session: TcpSession, peeked: PeekedSession, sample: SessionSample
) -> StreamBatch | None:
    """The only batch of a session whose verdict can be confirmed by decoding it, None for others.

    The sample must have all its bytes, and the session must be seen as a trial sees it.
    """
    if (
        not session.saw_syn
        or not session.ordered
        or session.unseen_side is not None
        or sample.size == 0
        or session.missing_bytes != (0, 0)
        or session.vantage_hint not in (None, _TRIAL_VANTAGE)
    ):
        return None
    batch = peeked.only_batch()
    return batch if batch is not None and len(batch.data) == sample.size else None


def _start_decoding(
    session: TcpSession,
    layer: TlsLayer | None,
    protocol_text: str,
    skip_bytes: tuple[int, int],
    options: AnalysisOptions,
    wants_missing: bool,
) -> Decoding:
    """The observer and tracker of a session, in the state in which its analysis begins."""
    protocol = create(
        protocol_text,
        Limits(closed_streams_remembered=CLOSED_STREAMS_REMEMBERED),
        Vantage[_vantage_of(session).upper()],
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
    missing = MissingContent() if wants_missing else None
    tracker = SessionTracker(collector, missing)
    observer = Observer(protocol, True, tracker)
    tracker.attach(
        observer, _make_timeline(session), make_stall_detector(session, tracker, protocol)
    )
    # The ClientHello of TLS is the beginning, also if the SYN was not captured.
    if layer is None and not session.saw_syn and skip_bytes == (0, 0):
        observer.begin_in_middle()
    if session.unseen_side is not None:
        tracker.mark_side_missing(session.unseen_side, session.started_at)
    if skip_bytes != (0, 0):
        tracker.skip_prefix(skip_bytes[0], skip_bytes[1])
    if layer is not None:
        tracker.use_wire_offsets(*layer.offsets)
    elif missing is not None:
        _add_missing_beginning(missing, session)
    return Decoding(observer, tracker, layer)


def _decode_session(
    session: TcpSession,
    batches: Iterator[StreamBatch],
    decoding: Decoding,
    is_fed: bool,
    detection: Detection,
    options: AnalysisOptions,
    emit: Emit,
    batcher: RowSink,
    on_missing: OnMissing | None,
    key: PacketKey | None,
) -> Steps:
    """Decode a session to its end; `is_fed`: the first batch was fed already."""
    observer, tracker = decoding.observer, decoding.tracker
    summary = _initial_summary(session, detection)
    protocol = observer.protocol
    rows = SessionRows(summary.session_id, emit, batcher, options.tables, has_requests(protocol))
    try:
        for batch in batches:
            if is_fed:
                is_fed = False
            else:
                tracker.feed(batch.events, batch.data)
            _hand_over(tracker, summary.session_id, on_missing)
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
    _close_tracker(tracker, session)
    _hand_over(tracker, summary.session_id, on_missing)
    rows.close(observer, tracker, session.ended_at)
    decoded = DecodedSession(observer, tracker, rows)
    _complete_summary(summary, session, decoded, decoding.layer)
    if key is not None and decoded.is_frameless and not summary.read_error:
        _remember_packet(key, decoded)
    decoding.release()
    return summary


PacketKey = tuple[object, ...]


class DecodedSession:
    """A session that was decoded to its end."""

    def __init__(self, observer: Observer, tracker: SessionTracker, rows: SessionRows) -> None:
        self.observer = observer
        self.tracker = tracker
        self.rows = rows

    @property
    def is_frameless(self) -> bool:
        """Whether nothing was found in its bytes, so that it has no rows but its own."""
        rows = self.rows
        found = rows.stream_count + rows.violation_count + rows.stall_findings
        return not (self.tracker.frame_count or found)


_frameless_packets: dict[PacketKey, DecodedSession] = {}


def _packet_key(
    session: TcpSession, detection: Detection, sample: SessionSample
) -> PacketKey | None:
    """What decides how a session of one small packet is decoded; None for other sessions.

    Captures of scans and floods have millions of such sessions, mostly with the same bytes. Those
    in which no frame was found are not decoded again.
    """
    if session.packets != 1 or sample.size > MAX_REMEMBERED_BYTES:
        return None
    if any(session.missing_bytes) or sum(session.reassembled_bytes) != sample.size:
        return None
    if detection.mismatch or detection.skip_bytes != (0, 0) or not session.ordered:
        return None
    return (
        detection.protocol, session.vantage_hint, session.saw_syn, session.unseen_side,
        session.ends, sample.head(0), sample.head(1),
    )  # fmt: skip


def _remember_packet(key: PacketKey, decoded: DecodedSession) -> None:
    if len(_frameless_packets) >= MAX_REMEMBERED_PACKETS:
        _frameless_packets.clear()
    _frameless_packets[key] = decoded


def _open_tls(
    peeked: PeekedSession, sample: SessionSample, options: AnalysisOptions
) -> OpenedSession | None:
    """The opened bytes of a session that begins with the ClientHello of TLS; None for others."""
    head = sample.head(0)
    if not may_begin_client_hello(head):
        return None
    from polymux.analysis.tls.session import OpenedSession, read_client_hello

    if read_client_hello(head) is None:
        return None
    return OpenedSession(peeked.batches(), options.keys or KeyLog())


def _unbatched(emit: Emit) -> RowSink:
    """A sink that emits every row as a record batch at once."""
    from polymux.analysis.output.row_batcher import RowBatcher  # needs Arrow, which takes long

    return RowBatcher(emit, batch_rows=1)


def _describe_conflicts(session: TcpSession) -> str:
    """Say which bytes were captured twice with different content; "" if there are none.

    It is no fault of a peer of the multiplexing protocol: TCP sends the same bytes again. A program
    on the path has changed or injected packets, or the capture has mixed up two connections. The
    receiver may have taken the other copy, so violations of the session are only possible ones.
    """
    try:
        conflicts = session.conflicts()
    except CaptureError:  # decoding reports it where it happens
        return ""
    if not conflicts:
        return ""
    first = conflicts[0]
    count = len(conflicts)
    packets = "1 packet repeats" if count == 1 else f"{count} packets repeat"
    return (
        f"{packets} bytes with other content, first at byte {first.position} of the "
        f"{SIDES[first.side]}; the first copy captured was taken"
    )


def _hand_over(tracker: SessionTracker, session_id: str, on_missing: OnMissing | None) -> None:
    """Report the ranges found since the last call."""
    missing = tracker.missing
    if missing is not None and on_missing is not None and missing.ranges:
        for found in missing.take():
            found.byte_offset = tracker.wire_offset(found.sender, found.byte_offset)
            on_missing(session_id, found)


def begins_in_middle(session: TcpSession, detection: Detection) -> bool:
    """Whether the capture of a session begins after its connection, in the middle of its bytes.

    A negotiation before the first frame shows that it does not.
    """
    return not session.saw_syn and detection.skip_bytes == (0, 0)


def _add_missing_beginning(missing: MissingContent, session: TcpSession) -> None:
    """Add what precedes the first frame of each side, if the capture began later than the session.

    How many bytes were not captured is not known. Of a side without any packet, all are missing.
    """
    at = session.started_at
    for side in (0, 1):
        if not session.saw_syn or session.unseen_side == side:
            missing.add(MissingRange(side, 0, -1, at, 0))


def _report_undecoded_missing(session: TcpSession, session_id: str, on_missing: OnMissing) -> None:
    """Report the gaps of a session whose protocol was not detected, as one range for each side."""
    for side, size in enumerate(session.missing_bytes):
        if size:
            on_missing(session_id, MissingRange(side, -1, size, session.started_at, 0))


def _close_tracker(tracker: SessionTracker, session: TcpSession) -> None:
    """Close the tracker, and add what is missing at the end of each side.

    A frame is cut off by the capture, and not by its sender, if no side closed the connection. What
    was captured and not decoded is missing only if bytes that were not captured are the reason.
    """
    missing, observer = tracker.missing, tracker.observer
    directions = (observer.connection.dialer, observer.connection.acceptor)
    undecoded_before = [d.undecoded_bytes for d in directions]
    partial = [(d.part_bytes_left, d.stream) if d.in_payload else None for d in directions]
    has_more_parts = [d.parts_left != 0 for d in directions]
    tracker.close(session.ended_at)
    if missing is None:
        return
    sent = [observer.protocol.causality.frames_sent(side) for side in (0, 1)]
    for side, d in enumerate(directions):
        open_end = session.ends[side] is None and "rst" not in session.ends
        cut = open_end and d.undecoded_bytes > undecoded_before[side] and not d.decoding_stopped
        if cut:
            left, stream = partial[side] or (-1, None)
            size = -1 if has_more_parts[side] else left
            label = stream.label() if stream is not None else ""
            index = d.frame_index if partial[side] else sent[side]
            missing.add(
                MissingRange(side, missing.arrived[side], size, session.ended_at, index, label)
            )
    for side, d in enumerate(directions):
        size = d.undecoded_bytes
        size -= missing.undecoded[side]
        if size > 0 and missing.found:
            start = missing.stopped_at[side]
            if start < 0 and observer.websocket is None:
                start = d.total_bytes - d.missing_bytes - size
            missing.add(
                MissingRange(side, start, size, session.ended_at, sent[side], captured=True)
            )


def open_stream_count(observer: Observer) -> int:
    """The number of streams that are open; above MAX_OPEN_STREAMS, decoding stops."""
    streams = observer.protocol.streams
    return int(streams.used_slots) - (len(streams.closed) - int(streams.first_closed))


def _make_timeline(session: TcpSession) -> Timeline:
    started = session.started_at // 1000
    return Timeline(started, bucket_width_us(max(0, session.ended_at // 1000 - started)))


def make_stall_detector(
    session: TcpSession, tracker: SessionTracker, protocol: Protocol
) -> StallDetector:
    """The stall detector of a session, with what TCP shows of it."""
    closed, repaired = session.zero_windows, session.retransmissions
    rtt = session.rtt_ns if session.rtt_ns is not None else -1
    return StallDetector(
        tracker.stream_trackers.empty_slot,
        rtt,
        closed[0],
        closed[1],
        repaired[0],
        repaired[1],
        protocol.two_way,
        protocol.needs_acceptance,
        has_requests(protocol),
    )


def has_requests(protocol: Protocol) -> bool:
    """Whether every stream of this protocol is a request and its reply."""
    known = _has_requests.get(protocol.name)
    if known is None:
        known = {kind.name for kind in protocol.kinds.values()} >= _REQUEST_REPLY_KINDS
        _has_requests[protocol.name] = known
    return known


def _protocol_name(detection: Detection) -> str | None:
    """The name of the detected protocol, without its options."""
    return detection.protocol.partition(":")[0] if detection.protocol else None


def _initial_summary(session: TcpSession, detection: Detection) -> SessionSummary:
    """The summary before any frame is decoded."""
    vantage = _vantage_of(session)
    assert vantage in VANTAGES
    summary = SessionSummary(
        make_session_id(session.flow, session.started_at),
        list(session.captures),
        _protocol_name(detection),
        None,
        None,
        detection.evidence or None,
        vantage,
        session.dialer,
        session.acceptor,
        session.started_at // 1000,
        session.ended_at // 1000,
    )
    summary.sensor = session.sensor
    summary.connection_id = session.connection_id
    summary.rtt_us = session.rtt_ns // 1000 if session.rtt_ns is not None else None
    summary.note = detection.mismatch or None
    return summary


def _vantage_of(session: TcpSession) -> str:
    return "unordered" if not session.ordered else session.vantage_hint or "middle"


def _summarize_undecoded(
    session: TcpSession, detection: Detection, opened: OpenedSession | None = None
) -> SessionSummary:
    """The summary of a session whose protocol was not detected: its bytes are only counted."""
    summary = _initial_summary(session, detection)
    failure = ""
    if opened is not None:
        failure = opened.layer.failure
        _add_tls_facts(summary, opened.layer)
    (summary.missing_bytes_dialer, summary.missing_bytes_acceptor) = session.missing_bytes
    (summary.undecoded_bytes_dialer, summary.undecoded_bytes_acceptor) = session.reassembled_bytes
    summary.bytes_dialer = session.reassembled_bytes[0] + session.missing_bytes[0]
    summary.bytes_acceptor = session.reassembled_bytes[1] + session.missing_bytes[1]
    ended = session.ends[0] is not None and session.ends[1] is not None
    if any(session.reassembled_bytes):
        summary.ending = "undecodable"
        reason = (
            f"TLS that was not opened: {failure}"
            if failure
            else "the protocol was not recognised; name it with --protocol or --port"
        )
    else:
        summary.ending = "clean" if ended else "unknown"
        reason = "no bytes were exchanged"
    summary.note = f"{session.note}; {reason}" if session.note else reason
    return summary


def _summarize_unreadable(
    session: TcpSession, batcher: RowSink, options: AnalysisOptions, problem: CaptureError
) -> SessionSummary:
    summary = _summarize_undecoded(session, Detection(None, "the capture could not be read"))
    summary.read_error = str(problem)
    summary.note = f"{session.note}; {problem}" if session.note else str(problem)
    _add_session_row(summary, options, batcher)
    return summary


def _complete_summary(
    summary: SessionSummary, session: TcpSession, decoded: DecodedSession, layer: TlsLayer | None
) -> None:
    observer, tracker, rows = decoded.observer, decoded.tracker, decoded.rows
    dialer, acceptor = observer.connection.dialer, observer.connection.acceptor
    protocol = observer.protocol
    summary.version = protocol.version() or None
    summary.dialect = protocol.dialect() or None
    signs = protocol.dialect_evidence()
    if signs and signs not in (summary.evidence or ""):
        summary.evidence = f"{summary.evidence}; {signs}" if summary.evidence else signs
    if summary.rtt_us is None and protocol.round_trip_ns() >= 0:
        summary.rtt_us = protocol.round_trip_ns() // 1000
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
    if layer is not None:
        _add_tls_bytes(summary, layer)
        _add_tls_facts(summary, layer)
    summary.balanced = _accounts_for_all_bytes(summary, session, tracker)
    summary.ending = _session_ending(session, observer, bool(summary.read_error))
    if layer is not None and layer.ends_inside_record and summary.ending == "clean":
        summary.ending = "truncated"
    cut = tracker.content_collector.truncated_bytes if tracker.content_collector is not None else 0
    summary.note = _session_note(session, observer, summary, cut, layer.notes if layer else [])


def _add_tls_bytes(summary: SessionSummary, layer: TlsLayer) -> None:
    """Add the bytes that the decoder did not get: those of TLS itself, and what was not opened."""
    for side, name in enumerate(SIDES):
        added = 0
        for column, counts in (
            ("overhead_bytes", layer.overhead_bytes),
            ("undecoded_bytes", layer.undecoded_bytes),
            ("missing_bytes", layer.missing_bytes),
        ):
            key = f"{column}_{name}"
            setattr(summary, key, getattr(summary, key) + counts[side])
            added += counts[side]
        setattr(summary, f"bytes_{name}", getattr(summary, f"bytes_{name}") + added)


def _add_tls_facts(summary: SessionSummary, layer: TlsLayer) -> None:
    facts = layer.facts
    summary.tls = facts.text
    summary.server_name = facts.server_name or None
    summary.alpn = facts.alpn or None
    summary.tls_records, summary.tls_unopened = facts.records, facts.unopened
    if facts.handshake_ns is not None:
        summary.tls_handshake_us = facts.handshake_ns // 1000


def _add_session_row(summary: SessionSummary, options: AnalysisOptions, batcher: RowSink) -> None:
    unwanted = options.only_protocols and summary.protocol not in options.only_protocols
    if "sessions" in options.tables and not unwanted:
        batcher.add("sessions", [summary.values()])


def _session_ending(session: TcpSession, observer: Observer, failed: bool) -> str:
    """The `ending` of the session: loss of data takes precedence over how it closed."""
    connection = observer.connection
    directions = (connection.dialer, connection.acceptor)
    if any(session.missing_bytes) or any(direction.stopped_by_gap for direction in directions):
        return "gap"
    if any(direction.decoding_stopped for direction in directions):
        return "undecodable"
    if connection.violation_mask & observer.protocol.truncated_rule:
        return "truncated"
    if failed or not _has_ended(session):
        return "unknown"
    return "clean"


def _has_ended(session: TcpSession) -> bool:
    """Whether both sides closed, or one reset the connection."""
    return "rst" in session.ends or None not in session.ends


def _accounts_for_all_bytes(
    summary: SessionSummary, session: TcpSession, tracker: SessionTracker
) -> bool:
    """Whether each byte is counted exactly once: in a frame, as missing, undecoded or overhead."""
    frame_bytes = (tracker.dialer_frame_bytes, tracker.acceptor_frame_bytes)
    total_bytes = (summary.bytes_dialer, summary.bytes_acceptor)
    other_bytes = (
        summary.missing_bytes_dialer
        + summary.undecoded_bytes_dialer
        + summary.overhead_bytes_dialer,
        summary.missing_bytes_acceptor
        + summary.undecoded_bytes_acceptor
        + summary.overhead_bytes_acceptor,
    )
    if any(total_bytes[side] != frame_bytes[side] + other_bytes[side] for side in (0, 1)):
        return False
    seen = tuple(session.reassembled_bytes[side] + session.missing_bytes[side] for side in (0, 1))
    return bool(summary.read_error) or total_bytes == seen


def _session_note(
    session: TcpSession,
    observer: Observer,
    summary: SessionSummary,
    truncated_bytes: int,
    tls_notes: list[str],
) -> str | None:
    """The `note` of the session's row; None if there is nothing to note.

    A note that the summary already has comes first. `truncated_bytes` are the bytes of frames over
    the size limit that are left out of the `content` table; `tls_notes` those of the TLS layer.
    """
    notes = [text for text in (summary.note, session.note) if text] + tls_notes
    connection = observer.connection
    if connection.adopted_streams:
        count = connection.adopted_streams
        streams = "1 stream was" if count == 1 else f"{count} streams were"
        notes.append(f"{streams} opened by frames that were not captured")
    for side, name in enumerate(SIDES):
        direction = connection.direction(side)
        if session.missing_bytes[side]:
            notes.append(f"{session.missing_bytes[side]} bytes of the {name} were not captured")
        if session.unseen_side == side:
            notes.append(
                f"only one direction was captured, nothing of the {name}: rules that depend on "
                "its frames are not checked"
            )
        elif direction.searching:
            notes.append(
                f"no start of a frame was found in the {name}'s bytes after this: "
                f"{direction.stop_reason}"
            )
        elif direction.decoding_stopped:
            notes.append(f"the {name} could not be decoded any further: {direction.stop_reason}")
    if truncated_bytes:
        notes.append(
            f"{truncated_bytes} bytes of overlong frames are left out of the content table"
        )
    if summary.read_error:
        notes.append(f"reading stopped: {summary.read_error}")
    if not summary.balanced:
        notes.append("bytes are not conserved: this is a bug in polymux, please report it")
    return "; ".join(notes) or None
