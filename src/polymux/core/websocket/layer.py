# mypyc: compiled
"""The WebSocket layer between the bytes of a connection and a protocol of complete messages.

A `MessageProtocol` names its encapsulation. `WebSocketLayer` owns the WebSocket decoders of one
connection: it takes the bytes of both directions and passes complete messages to
`Connection.receive_message`, with their offsets and sizes on the wire. Bytes that are not part of
a message are counted: total = framed + missing + undecoded + overhead, in each direction.

A capture may begin with an HTTP upgrade, in the middle of a WebSocket connection, or without any
WebSocket. Until that is decided (states UNDECIDED and UPGRADING) the bytes are held.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.connection import Connection
from polymux.core.direction import Direction
from polymux.core.frames import FrameKind
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import Certainty, Rule, Violation
from polymux.core.side import DIALER, Side
from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import Close, DecodingLost, FrameViolation, Message, Ping
from polymux.core.websocket.handshake import (
    MAX_HEAD_BYTES,
    NEED_MORE,
    NOT_UPGRADE,
    UpgradeDetection,
    detect_upgrade,
    http_head_size,
)
from polymux.core.websocket.rules import TRUNCATED

WEBSOCKET: Final = "websocket"
LENGTH_PREFIX: Final = "length"
AUTODETECT: Final = ""  # decided by the first bytes

# States of a layer.
UNDECIDED: Final[i64] = 0  # more bytes are needed to decide
UPGRADING: Final[i64] = 1  # the HTTP heads are arriving
FRAMES: Final[i64] = 2  # WebSocket frames
WITHOUT_WEBSOCKET: Final[i64] = 3  # no encapsulation: the bytes are the protocol's own
UNDECODABLE: Final[i64] = 4  # nothing of this connection can be decoded

HTTP_FIRST_BYTES: Final = (b"GET ", b"HTTP")  # of an upgrade, by side; no frame begins like this
HTTP_PREFIXES: Final = (b"GET ", b"HTTP/1.")  # what a head must then begin with
# Frames begin with one of these; as the first byte of a length it would be far over the limit.
FRAME_FIRST_BYTES: Final = (0x82, 0x88, 0x89, 0x8A)
MIN_MESSAGE_HEADER_BYTES: Final = 3  # without these a message cannot be decoded


class MessageProtocol(Protocol):
    """A protocol whose frames are complete messages of an encapsulation.

    While `encapsulated`, `decode_header` is given exactly one message; otherwise the protocol's own
    length prefix delimits the frames. `carrier` is WEBSOCKET, LENGTH_PREFIX or AUTODETECT.
    """

    def __init__(
        self,
        name: str,
        rules: tuple[Rule, ...],
        kinds: dict[int, FrameKind],
        limits: Limits,
        vantage: i64,
        carrier: str,
    ) -> None:
        super().__init__(name, rules, kinds, limits, vantage)
        self.carrier = carrier
        self.encapsulated: bool = carrier == WEBSOCKET


class DirectionDecoder:
    """The WebSocket decoder of one direction, and how much of its counts was accounted for."""

    def __init__(self, side: i64, max_message_bytes: i64, lenient: bool) -> None:
        self.decoder = Decoder(side, max_message_bytes, lenient)
        self.counted_control_bytes = 0
        self.counted_skipped_bytes = 0
        self.counted_missing_bytes = 0

    def account(self, d: Direction) -> None:
        """Add what the decoder has counted since the last call to the direction."""
        decoder = self.decoder
        control = decoder.control_bytes - self.counted_control_bytes
        skipped = decoder.skipped_bytes - self.counted_skipped_bytes
        missing = decoder.missing_bytes - self.counted_missing_bytes
        d.overhead_bytes += control
        d.undecoded_bytes += skipped
        d.missing_bytes += missing
        d.total_bytes += control + skipped + missing
        self.counted_control_bytes = decoder.control_bytes
        self.counted_skipped_bytes = decoder.skipped_bytes
        self.counted_missing_bytes = decoder.missing_bytes
        if decoder.offset > d.offset:
            d.offset = decoder.offset


class WebSocketLayer:
    """The WebSocket layer of a connection, including the HTTP upgrade if the bytes begin with one.

    A byte is counted in `Direction.total_bytes` once it is known what it was part of.

    Args:
        connection: receives the messages.
        protocol: the connection's protocol.
        lenient: continue after violations of the framing (captures) instead of stopping (live).
    """

    def __init__(self, connection: Connection, protocol: MessageProtocol, lenient: bool) -> None:
        self.connection = connection
        self.protocol: MessageProtocol = protocol
        self.state: i64 = UNDECIDED
        limit = protocol.max_frame_bytes + 2  # type and id
        self.dialer: DirectionDecoder = DirectionDecoder(0, limit, lenient)
        self.acceptor: DirectionDecoder = DirectionDecoder(1, limit, lenient)
        # Until it is decided: chunks as (side, bytes, timestamp), and each side's first bytes.
        self.undecided_chunks: list[tuple[int, bytes, int]] = []
        self.undecided_bytes: i64 = 0  # in `undecided_chunks`
        self.first_bytes: list[bytes] = [b"", b""]
        self.head_complete: list[bool] = [False, False]  # more bytes do not change the outcome
        self.path = ""  # the target of the upgrade request

    def direction_decoder(self, side: i64) -> DirectionDecoder:
        """The decoder of the direction in which `side` sends."""
        return self.dialer if side == DIALER else self.acceptor

    def receive(self, side: i64, data: bytes, timestamp: i64) -> None:
        """Process the next bytes of one direction; `timestamp` in nanoseconds."""
        if self.state == FRAMES:
            self.decode(side, data, timestamp)
        elif self.state == WITHOUT_WEBSOCKET:
            self.connection.receive(side, data, timestamp)
        elif self.state == UNDECODABLE:
            self.count_undecodable(side, len(data))
        elif len(data) > 0:
            self.undecided_chunks.append((int(side), data, int(timestamp)))
            self.undecided_bytes += len(data)
            if len(self.first_bytes[side]) < MAX_HEAD_BYTES:
                self.first_bytes[side] += data[: MAX_HEAD_BYTES - len(self.first_bytes[side])]
            self.detect_start(timestamp)

    def decode(self, side: i64, data: bytes, timestamp: i64) -> None:
        """Decode WebSocket frames and handle what they bring."""
        decoder = self.direction_decoder(side)
        decoder.decoder.feed(data)
        self.dispatch(decoder, side, timestamp)

    def dispatch(self, decoder: DirectionDecoder, side: i64, timestamp: i64) -> None:
        """Handle the decoder's events, and account for bytes that are not part of messages."""
        c = self.connection
        d = c.direction(side)
        for item in decoder.decoder.take():
            if isinstance(item, Message):
                if item.holes and item.holes[0][0] < MIN_MESSAGE_HEADER_BYTES:
                    missing = sum([size for _, size in item.holes])
                    d.total_bytes += item.wire_bytes
                    d.missing_bytes += missing
                    d.undecoded_bytes += item.wire_bytes - missing
                    d.frame_started = False
                    d.frames_missing = True
                    c.losses += 1
                    c.stop_credit_tracking(timestamp)
                else:
                    c.receive_message(side, item.data, timestamp, item.offset, item.wire_bytes)
            elif isinstance(item, Ping):
                self.on_ping(item)
            elif isinstance(item, Close):
                self.on_close(item)
            elif isinstance(item, FrameViolation):
                self.handle_violation(side, item, timestamp)
            elif isinstance(item, DecodingLost):
                c.search_boundary(d, item.offset, timestamp, item.detail)
        decoder.account(d)
        if decoder.decoder.message_start_offset() < 0:
            d.frame_started = False
        elif not d.frame_started:  # a message has begun: record what its sender had read by now
            c.protocol.causality.snapshot_seen(side)
            d.frame_started = True

    def handle_violation(self, side: i64, violation: FrameViolation, timestamp: i64) -> None:
        """Record a violation of the framing; stop decoding unless lenient."""
        c = self.connection
        frame_index = c.protocol.causality.frames_sent(side)
        if violation.rule is TRUNCATED:
            c.record_violations(
                side,
                None,
                c.protocol.truncated_rule,
                [violation.detail],
                frame_index,
                violation.offset,
                timestamp,
            )
            return
        certainty = Certainty.POSSIBLE if c.uncertain else Certainty.CERTAIN
        c.violations.append(
            Violation(
                violation.rule,
                Side(side),
                frame_index,
                violation.offset,
                timestamp,
                "",
                certainty,
                violation.detail,
            )
        )
        if not self.direction_decoder(side).decoder.lenient:
            c.stop_decoding(
                c.direction(side),
                0,
                violation.offset,
                timestamp,
                "the peer broke the WebSocket protocol",
            )
            self.on_violation(violation)

    def on_ping(self, ping: Ping) -> None:
        """A ping was received. An observer does not answer it."""

    def on_close(self, close: Close) -> None:
        """A close frame was received."""

    def on_violation(self, violation: FrameViolation) -> None:
        """The peer broke a rule of the framing, and decoding has stopped."""

    # Detecting how the connection begins

    def detect_start(self, timestamp: i64) -> None:
        """Decide between an upgrade, frames and plain bytes, if there is enough to decide."""
        if self.state == UNDECIDED:
            for side in (0, 1):
                begin = self.first_bytes[side][:4]
                if begin != HTTP_FIRST_BYTES[side][: len(begin)]:
                    self.start_without_upgrade()
                    return
            if len(self.first_bytes[0]) < 4 and len(self.first_bytes[1]) < 4:
                return
            self.state = UPGRADING
        found = (
            detect_upgrade(self.first_bytes[0], self.first_bytes[1])
            if self.has_new_evidence()
            else UpgradeDetection(NEED_MORE)
        )
        if found.outcome == NEED_MORE:
            if self.undecided_bytes > 4 * MAX_HEAD_BYTES:
                self.fail_upgrade(timestamp, "the WebSocket upgrade was never answered")
        elif found.outcome == NOT_UPGRADE:
            self.fail_upgrade(timestamp, found.reason)
        else:
            self.path = found.path
            self.protocol.encapsulated = True
            for side, size in ((0, found.request_size), (1, found.response_size)):
                d = self.connection.direction(side)
                d.total_bytes += size
                d.overhead_bytes += size
                d.offset += size
            if found.undecodable_reason:
                self.enter_state(UNDECODABLE, found.request_size, found.response_size)
                self.stop_both_directions(timestamp, found.undecodable_reason)
            else:
                self.enter_state(FRAMES, found.request_size, found.response_size)

    def has_new_evidence(self) -> bool:
        """Whether a head has become complete, too long or wrong since the last call.

        Only then the heads are parsed again: not for every chunk of the other direction.
        """
        new_evidence = False
        for side in (0, 1):
            if self.head_complete[side]:
                continue
            head, start = self.first_bytes[side], HTTP_PREFIXES[side]
            wrong = head[: len(start)] != start[: len(head)]
            if wrong or len(head) >= MAX_HEAD_BYTES or http_head_size(head, MAX_HEAD_BYTES) >= 0:
                self.head_complete[side] = True
                new_evidence = True
        return new_evidence

    def start_without_upgrade(self) -> None:
        """The bytes do not begin with an upgrade: they are frames, or plain bytes."""
        if self.protocol.carrier == AUTODETECT:
            for begin in self.first_bytes:
                if len(begin) > 0 and begin[0] in FRAME_FIRST_BYTES:
                    self.protocol.encapsulated = True
        self.enter_state(FRAMES if self.protocol.encapsulated else WITHOUT_WEBSOCKET, 0, 0)

    def enter_state(self, state: i64, size0: int, size1: int) -> None:
        """It is decided: process the held chunks in order, without the HTTP heads.

        Args:
            state: FRAMES, WITHOUT_WEBSOCKET or UNDECODABLE.
            size0: bytes of the request head.
            size1: bytes of the response head.
        """
        self.state = state
        self.dialer.decoder.offset = self.connection.dialer.offset
        self.acceptor.decoder.offset = self.connection.acceptor.offset
        skip = [size0, size1]
        held = self.undecided_chunks
        self.undecided_chunks = []
        self.undecided_bytes = 0
        self.first_bytes = [b"", b""]
        for side, data, timestamp in held:
            head = min(len(data), skip[side])
            skip[side] -= head
            if head < len(data):
                self.receive(side, data[head:], timestamp)

    def fail_upgrade(self, timestamp: i64, reason: str) -> None:
        """The upgrade failed: nothing of this connection can be decoded."""
        self.stop_both_directions(timestamp, reason)
        self.enter_state(UNDECODABLE, 0, 0)

    def stop_both_directions(self, timestamp: i64, reason: str) -> None:
        """Stop decoding both directions of the connection."""
        c = self.connection
        for d in (c.dialer, c.acceptor):
            if not d.decoding_stopped:
                c.stop_decoding(d, 0, d.offset, timestamp, reason)

    def count_undecodable(self, side: i64, size: i64) -> None:
        """Count bytes that cannot be decoded."""
        d = self.connection.direction(side)
        d.total_bytes += size
        d.undecoded_bytes += size
        d.offset += size

    # Gaps, the end, and saved state

    def gap(self, side: i64, size: i64, timestamp: i64) -> None:
        """The next `size` bytes of this direction were not captured."""
        c = self.connection
        if c.direction(side).searching:
            c.gap(side, size, timestamp)
            self.direction_decoder(side).decoder.skip(size)
            return
        if self.state == UNDECIDED or self.state == UPGRADING:
            if self.state == UNDECIDED:
                self.start_without_upgrade()  # its beginning was not captured
            else:
                self.fail_upgrade(timestamp, "bytes of the WebSocket upgrade are missing")
        if self.state == WITHOUT_WEBSOCKET:
            c.gap(side, size, timestamp)
            return
        c.uncertain = True
        d = c.direction(side)
        if self.state == UNDECODABLE:
            d.total_bytes += size
            d.missing_bytes += size
            d.offset += size
            return
        decoder = self.direction_decoder(side)
        was_decoding = not d.decoding_stopped
        decoder.decoder.gap(size)
        self.dispatch(decoder, side, timestamp)
        if was_decoding and d.decoding_stopped:
            d.stopped_by_gap = True

    def skip(self, side: i64, size: i64) -> None:
        """The next `size` bytes of a direction that is searched were counted as undecoded."""
        self.direction_decoder(side).decoder.skip(size)

    def resume(self, side: i64, encapsulated: bool, from_beginning: bool) -> None:
        """A boundary was found in a direction.

        Args:
            side: the sender.
            encapsulated: a WebSocket frame begins there, or else one of the protocol's own.
            from_beginning: the connection begins there: the layer finds out what with.
        """
        if self.state == UNDECIDED and not from_beginning:
            self.protocol.encapsulated = encapsulated
            self.enter_state(FRAMES if encapsulated else WITHOUT_WEBSOCKET, 0, 0)
        self.direction_decoder(side).decoder.resume()

    def finish(self, timestamp: i64) -> None:
        """No bytes follow: report what is incomplete."""
        if self.state == UNDECIDED:
            self.start_without_upgrade()
        if self.state == UPGRADING:
            c = self.connection
            p = c.protocol
            for side in (0, 1):
                if len(self.first_bytes[side]) > 0:
                    c.record_violations(
                        side,
                        None,
                        p.truncated_rule,
                        ["the bytes end inside the HTTP upgrade"],
                        p.causality.frames_sent(side),
                        0,
                        timestamp,
                    )
            self.fail_upgrade(timestamp, "the connection ended inside the WebSocket upgrade")
        elif self.state == FRAMES:
            for side in (0, 1):
                decoder = self.direction_decoder(side)
                decoder.decoder.finish()
                self.dispatch(decoder, side, timestamp)

    def save(self) -> list[object]:
        """The state as plain data, for `load`."""
        decoders: list[object] = []
        for decoder in (self.dialer, self.acceptor):
            counts = [
                decoder.counted_control_bytes,
                decoder.counted_skipped_bytes,
                decoder.counted_missing_bytes,
            ]
            decoders.append([decoder.decoder.snapshot(), counts])
        held = [list(entry) for entry in self.undecided_chunks]
        return [
            int(self.state),
            held,
            list(self.first_bytes),
            self.path,
            decoders,
            self.protocol.encapsulated,
        ]

    def load(self, saved: list[object]) -> None:
        """Restore what `save` returned; the layer must be new.

        The assertions narrow `object` for mypy: a snapshot is plain data of mixed types.
        """
        state, held, heads, path, decoders = saved[0], saved[1], saved[2], saved[3], saved[4]
        assert isinstance(state, int)
        assert isinstance(held, list)
        assert isinstance(heads, list)
        assert isinstance(path, str)
        assert isinstance(decoders, list)
        self.state = state
        self.undecided_chunks = [(entry[0], entry[1], entry[2]) for entry in held]
        self.undecided_bytes = sum([len(entry[1]) for entry in held])
        self.first_bytes = list(heads)
        self.head_complete = [False, False]
        self.path = path
        self.protocol.encapsulated = bool(saved[5])
        for decoder, entry in ((self.dialer, decoders[0]), (self.acceptor, decoders[1])):
            snapshot, counts = entry
            decoder.decoder.restore(snapshot)
            decoder.counted_control_bytes = counts[0]
            decoder.counted_skipped_bytes = counts[1]
            decoder.counted_missing_bytes = counts[2]
