# mypyc: compiled
"""A passive observer of a connection: bytes of both sides in; rows, streams, violations out."""

from mypy_extensions import i64

from polymux.core.boundary_search import (
    BOUNDARY,
    GAP,
    RECEIVED,
    SKIPPED,
    BoundarySearch,
    FrameScanner,
    HeaderScanner,
    HeldChunk,
)
from polymux.core.connection import Connection
from polymux.core.events import EventSink
from polymux.core.frames import FrameRowBatches
from polymux.core.protocol import Protocol
from polymux.core.rules import Certainty, Violation, byte_count_text
from polymux.core.side import DIALER
from polymux.core.streams import StreamState, load_stream
from polymux.core.varint import AWAITING_HANDSHAKE
from polymux.core.websocket.layer import (
    AUTODETECT,
    LENGTH_PREFIX,
    MessageProtocol,
    WebSocketLayer,
)
from polymux.core.websocket.scanner import WebSocketScanner


class Observer:
    """Decodes both directions of a connection. Records violations and continues after them.

    Decoding of a direction stops only where the start of its next frame is not known. If bytes are
    missing there, or the capture began later than the connection (`begin_in_middle`), the next
    frame is searched for, and what came before it is not judged (`boundary_search`).

    Args:
        protocol: a new protocol instance; it belongs to this observer.
        rows: collect rows of the frames table in `rows`.
        sink: is notified of content and other events; None: no notifications.
    """

    def __init__(
        self, protocol: Protocol, rows: bool = True, sink: EventSink | None = None
    ) -> None:
        self.protocol = protocol
        self.rows: FrameRowBatches | None = FrameRowBatches() if rows else None
        self.connection: Connection = Connection(protocol, sink, self.rows)
        protocol.streams.keep_removed = True
        self.websocket: WebSocketLayer | None = None
        if isinstance(protocol, MessageProtocol) and protocol.carrier != LENGTH_PREFIX:
            self.websocket = WebSocketLayer(self.connection, protocol, True)
        self._boundaries: BoundarySearch | None = None  # until frames were not seen

    @property
    def boundaries(self) -> BoundarySearch:
        """The search for the start of a frame, where frames were not seen."""
        if self._boundaries is None:
            self._boundaries = self._new_search()
        return self._boundaries

    @property
    def has_searched(self) -> bool:
        """Whether the start of a frame was ever searched for."""
        return self._boundaries is not None

    def _new_search(self) -> BoundarySearch:
        scanners: list[HeaderScanner] = []
        if self.websocket is not None:
            scanners.append(WebSocketScanner(self.websocket.protocol))
        if self.websocket is None or self.websocket.protocol.carrier == AUTODETECT:
            scanners.append(FrameScanner(self.protocol))
        c = self.connection
        return BoundarySearch(self.protocol, c.dialer, c.acceptor, scanners)

    def __repr__(self) -> str:
        causality = self.protocol.causality
        seen = causality.frames_sent(0) + causality.frames_sent(1)
        return f"<polymux observer of {self.protocol.name}, {seen} frames seen>"

    def feed(self, sender: i64, data: bytes, timestamp: i64) -> None:
        """Decode the next bytes of one side; `timestamp` in nanoseconds."""
        if self.connection.searching:
            self.boundaries.push(HeldChunk(RECEIVED, sender, data, 0, timestamp))
            self.process_ready()
        else:
            self.decode_bytes(sender, data, timestamp)

    def gap(self, sender: i64, size: i64, timestamp: i64) -> None:
        """The next `size` bytes of one side were not captured."""
        if self.connection.searching:
            self.boundaries.push(HeldChunk(GAP, sender, b"", size, timestamp))
            self.process_ready()
        else:
            self.decode_gap(sender, size, timestamp)

    def decode_bytes(self, sender: i64, data: bytes, timestamp: i64) -> None:
        """Like `feed`, for bytes that are not, or no longer, held."""
        if self.websocket is None:
            self.connection.receive(sender, data, timestamp)
        else:
            self.websocket.receive(sender, data, timestamp)

    def decode_gap(self, sender: i64, size: i64, timestamp: i64) -> None:
        """Like `gap`, for bytes that are not, or no longer, held."""
        if self.websocket is None:
            self.connection.gap(sender, size, timestamp)
        else:
            self.websocket.gap(sender, size, timestamp)

    # Searching for the start of a frame

    def begin_in_middle(self) -> None:
        """The capture began later than the connection. Call it before anything is fed.

        Violations are reported as possible; streams that were opened before are listed as far as
        frames of them are seen, without `opened_at`.
        """
        self.connection.begin_in_middle()
        if self.connection.searching:
            self.boundaries.begin_in_middle()

    def process_ready(self) -> None:
        """Process what is no longer held."""
        chunk = self.boundaries.next_ready()
        while chunk is not None:
            self.process(chunk)
            chunk = self.boundaries.next_ready()

    def process(self, chunk: HeldChunk) -> None:
        """Process a chunk that `boundaries.next_ready` has returned.

        A caller that has to know when bytes are decoded may push chunks to `boundaries` itself
        while `connection.searching`, instead of calling `feed` and `gap`.
        """
        side = chunk.side
        if chunk.kind == RECEIVED:
            self.decode_bytes(side, chunk.data, chunk.timestamp)
        elif chunk.kind == GAP:
            self.decode_gap(side, chunk.size, chunk.timestamp)
        elif chunk.kind == SKIPPED:
            self.connection.skip_undecodable(side, len(chunk.data))
            if self.websocket is not None:
                self.websocket.skip(side, len(chunk.data))
        elif chunk.kind == BOUNDARY and self.connection.direction(side).searching:
            self.connection.resume_decoding(side)
            if self.websocket is not None:
                encapsulated = self.boundaries.chosen == 0
                self.websocket.resume(side, encapsulated, self.boundaries.from_beginning)

    def decide_boundaries(self) -> None:
        """Wait no longer: decide where frames begin by the bytes that are there."""
        if self._boundaries is not None:
            self._boundaries.decide_now()
            self.process_ready()

    def end_search(self) -> None:
        """Search no longer for the start of a frame: what is not decoded by now stays undecoded."""
        for d in (self.connection.dialer, self.connection.acceptor):
            d.searching = False
        self.connection.searching = False

    def mark_uncertain(self) -> None:
        """Report violations as possible from now on: what was not seen could excuse them."""
        self.connection.uncertain = True

    def finish(self, timestamp: i64, ended0: bool, ended1: bool) -> None:
        """The capture of the connection is over: report incomplete frames and missing replies.

        Args:
            timestamp: in nanoseconds.
            ended0: the dialer was seen to close its direction.
            ended1: the acceptor was seen to close its direction.
        """
        c = self.connection
        p = self.protocol
        self.decide_boundaries()
        if self.websocket is not None:
            self.websocket.finish(timestamp)
        for side in (0, 1):
            d = c.direction(side)
            d.join_buffered()
            if d.decoding_stopped or not (d.in_payload or len(d.pending) > 0):
                continue
            if (
                not d.in_payload
                and p.decode_header(side, d.pending, 0, len(d.pending), c.head)
                == AWAITING_HANDSHAKE
            ):
                c.stop_decoding(
                    d, 0, d.offset, timestamp, "the other direction's handshake never arrived"
                )
                continue
            left = len(d.pending) + (d.frame_bytes_seen if d.in_payload else 0)
            d.undecoded_bytes += left
            offset = d.frame_offset if d.in_payload else d.offset
            stream = d.stream if d.in_payload else None
            frame_index = d.frame_index if d.in_payload else p.causality.frames_sent(side)
            d.in_payload = False
            d.pending = b""
            if p.truncated_rule and not c.may_search(d):
                detail = f"{byte_count_text(left)} of an unfinished frame"
                c.record_violations(
                    side, stream, p.truncated_rule, [detail], frame_index, offset, timestamp
                )
        ended = ended0 and ended1
        certainty = Certainty.CERTAIN if ended and not c.uncertain else Certainty.POSSIBLE
        for reply in p.finish(ended):
            d = c.direction(reply.side)
            if d.has_unseen_frames():
                continue  # the reply may be among the frames that were not seen
            stream = p.streams.find(reply.key)
            label = stream.label() if stream is not None else ""
            c.report_missing_reply(reply, label, certainty, d.offset, timestamp)
        for stream in p.streams.all():
            for half in (stream.dialer, stream.acceptor):
                half.mark_unblocked(timestamp)

    def take_violations(self) -> list[Violation]:
        """Remove and return the violations recorded since the last call."""
        violations = self.connection.violations
        self.connection.violations = []
        return violations

    def is_finished(self, stream: StreamState) -> bool:
        """Whether a stream that left the table can receive no further frame."""
        c = self.connection
        for d in (c.dialer, c.acceptor):
            if d.in_payload and d.stream is stream:  # its frame is incomplete
                return False
        return not self.protocol.may_receive_late_frames(stream)

    def finished_streams(self) -> list[StreamState]:
        """The streams that `take_removed_streams` would return."""
        return [stream for stream in self.protocol.streams.removed if self.is_finished(stream)]

    def take_removed_streams(self) -> list[StreamState]:
        """Remove and return the streams that left the table and can receive no further frame."""
        streams = self.protocol.streams
        done: list[StreamState] = []
        kept: list[StreamState] = []
        for stream in streams.removed:
            (done if self.is_finished(stream) else kept).append(stream)
        streams.removed = kept
        return done

    def accounts_for_all_bytes(self) -> bool:
        """Whether every byte of both directions is accounted for."""
        c = self.connection
        return c.dialer.accounts_for_all_bytes() and c.acceptor.accounts_for_all_bytes()

    def snapshot(self) -> dict[str, object]:
        """The state as plain data, for `restore`. Rows and violations are not part of it."""
        c = self.connection
        return {
            "protocol": self.protocol.save(),
            "removed": [stream.save() for stream in self.protocol.streams.removed],
            "dialer": c.dialer.save(),
            "acceptor": c.acceptor.save(),
            "violation_mask": c.violation_mask,
            "uncertain": c.uncertain,
            "zero_filled_bytes": int(c.zero_filled_bytes),
            "next_serial": c.next_serial,
            "websocket": self.websocket.save() if self.websocket is not None else None,
            "losses": int(c.losses),
            "adopted_streams": int(c.adopted_streams),
            "boundaries": self._boundaries.save() if self._boundaries is not None else None,
        }

    def restore(self, saved: dict[str, object]) -> None:
        """Continue from a snapshot. The observer must be new and of the same protocol.

        The assertions narrow `object` for mypy: a snapshot is plain data of mixed types.
        """
        c = self.connection
        protocol, removed, websocket = saved["protocol"], saved["removed"], saved["websocket"]
        mask, serial, zeros = (
            saved["violation_mask"],
            saved["next_serial"],
            saved["zero_filled_bytes"],
        )
        assert isinstance(protocol, dict)
        assert isinstance(removed, list)
        assert isinstance(mask, int)
        assert isinstance(serial, int)
        assert isinstance(zeros, int)
        self.protocol.load(protocol)
        c.violation_mask = mask
        c.next_serial = serial
        c.uncertain = bool(saved["uncertain"])
        c.zero_filled_bytes = zeros
        if self.websocket is not None and isinstance(websocket, list):
            self.websocket.load(websocket)
        table = self.protocol.streams
        table.removed = [load_stream(entry) for entry in removed]
        self.protocol.relink(table.removed)
        streams = {stream.serial: stream for stream in [*table.all(), *table.removed]}
        for side, name in ((DIALER, "dialer"), (1 - DIALER, "acceptor")):
            direction = saved[name]
            assert isinstance(direction, dict)
            current = direction["stream"]
            assert isinstance(current, int)
            c.direction(side).load(direction, streams.get(current))
        c.credit_unknown = c.dialer.has_unseen_frames() or c.acceptor.has_unseen_frames()
        c.searching = c.dialer.searching or c.acceptor.searching
        losses, boundaries = saved["losses"], saved["boundaries"]
        adopted = saved["adopted_streams"]
        assert isinstance(losses, int)
        assert isinstance(adopted, int)
        c.adopted_streams = adopted
        c.losses = losses
        if isinstance(boundaries, list):
            self.boundaries.load(boundaries)
            self.process_ready()
