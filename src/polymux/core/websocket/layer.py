# mypyc: compiled
"""What lies between the bytes of a connection and a protocol of whole messages: WebSocket.

A protocol that is `Enveloped` names its carrier. `Carrier` owns the WebSocket decoders of one
connection: bytes of both directions in, whole messages out, each with its place on the wire. What
is not a message is counted: bytes = framed + gap + undecoded + carrier, in each direction.
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
AUTODETECT: Final = ""  # told by the first bytes

UNDECIDED: Final[i64] = 0  # too few bytes to tell
UPGRADING: Final[i64] = 1  # HTTP heads are passing
FRAMES: Final[i64] = 2
WITHOUT_WEBSOCKET: Final[i64] = 3  # no carrier: the bytes are the protocol's own
UNDECODABLE: Final[i64] = 4  # nothing can be read here

HTTP_FIRST_BYTES: Final = (b"GET ", b"HTTP")  # how an upgrade begins, by side; no frame begins so
HTTP_PREFIXES: Final = (b"GET ", b"HTTP/1.")  # what a head must then begin with
FRAME_FIRST_BYTES: Final = (
    0x82,
    0x88,
    0x89,
    0x8A,
)  # how frames begin; no length in bytes is so large
MIN_MESSAGE_HEADER_BYTES: Final = 3  # bytes of a message that must have been seen for it to be read


class MessageProtocol(Protocol):
    """A protocol of whole messages. While `enveloped`, `header` is given exactly one of them."""

    def __init__(
        self, name: str, rules: tuple[Rule, ...], kinds: dict[int, FrameKind], limits: Limits,
        vantage: i64, carrier: str,
    ) -> None:  # fmt: skip
        super().__init__(name, rules, kinds, limits, vantage)
        self.carrier = carrier
        self.encapsulated: bool = carrier == WEBSOCKET


class DirectionDecoder:
    """One direction below the messages: its decoder, and what of its counts is accounted for."""

    def __init__(self, side: i64, max_message_bytes: i64, lenient: bool) -> None:
        self.decoder = Decoder(side, max_message_bytes, lenient)
        self.counted_control_bytes = 0
        self.counted_skipped_bytes = 0
        self.counted_missing_bytes = 0

    def account(self, d: Direction) -> None:
        """Add to the direction what the decoder has counted since the last time."""
        decoder = self.decoder
        d.overhead_bytes += decoder.control_bytes - self.counted_control_bytes
        d.undecoded_bytes += decoder.skipped_bytes - self.counted_skipped_bytes
        d.missing_bytes += decoder.missing_bytes - self.counted_missing_bytes
        d.total_bytes += (
            decoder.control_bytes
            - self.counted_control_bytes
            + decoder.skipped_bytes
            - self.counted_skipped_bytes
            + decoder.missing_bytes
            - self.counted_missing_bytes
        )
        self.counted_control_bytes, self.counted_skipped_bytes, self.counted_missing_bytes = (
            decoder.control_bytes, decoder.skipped_bytes, decoder.missing_bytes,
        )  # fmt: skip
        if decoder.offset > d.offset:
            d.offset = decoder.offset


class WebSocketLayer:
    """The WebSocket below a conversation, from the HTTP upgrade on if the bytes begin with one.

    `lenient`: go on after what breaks the framing (captures); else it is the end (live).
    A byte is in `Direction.bytes` once it is known what it was part of.
    """

    def __init__(self, connection: Connection, protocol: MessageProtocol, lenient: bool) -> None:
        self.connection = connection
        self.protocol: MessageProtocol = protocol
        self.state: i64 = UNDECIDED
        limit = protocol.max_frame_bytes + 2  # type and id
        self.dialer: DirectionDecoder = DirectionDecoder(0, limit, lenient)
        self.acceptor: DirectionDecoder = DirectionDecoder(1, limit, lenient)
        self.undecided_chunks: list[
            tuple[int, bytes, int]
        ] = []  # side, bytes and instant, until decided
        self.undecided_bytes: i64 = 0  # bytes in it
        self.first_bytes: list[bytes] = [
            b"",
            b"",
        ]  # the first bytes of each side, while they matter
        self.head_complete: list[bool] = [False, False]  # was all that matters of a head there?
        self.path = ""  # what the upgrade asked for

    def direction_decoder(self, side: i64) -> DirectionDecoder:
        return self.dialer if side == DIALER else self.acceptor

    def receive(self, side: i64, data: bytes, timestamp: i64) -> None:
        """The next bytes of one direction."""
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
        course = self.direction_decoder(side)
        course.decoder.feed(data)
        self.dispatch(course, side, timestamp)

    def dispatch(self, decoder: DirectionDecoder, side: i64, timestamp: i64) -> None:
        """Hand on what the decoder has found, and account for the rest."""
        c = self.connection
        d = c.direction(side)
        for item in decoder.decoder.take():
            if isinstance(item, Message):
                if item.holes and item.holes[0][0] < MIN_MESSAGE_HEADER_BYTES:
                    gone = sum([size for _, size in item.holes])
                    d.total_bytes += item.wire_bytes
                    d.missing_bytes += gone
                    d.undecoded_bytes += item.wire_bytes - gone
                    d.frame_started = False
                    d.frames_missing = True
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
                c.stop_decoding(d, 0, item.offset, timestamp, item.detail)
        decoder.account(d)
        if decoder.decoder.message_start_offset() < 0:
            d.frame_started = False
        elif (
            not d.frame_started
        ):  # what its sender can know in this message is what it has read by now
            c.protocol.causality.snapshot_seen(side)
            d.frame_started = True

    def handle_violation(self, side: i64, violation: FrameViolation, timestamp: i64) -> None:
        c = self.connection
        ordinal = c.protocol.causality.frames_sent(side)
        if violation.rule is TRUNCATED:
            c.record_violations(
                side,
                None,
                c.protocol.truncated_rule,
                [violation.detail],
                ordinal,
                violation.offset,
                timestamp,
            )
            return
        certainty = Certainty.POSSIBLE if c.uncertain else Certainty.CERTAIN
        c.violations.append(
            Violation(
                violation.rule,
                Side(side),
                ordinal,
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
        """A ping has come; who watches does not answer."""

    def on_close(self, close: Close) -> None:
        """A close has come."""

    def on_violation(self, violation: FrameViolation) -> None:
        """The peer broke a rule of the framing: nothing of it will be read any more."""

    # --- how it begins

    def detect_start(self, timestamp: i64) -> None:
        """Bytes, frames or an upgrade?"""
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
        """Can the heads be judged otherwise than before? Each can once it begins wrongly, is whole
        or too long: it is not read again for every byte of the other."""
        more = False
        for side in (0, 1):
            if self.head_complete[side]:
                continue
            head, start = self.first_bytes[side], HTTP_PREFIXES[side]
            wrong = head[: len(start)] != start[: len(head)]
            if wrong or len(head) >= MAX_HEAD_BYTES or http_head_size(head, MAX_HEAD_BYTES) >= 0:
                self.head_complete[side] = True
                more = True
        return more

    def start_without_upgrade(self) -> None:
        """The bytes do not begin with an upgrade."""
        if self.protocol.carrier == AUTODETECT:
            for begin in self.first_bytes:
                if len(begin) > 0 and begin[0] in FRAME_FIRST_BYTES:
                    self.protocol.encapsulated = True
        self.enter_state(FRAMES if self.protocol.encapsulated else WITHOUT_WEBSOCKET, 0, 0)

    def enter_state(self, state: i64, size0: int, size1: int) -> None:
        """It is decided: read what was held, in the order in which it came, behind the heads."""
        self.state = state
        self.dialer.decoder.offset = self.connection.dialer.offset
        self.acceptor.decoder.offset = self.connection.acceptor.offset
        skip = [size0, size1]
        held = self.undecided_chunks
        self.undecided_chunks = []
        self.undecided_bytes = 0
        self.first_bytes = [b"", b""]
        for side, data, at in held:
            head = min(len(data), skip[side])
            skip[side] -= head
            if head < len(data):
                self.receive(side, data[head:], at)

    def fail_upgrade(self, timestamp: i64, reason: str) -> None:
        """No upgrade after all: nothing of this connection can be read."""
        self.stop_both_directions(timestamp, reason)
        self.enter_state(UNDECODABLE, 0, 0)

    def stop_both_directions(self, timestamp: i64, reason: str) -> None:
        c = self.connection
        for d in (c.dialer, c.acceptor):
            if not d.decoding_stopped:
                c.stop_decoding(d, 0, d.offset, timestamp, reason)

    def count_undecodable(self, side: i64, size: i64) -> None:
        d = self.connection.direction(side)
        d.total_bytes += size
        d.undecoded_bytes += size
        d.offset += size

    # --- gaps, the end, and a rest on the way

    def gap(self, side: i64, size: i64, timestamp: i64) -> None:
        """Bytes of this direction were not captured."""
        c = self.connection
        if self.state == UNDECIDED or self.state == UPGRADING:
            if self.state == UNDECIDED:
                self.start_without_upgrade()  # whatever it was, it is lost with its beginning
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
        course = self.direction_decoder(side)
        known = not d.decoding_stopped
        course.decoder.gap(size)
        self.dispatch(course, side, timestamp)
        if known and d.decoding_stopped:
            d.stopped_by_gap = True

    def finish(self, timestamp: i64) -> None:
        """No more will come."""
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
                course = self.direction_decoder(side)
                course.decoder.finish()
                self.dispatch(course, side, timestamp)

    def save(self) -> list[object]:
        courses: list[object] = []
        for course in (self.dialer, self.acceptor):
            counts = [
                course.counted_control_bytes,
                course.counted_skipped_bytes,
                course.counted_missing_bytes,
            ]
            courses.append([course.decoder.snapshot(), counts])
        held = [list(entry) for entry in self.undecided_chunks]
        return [
            int(self.state),
            held,
            list(self.first_bytes),
            self.path,
            courses,
            self.protocol.encapsulated,
        ]

    def load(self, saved: list[object]) -> None:
        state, held, heads, path, courses = saved[0], saved[1], saved[2], saved[3], saved[4]
        assert isinstance(state, int)
        assert isinstance(held, list)
        assert isinstance(heads, list)
        assert isinstance(path, str)
        assert isinstance(courses, list)
        self.state = state
        self.undecided_chunks = [(entry[0], entry[1], entry[2]) for entry in held]
        self.undecided_bytes = sum([len(entry[1]) for entry in held])
        self.first_bytes = list(heads)
        self.head_complete = [False, False]
        self.path = path
        self.protocol.encapsulated = bool(saved[5])
        for course, kept in ((self.dialer, courses[0]), (self.acceptor, courses[1])):
            course.decoder.restore(kept[0])
            (
                course.counted_control_bytes,
                course.counted_skipped_bytes,
                course.counted_missing_bytes,
            ) = kept[1][0], kept[1][1], kept[1][2]
