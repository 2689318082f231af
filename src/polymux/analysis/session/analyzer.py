"""One session in, the rows of all its tables out.

`walk` is the one place where a captured session is decoded, judged and measured; `ls` on a laptop
and a Spark task run the same. Batches leave through `emit` as they fill, so memory does not grow
with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable

from polymux.analysis.detection.detector import Verdict
from polymux.analysis.options import Plan, choose
from polymux.analysis.output.content_rows import Contents
from polymux.analysis.output.row_batcher import Gathering
from polymux.analysis.output.session_rows import Emit, Rows, session_id
from polymux.analysis.schema.stream_keys import stream_of
from polymux.analysis.schema.tables import VANTAGES, bucket_width_us
from polymux.analysis.session.outcome import conserved, ending_of, note_of
from polymux.analysis.session.peeked_session import Opening
from polymux.analysis.session.summary import SessionSummary
from polymux.analysis.tracking.request_latency import has_requests
from polymux.analysis.tracking.session_tracker import Watch
from polymux.analysis.tracking.stalls import Stalls
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture import FlowRefs, TcpSession, sessions_of
from polymux.capture.limits import CaptureLimits
from polymux.capture.tcp.sessions import BATCH, Reader
from polymux.core.errors import CaptureError
from polymux.core.events import Silence
from polymux.core.frames import ACCEPTS
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.protocol import Protocol
from polymux.core.side import Vantage
from polymux.protocols.registry import create

REMEMBERED = 65_536  # closed streams that late frames are told from unknown ones by
LIVE = 262_144  # streams open at once, beyond which a session is not decoded on
_NO_STREAM_CONTENT = "CONTROL_MESSAGE"  # a frame that is content and belongs to no stream

Progress = Callable[[int], None]
Begun = Callable[[SessionSummary], None]
Steps = Generator[int, None, SessionSummary]


def walk(
    session: TcpSession,
    plan: Plan,
    emit: Emit,
    progress: Progress | None = None,
    gathering: Gathering | None = None,
    begun: Begun | None = None,
) -> SessionSummary:
    """Decode, judge and measure one session.

    `emit(table, batch)` gets every row of the tables the plan wants, the session's own row last.
    `progress(octets)` is told how much was read. A file that cannot be read on ends the session
    there and is named in its note; nothing is raised about what was captured. Rows of all tables
    but content are left to a `gathering` if there is one, to become batches with those of other
    sessions. `begun(summary)` is told what is known before the first row, the note among it.
    """
    steps = walk_steps(session, plan, emit, gathering, begun)
    while True:
        try:
            octets = next(steps)
        except StopIteration as end:
            summary: SessionSummary = end.value
            return summary
        if progress is not None:
            progress(octets)


def walk_steps(
    session: TcpSession,
    plan: Plan,
    emit: Emit,
    gathering: Gathering | None = None,
    begun: Begun | None = None,
) -> Steps:
    """The same in steps, for who wants to hand on rows in between: each gives the octets it read,
    and the last returns the summary."""
    gathering = gathering or Gathering(emit, rows=1)
    try:
        session.survey()
        if session.look_ahead(BATCH):
            yield 0
        opening = Opening(session, BATCH)
        verdict = choose(session, plan, opening.sample())
    except CaptureError as problem:
        return _unread(session, gathering, plan, problem)
    if begun is not None:
        begun(_begun(session, verdict))
    if verdict.protocol is None:
        summary = _undecoded(session, verdict)
    else:
        summary = yield from _decoded(session, opening, verdict, plan, emit, gathering)
    _put_session(summary, plan, gathering)
    return summary


def walk_flow(
    rows: Iterable[FlowRefs],
    open_reader: Callable[[str], Reader],
    plan: Plan,
    emit: Emit,
    *,
    limits: CaptureLimits | None = None,
    gathering: Gathering | None = None,
) -> list[SessionSummary]:
    """All sessions of one flow, from its packed references in any order.

    What a Spark task calls for each of its flows: `rows` are the flow's rows of the index of all
    files, `open_reader(path)` reads payload (`capture.Files(limits).reader`).
    """
    sessions = sessions_of(rows, open_reader, limits=limits, ports=plan.ports)
    return [walk(session, plan, emit, gathering=gathering) for session in sessions]


def _decoded(
    session: TcpSession,
    opening: Opening,
    verdict: Verdict,
    plan: Plan,
    emit: Emit,
    gathering: Gathering,
) -> Steps:
    assert verdict.protocol is not None
    summary = _begun(session, verdict)
    vantage = Vantage[summary.vantage.upper()]
    protocol = create(verdict.protocol, Limits(remembered=REMEMBERED), vantage)
    contents = None
    if "content" in plan.tables:
        kinds = [
            number for number, kind in protocol.kinds.items() if kind.name == _NO_STREAM_CONTENT
        ]
        contents = Contents(kinds[0] if kinds else -1)
        if plan.stream:
            contents.select(*stream_of(plan.stream))
    watch = Watch(contents)
    observer = Observer(protocol, True, watch)
    watch.attach(observer, _timeline(session), _stalls(session, watch, protocol))
    if not session.saw_syn or verdict.doubt:
        observer.doubt()
    if session.unheard is not None:
        watch.miss(session.unheard, session.started_at)
    watch.skip(verdict.skip[0], verdict.skip[1], session.saw_syn)
    rows = Rows(summary.session_id, emit, gathering, plan.tables)
    try:
        for batch in opening.batches():
            watch.feed(batch.events, batch.data)
            rows.collect(observer, watch, session.ended_at)
            if open_streams(observer) > LIVE:
                watch.give_up(f"more than {LIVE} streams are open at once", session.ended_at)
            octets = len(batch.data)
            del batch  # others have their turn first, and need the room
            yield octets
    except CaptureError as problem:
        summary.failure = str(problem)
    watch.close(session.ended_at)
    rows.close(observer, watch, session.ended_at)
    _sum_up(summary, session, observer, watch, rows)
    # It leads back to the watch: both would stay in memory until Python looks for such circles.
    observer.conversation.sink = Silence()
    return summary


def open_streams(observer: Observer) -> int:
    """How many streams are held as open; a session with more than LIVE is not decoded on."""
    streams = observer.protocol.streams
    return int(streams.used) - (len(streams.closed) - int(streams.first))


def _timeline(session: TcpSession) -> Timeline:
    started = session.started_at // 1000
    return Timeline(started, bucket_width_us(max(0, session.ended_at // 1000 - started)))


def _stalls(session: TcpSession, watch: Watch, protocol: Protocol) -> Stalls:
    closed, repaired = session.zero_windows, session.retransmissions
    rtt = session.rtt_ns if session.rtt_ns is not None else -1
    kinds = protocol.kinds.values()
    return Stalls(
        watch.tracks.none,
        rtt,
        closed[0],
        closed[1],
        repaired[0],
        repaired[1],
        protocol.two_way,
        any(kind.effect == ACCEPTS for kind in kinds),
        has_requests(protocol),
    )


def _begun(session: TcpSession, verdict: Verdict) -> SessionSummary:
    """What is known before a frame is decoded."""
    vantage = "unordered" if not session.ordered else session.vantage_hint or "middle"
    assert vantage in VANTAGES
    return SessionSummary(
        session_id=session_id(session.flow, session.started_at),
        capture=list(session.captures),
        protocol=verdict.protocol.partition(":")[0] if verdict.protocol else None,
        version=None,
        dialect=None,
        evidence=verdict.evidence or None,
        vantage=vantage,
        dialer=session.dialer,
        acceptor=session.acceptor,
        started_at=session.started_at // 1000,
        ended_at=session.ended_at // 1000,
        rtt_us=session.rtt_ns // 1000 if session.rtt_ns is not None else None,
        note=verdict.doubt or None,
    )


def _undecoded(session: TcpSession, verdict: Verdict) -> SessionSummary:
    """No protocol was recognised: the octets are counted."""
    summary = _begun(session, verdict)
    (summary.missing_bytes_dialer, summary.missing_bytes_acceptor) = session.gaps
    (summary.undecoded_bytes_dialer, summary.undecoded_bytes_acceptor) = session.octets
    summary.bytes_dialer = session.octets[0] + session.gaps[0]
    summary.bytes_acceptor = session.octets[1] + session.gaps[1]
    ended = session.ends[0] is not None and session.ends[1] is not None
    if any(session.octets):
        summary.ending = "undecodable"
        said = "the protocol was not recognised; name it with --protocol or --port"
    else:
        summary.ending = "clean" if ended else "unknown"
        said = "no octets were exchanged"
    summary.note = f"{session.note}; {said}" if session.note else said
    return summary


def _unread(
    session: TcpSession, gathering: Gathering, plan: Plan, problem: CaptureError
) -> SessionSummary:
    summary = _undecoded(session, Verdict(None, "the capture could not be read"))
    summary.failure = str(problem)
    summary.note = f"{session.note}; {problem}" if session.note else str(problem)
    _put_session(summary, plan, gathering)
    return summary


def _sum_up(
    summary: SessionSummary, session: TcpSession, observer: Observer, watch: Watch, rows: Rows
) -> None:
    dialer, acceptor = observer.conversation.dialer, observer.conversation.acceptor
    protocol = observer.protocol
    summary.version = protocol.version() or None
    summary.dialect = protocol.dialect() or None
    summary.frames = watch.frames
    summary.streams, summary.violations = rows.streams, rows.violations
    summary.findings = rows.broken + rows.stalls
    summary.stalls, summary.unfinished = rows.stalls, rows.unfinished
    summary.payload_bytes_dialer, summary.payload_bytes_acceptor = rows.payload
    summary.bytes_dialer, summary.bytes_acceptor = dialer.octets, acceptor.octets
    summary.missing_bytes_dialer, summary.missing_bytes_acceptor = dialer.gap, acceptor.gap
    summary.undecoded_bytes_dialer, summary.undecoded_bytes_acceptor = (
        dialer.undecoded,
        acceptor.undecoded,
    )
    summary.overhead_bytes_dialer, summary.overhead_bytes_acceptor = (
        dialer.carrier,
        acceptor.carrier,
    )
    summary.balanced = conserved(summary, session, watch)
    summary.ending = ending_of(session, observer, bool(summary.failure))
    cut = watch.contents.cut if watch.contents is not None else 0
    summary.note = note_of(session, observer, summary, cut)


def _put_session(summary: SessionSummary, plan: Plan, gathering: Gathering) -> None:
    if "sessions" in plan.tables:
        gathering.put("sessions", {name: [value] for name, value in summary.row().items()})
