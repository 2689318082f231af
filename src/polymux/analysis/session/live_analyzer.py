"""Live analysis: sessions that are still open, decoded as their packets arrive.

`LiveAnalyzer` emits their frames as they complete; `live_tracker` also measures their streams.

The protocol of a session is decided once its first bytes suffice, or once the capture is idle.
Until then its bytes are held: at most FULL_SAMPLE_BYTES of a session, MAX_UNDECIDED_BYTES of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from polymux.analysis.detection.detector import select_protocol
from polymux.analysis.detection.sample import (
    FULL_SAMPLE_BYTES,
    SamplePiece,
    SessionSample,
    add_pieces,
)
from polymux.analysis.detection.verdict import Detection
from polymux.analysis.options import AUTO, AnalysisOptions
from polymux.analysis.output.arrow_batches import make_batch
from polymux.analysis.output.frame_dicts import Row, take_frame_rows
from polymux.analysis.output.session_rows import Emit, make_session_id
from polymux.analysis.session.analyzer import (
    CLOSED_STREAMS_REMEMBERED,
    MAX_OPEN_STREAMS,
    begins_in_middle,
    make_stall_detector,
    open_stream_count,
)
from polymux.analysis.tls.key_log import KeyLog
from polymux.analysis.tls.live import LiveOpening
from polymux.analysis.tracking.session_tracker import SessionTracker, SkippedPrefix
from polymux.analysis.tracking.timeline import Timeline
from polymux.capture import StreamBatch
from polymux.capture.live_reader import LiveSession
from polymux.capture.tcp.reassembly import GAP, PAYLOAD, UNDECODABLE
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.side import ACCEPTOR, Vantage
from polymux.core.token_exchange import is_token_exchange_open
from polymux.protocols.registry import create

MIN_DECISION_BYTES: Final = 4096  # with these, a detected protocol is accepted at once
MAX_UNDECIDED_BYTES: Final = 32 << 20  # held for all sessions whose protocol is undecided
MAX_ENDED_SESSIONS: Final = 4096  # that ended and are held until their secrets come

OnWarning = Callable[[str, str], None]


NO_TIMELINE_US: Final = 1 << 50  # width of a bucket that does not end


class LiveSessionAnalyzer:
    """Decides the protocol of one live session, decodes it and returns its frames.

    With `tracks`, its streams are measured too, by `tracker`, which exists once the protocol is
    decided.
    """

    def __init__(
        self, session: LiveSession, options: AnalysisOptions, keys: KeyLog, tracks: bool = False
    ) -> None:
        self.session = session
        self.tracker: SessionTracker | None = None
        self._tracks = tracks
        self.session_id = make_session_id(session.flow, session.started_at)
        self.detection: Detection | None = None
        self.pending_bytes = 0
        """Bytes held until the protocol is decided."""
        self.mismatch_reported = False
        """Whether the caller was warned that the bytes contradict the named protocol."""
        self.stop_reason = ""
        """Why decoding stopped; "" if it did not."""
        self._options = options
        self._pending: list[StreamBatch] = []
        self._tried_bytes = 0
        self._observer: Observer | None = None
        self._skipped_prefix = SkippedPrefix(0, 0)
        self._opening = LiveOpening(keys)
        self._tcp_facts: tuple[object, ...] = ()

    def receive(self) -> None:
        """Process the bytes that arrived since the last call."""
        self._receive(self._opening.open(self.session.take_batches()))

    def _receive(self, batches: list[StreamBatch]) -> None:
        if self._observer is not None:
            self._update_tcp_facts()
            for batch in batches:
                self._feed(self._observer, batch)
        elif self.detection is None:
            self._pending += batches
            self.pending_bytes = self._opening.held_bytes + sum(
                len(batch.data) for batch in self._pending
            )
            if self._opening.waiting:
                return
            if self.pending_bytes >= FULL_SAMPLE_BYTES:
                self.decide_protocol(final=True)
            elif (
                self.pending_bytes >= MIN_DECISION_BYTES
                and self.pending_bytes >= 2 * self._tried_bytes
            ):
                self.decide_protocol()

    def decide_protocol(self, final: bool = False, idle: bool = False) -> None:
        """Try to decide the protocol by the bytes so far.

        Args:
            final: decide now; a session whose protocol is not detected is not decoded.
            idle: nothing arrived for a while, so a named protocol does not wait for bytes of the
                other side any longer.
        """
        if self.detection is not None or (self.pending_bytes == self._tried_bytes and not final):
            return
        if self._opening.waiting:
            if not final:
                return
            self._receive(self._opening.decide())
            if self.detection is not None:
                return
        self._tried_bytes = self.pending_bytes
        if self._opening.failure:
            self.detection = Detection(None, f"TLS: {self._opening.failure}")
            self.stop_reason = f"TLS that was not opened: {self._opening.failure}"
            self._pending = []
            self.pending_bytes = 0
            return
        pieces: list[SamplePiece] = []
        left = FULL_SAMPLE_BYTES
        for batch in self._pending:
            left = add_pieces(pieces, batch, left)
            if left <= 0:
                break
        session = self.session
        named = self._options.protocol_for(session) != AUTO or bool(session.protocol_hint)
        if not pieces:  # it begins with a gap, after which nothing is sampled
            if not final and not (named and idle and self._pending):
                return
        elif (
            named
            and not (final or idle)
            and self.pending_bytes < MIN_DECISION_BYTES
            and not self._has_both_sides(pieces)
        ):
            return
        sample = SessionSample(tuple(pieces), session.saw_syn or self._opening.is_tls)
        if (
            not final
            and self.pending_bytes < MIN_DECISION_BYTES
            and is_token_exchange_open(sample.head(ACCEPTOR))
        ):
            return
        detection = select_protocol(session, self._options, sample)
        if detection.protocol is None and not final:
            return
        self.detection = detection
        if detection.protocol is not None:
            self._start_decoding(detection, detection.protocol)
        self._pending = []
        self.pending_bytes = 0

    def awaits_secrets(self) -> bool:
        """Whether the session is held because it begins like TLS and its secrets are not known."""
        return self._opening.waiting and self._opening.held_bytes > 0

    def is_searching(self) -> bool:
        """Whether the start of a frame is searched for, and bytes may be held."""
        return self._observer is not None and self._observer.connection.searching

    def decide_boundaries(self) -> None:
        """Nothing arrived for a while: hold no bytes back for the start of a frame any longer."""
        if self.tracker is not None:
            self.tracker.release_held()
        elif self._observer is not None:
            self._observer.decide_boundaries()

    @property
    def observer(self) -> Observer | None:
        """Decodes the session; None until the protocol is decided."""
        return self._observer

    def limit_streams(self) -> None:
        """Stop decoding if more than MAX_OPEN_STREAMS streams are open at once."""
        observer = self._observer
        if observer is not None and open_stream_count(observer) > MAX_OPEN_STREAMS:
            self._stop_decoding(observer)

    def take_rows(self) -> list[Row]:
        """The frames completed since the last call, as rows of the `frames` table."""
        observer = self._observer
        if observer is None:
            return []
        observer.take_removed_streams()
        observer.take_violations()
        self.limit_streams()
        rows = self._opening.with_wire_offsets(take_frame_rows(observer), observer)
        return [{"session_id": self.session_id, **row} for row in rows]

    def close(self) -> None:
        """The session ended: decide the protocol and decode the rest."""
        self.receive()
        self.decide_protocol(final=True)
        if self._observer is not None:
            for batch in self._opening.finish(self.session.ended_at):
                self._feed(self._observer, batch)
            if self.tracker is not None:
                self._update_tcp_facts()
                self.tracker.close(self.session.ended_at)
                return
            ends = self.session.ends
            self._observer.finish(self.session.ended_at, ends[0] is not None, ends[1] is not None)

    def _stop_decoding(self, observer: Observer) -> None:
        """Stop decoding both directions: too many streams are open at once."""
        observer.decide_boundaries()
        connection = observer.connection
        reason = f"more than {MAX_OPEN_STREAMS} streams are open at once"
        for d in (connection.dialer, connection.acceptor):
            if not d.decoding_stopped:
                connection.stop_decoding(d, 0, d.offset, self.session.ended_at, reason)
                self.stop_reason = f"{reason}: decoding stopped"
        observer.end_search()

    def _has_both_sides(self, pieces: list[SamplePiece]) -> bool:
        return len({side for side, _, _ in pieces}) == 2

    def _start_decoding(self, detection: Detection, protocol: str) -> None:
        session = self.session
        vantage = Vantage[(session.vantage_hint or "middle").upper()]
        made = create(
            protocol, Limits(closed_streams_remembered=CLOSED_STREAMS_REMEMBERED), vantage
        )
        if self._tracks:
            tracker = SessionTracker(None)
            observer = Observer(made, True, tracker)
            session.update_tcp_facts()
            timeline = Timeline(session.started_at // 1000, NO_TIMELINE_US)
            tracker.attach(observer, timeline, make_stall_detector(session, tracker, made))
            self.tracker = tracker
        else:
            observer = Observer(made)
        if detection.mismatch:
            observer.mark_uncertain()
        if begins_in_middle(session, detection) and not self._opening.is_tls:
            observer.begin_in_middle()
        self._skipped_prefix = SkippedPrefix(detection.skip_bytes[0], detection.skip_bytes[1])
        if self.tracker is not None:
            self.tracker.skip_prefix(*detection.skip_bytes)
            if self._opening.offsets is not None:
                self.tracker.use_wire_offsets(*self._opening.offsets)
        for batch in self._pending:
            self._feed(observer, batch)
        self._observer = observer

    def _update_tcp_facts(self) -> None:
        """Tell the stall detector what TCP has shown since the last call."""
        if self.tracker is None:
            return
        session = self.session
        session.update_tcp_facts()
        closed, repaired = session.zero_windows, session.retransmissions
        facts = session.rtt_ns, *map(len, (*closed, *repaired)), closed[0][-1:], closed[1][-1:]
        if facts != self._tcp_facts:
            self._tcp_facts = facts
            rtt = session.rtt_ns if session.rtt_ns is not None else -1
            self.tracker.stalls.set_tcp_facts(rtt, *closed, *repaired)

    def _feed(self, observer: Observer, batch: StreamBatch) -> None:
        if self.tracker is not None:
            self.tracker.feed(batch.events, batch.data)
            return
        start = 0
        connection = observer.connection
        for n in range(batch.count):
            side, kind, at, size = (
                int(column[n]) for column in (batch.side, batch.kind, batch.timestamp, batch.size)
            )
            if kind == PAYLOAD:
                stop = start + size
                if self._skipped_prefix.remaining > 0:
                    start += int(self._skipped_prefix.consume(connection.direction(side), size))
                if stop > start:
                    observer.feed(side, batch.data[start:stop], at)
                start = stop
            elif kind == GAP:
                if size:
                    observer.gap(side, size, at)
                else:
                    observer.mark_uncertain()
            elif kind == UNDECODABLE:
                observer.decide_boundaries()
                observer.mark_uncertain()
                d = connection.direction(side)
                if not d.decoding_stopped:
                    reason = "its TLS records are not opened any further"
                    connection.stop_decoding(d, 0, d.offset, at, reason)


class LiveAnalyzer:
    """Analyzes all sessions of a live capture.

    Args:
        options: the protocol.
        emit: called as `emit("frames", batch)` when frames complete.
        id_prefix: analyze only sessions whose id begins with this.
        on_warning: called with session id and note, before the frames, for a session whose bytes
            contradict the named protocol, and for one whose decoding stopped.
    """

    def __init__(
        self,
        options: AnalysisOptions,
        emit: Emit,
        id_prefix: str = "",
        on_warning: OnWarning = lambda session, note: None,
    ) -> None:
        self.session_count = 0
        self.matched_count = 0
        """Sessions whose id begins with `id_prefix`."""
        self._options = options
        self._keys = (options.keys or KeyLog()).copy()
        self._emit = emit
        self._id_prefix = id_prefix
        self._on_warning = on_warning
        self._analyzers: dict[LiveSession, LiveSessionAnalyzer | None] = {}
        self.tracks = False
        """Whether the streams of sessions are measured (`LiveSessionAnalyzer.tracker`)."""
        self.awaits_late_secrets = True
        """Whether sessions that ended are held while secrets may still come that open them."""
        self._undecided: dict[LiveSessionAnalyzer, int] = {}  # with the bytes that each holds
        self._pending_bytes = 0  # held by all undecided sessions
        self._ended: dict[LiveSessionAnalyzer, None] = {}  # of the undecided; wait for secrets

    def add_secrets(self, blocks: list[bytes]) -> None:
        """Add the secrets blocks of the capture, for sessions that are not opened yet."""
        for text in blocks:
            self._keys.add_text(text)
        for analyzer in list(self._ended) if blocks else ():
            analyzer.receive()
            if not analyzer.awaits_secrets():
                self._close(analyzer)

    def finish(self) -> None:
        """The capture has ended: no secrets come any more."""
        for analyzer in list(self._ended):
            self._close(analyzer)

    def receive(self, session: LiveSession | None) -> None:
        """Process an item of `LiveCapture`: a session that received data, or None when idle."""
        if session is None:
            for analyzer in list(self._undecided):
                analyzer.decide_protocol(idle=True)
                self._emit_rows(analyzer)
            for selected in self._analyzers.values():
                if selected is not None and selected.is_searching():
                    selected.decide_boundaries()
                    self._emit_rows(selected)
            return
        if session not in self._analyzers:
            self.session_count += 1
            analyzer = LiveSessionAnalyzer(session, self._options, self._keys, self.tracks)
            matches = analyzer.session_id.startswith(self._id_prefix)
            self.matched_count += matches
            self._analyzers[session] = analyzer if matches else None
        chosen = self._analyzers[session]
        if chosen is not None:
            chosen.receive()
            if not session.over:
                self._emit_rows(chosen)
            elif self.awaits_late_secrets and chosen.awaits_secrets():
                self._ended[chosen] = None
                self._update_held(chosen)
            else:
                self._close(chosen)
        else:
            session.take_batches()
        if session.over:
            del self._analyzers[session]
        while self._pending_bytes > MAX_UNDECIDED_BYTES:
            largest = max(self._undecided, key=lambda analyzer: analyzer.pending_bytes)
            if largest in self._ended:
                self._close(largest)
            else:
                largest.decide_protocol(final=True)
                self._emit_rows(largest)
        if len(self._ended) > MAX_ENDED_SESSIONS:
            self._close(next(iter(self._ended)))

    def _close(self, analyzer: LiveSessionAnalyzer) -> None:
        """A session has ended, and waits for nothing more."""
        self._ended.pop(analyzer, None)
        analyzer.close()
        self._emit_rows(analyzer)

    def _update_held(self, analyzer: LiveSessionAnalyzer) -> None:
        """Update the count of the bytes that undecided sessions hold."""
        self._pending_bytes -= self._undecided.pop(analyzer, 0)
        if analyzer.detection is None:
            self._undecided[analyzer] = analyzer.pending_bytes
            self._pending_bytes += analyzer.pending_bytes

    def _emit_rows(self, analyzer: LiveSessionAnalyzer) -> None:
        """Emit the completed frames of a session and update the count of held bytes."""
        detection = analyzer.detection
        self._update_held(analyzer)
        if detection is not None and detection.mismatch and not analyzer.mismatch_reported:
            analyzer.mismatch_reported = True
            self._on_warning(analyzer.session_id, detection.mismatch)
        self.emit_session_rows(analyzer)
        if analyzer.stop_reason:
            self._on_warning(analyzer.session_id, analyzer.stop_reason)
            analyzer.stop_reason = ""

    def emit_session_rows(self, analyzer: LiveSessionAnalyzer) -> None:
        """Emit the rows of a session that are complete."""
        rows = analyzer.take_rows()
        if rows:
            columns = {name: [row[name] for row in rows] for name in rows[0]}
            self._emit("frames", make_batch("frames", columns))
