# mypyc: compiled
"""A watcher of a conversation: bytes of both sides in, rows, streams and violations out."""

from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.events import EventSink
from polymux.core.frames import FrameRowBatches
from polymux.core.protocol import Protocol
from polymux.core.rules import Certainty, Violation, byte_count_text
from polymux.core.side import DIALER
from polymux.core.streams import StreamState, load_stream
from polymux.core.varint import AWAITING_HANDSHAKE
from polymux.core.websocket.layer import LENGTH_PREFIX, MessageProtocol, WebSocketLayer


class Observer:
    """Notes what breaks a rule and goes on, as long as the start of the next frame is known."""

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

    def __repr__(self) -> str:
        sight = self.protocol.causality
        seen = sight.frames_sent(0) + sight.frames_sent(1)
        return f"<polymux observer of {self.protocol.name}, {seen} frames seen>"

    def feed(self, sender: i64, data: bytes, timestamp: i64) -> None:
        """The next bytes of one side; `at` in nanoseconds."""
        if self.websocket is None:
            self.connection.receive(sender, data, timestamp)
        else:
            self.websocket.receive(sender, data, timestamp)

    def gap(self, sender: i64, size: i64, timestamp: i64) -> None:
        """Bytes that were not captured."""
        if self.websocket is None:
            self.connection.gap(sender, size, timestamp)
        else:
            self.websocket.gap(sender, size, timestamp)

    def mark_uncertain(self) -> None:
        """What was not seen (a start, an order) could excuse what is found from now on."""
        self.connection.uncertain = True

    def finish(self, timestamp: i64, ended0: bool, ended1: bool) -> None:
        """No more will come. `ended`: that side was seen to close its direction."""
        c = self.connection
        p = self.protocol
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
            began = d.frame_offset if d.in_payload else d.offset
            stream = d.stream if d.in_payload else None
            ordinal = d.frame_index if d.in_payload else p.causality.frames_sent(side)
            d.in_payload = False
            d.pending = b""
            if p.truncated_rule:
                detail = f"{byte_count_text(left)} of an unfinished frame"
                c.record_violations(
                    side, stream, p.truncated_rule, [detail], ordinal, began, timestamp
                )
        ended = ended0 and ended1
        certainty = Certainty.CERTAIN if ended and not c.uncertain else Certainty.POSSIBLE
        for duty in p.finish(ended):
            if c.direction(duty.side).has_unseen_frames():
                continue  # it may have been paid where nothing was read
            stream = p.streams.find(duty.key)
            c.report_missing_reply(
                duty,
                stream.label() if stream is not None else "",
                certainty,
                c.direction(duty.side).offset,
                timestamp,
            )
        for stream in p.streams.all():
            for half in (stream.dialer, stream.acceptor):
                half.mark_unblocked(timestamp)

    def take_violations(self) -> list[Violation]:
        """Violations found since the last call."""
        found = self.connection.violations
        self.connection.violations = []
        return found

    def take_removed_streams(self) -> list[StreamState]:
        """Streams that left the table for good since the last call, and have no frame under way."""
        streams = self.protocol.streams
        gone: list[StreamState] = []
        held: list[StreamState] = []
        for stream in streams.removed:
            (held if self.protocol.may_receive_late_frames(stream) else gone).append(stream)
        streams.removed = held
        for d in (self.connection.dialer, self.connection.acceptor):
            passing = d.stream
            if d.in_payload and passing is not None and passing in gone:  # it still counts there
                gone.remove(passing)
                held.append(passing)
        return gone

    def accounts_for_all_bytes(self) -> bool:
        """Is every byte accounted for?"""
        c = self.connection
        return c.dialer.accounts_for_all_bytes() and c.acceptor.accounts_for_all_bytes()

    def snapshot(self) -> dict[str, object]:
        """Everything needed to go on elsewhere, as plain data. Rows and findings must be taken."""
        c = self.connection
        return {
            "protocol": self.protocol.save(),
            "gone": [stream.save() for stream in self.protocol.streams.removed],
            "dialer": c.dialer.save(),
            "acceptor": c.acceptor.save(),
            "verdicts": c.violation_mask,
            "doubt": c.uncertain,
            "filled": int(c.zero_filled_bytes),
            "serials": c.next_serial,
            "carrier": self.websocket.save() if self.websocket is not None else None,
        }

    def restore(self, saved: dict[str, object]) -> None:
        """Go on from a snapshot; the observer must be fresh and of the same protocol."""
        c = self.connection
        state, verdicts, serials = saved["protocol"], saved["verdicts"], saved["serials"]
        gone, filled = saved["gone"], saved["filled"]
        assert isinstance(filled, int)
        assert isinstance(state, dict)
        assert isinstance(gone, list)
        assert isinstance(verdicts, int)
        assert isinstance(serials, int)
        self.protocol.load(state)
        c.violation_mask = verdicts
        c.next_serial = serials
        c.uncertain = bool(saved["doubt"])
        c.zero_filled_bytes = filled
        carried = saved["carrier"]
        if self.websocket is not None and isinstance(carried, list):
            self.websocket.load(carried)
        table = self.protocol.streams
        table.removed = [load_stream(entry) for entry in gone]
        self.protocol.relink(table.removed)
        streams = {stream.serial: stream for stream in [*table.all(), *table.removed]}
        for side, name in ((DIALER, "dialer"), (1 - DIALER, "acceptor")):
            kept = saved[name]
            assert isinstance(kept, dict)
            serial = kept["stream"]
            assert isinstance(serial, int)
            c.direction(side).load(kept, streams.get(serial))
        c.credit_unknown = c.dialer.has_unseen_frames() or c.acceptor.has_unseen_frames()
