# mypyc: compiled
"""What lies between the octets of a connection and a protocol of whole messages: WebSocket.

A protocol that is `Enveloped` names its carrier. `Carrier` owns the WebSocket decoders of one
connection: octets of both directions in, whole messages out, each with its place on the wire. What
is not a message is counted: octets = framed + gap + undecoded + carrier, in each direction.
"""

from typing import Final

from mypy_extensions import i64

from polymux.core.connection import Conversation
from polymux.core.direction import Direction
from polymux.core.frames import Kind
from polymux.core.limits import Limits
from polymux.core.protocol import Protocol
from polymux.core.rules import Certainty, Rule, Violation
from polymux.core.side import DIALER, Side
from polymux.core.websocket.decoder import Decoder
from polymux.core.websocket.events import TRUNCATED, Close, Fault, Lost, Message, Ping
from polymux.core.websocket.handshake import HEAD_LIMIT, MORE, NO, Upgrade, head_size, recognise

WEBSOCKET: Final = "websocket"
LENGTH: Final = "length"
FOUND: Final = ""  # told by the first octets

UNDECIDED: Final[i64] = 0  # too few octets to tell
UPGRADING: Final[i64] = 1  # HTTP heads are passing
FRAMES: Final[i64] = 2
PLAIN: Final[i64] = 3  # no carrier: the octets are the protocol's own
NOTHING: Final[i64] = 4  # nothing can be read here

HEADS: Final = (b"GET ", b"HTTP")  # how an upgrade begins, by side; no frame begins so
STARTS: Final = (b"GET ", b"HTTP/1.")  # what a head must then begin with
FIRSTS: Final = (0x82, 0x88, 0x89, 0x8A)  # how frames begin; no length in octets is so large
HEADER: Final = 3  # octets of a message that must have been seen for it to be read


class Enveloped(Protocol):
    """A protocol of whole messages. While `enveloped`, `header` is given exactly one of them."""

    def __init__(
        self, name: str, rules: tuple[Rule, ...], kinds: dict[int, Kind], limits: Limits,
        vantage: i64, carrier: str,
    ) -> None:  # fmt: skip
        super().__init__(name, rules, kinds, limits, vantage)
        self.carrier = carrier
        self.enveloped: bool = carrier == WEBSOCKET


class Course:
    """One direction below the messages: its decoder, and what of its counts is accounted for."""

    def __init__(self, side: i64, limit: i64, lenient: bool) -> None:
        self.decoder = Decoder(side, limit, lenient)
        self.carrier = 0
        self.skipped = 0
        self.missing = 0

    def account(self, d: Direction) -> None:
        """Add to the direction what the decoder has counted since the last time."""
        decoder = self.decoder
        d.carrier += decoder.carrier - self.carrier
        d.undecoded += decoder.skipped - self.skipped
        d.gap += decoder.missing - self.missing
        d.octets += (
            decoder.carrier - self.carrier + decoder.skipped - self.skipped
            + decoder.missing - self.missing
        )  # fmt: skip
        self.carrier, self.skipped, self.missing = (
            decoder.carrier, decoder.skipped, decoder.missing,
        )  # fmt: skip
        if decoder.offset > d.offset:
            d.offset = decoder.offset


class Carrier:
    """The WebSocket below a conversation, from the HTTP upgrade on if the octets begin with one.

    `lenient`: go on after what breaks the framing (captures); else it is the end (live).
    An octet is in `Direction.octets` once it is known what it was part of.
    """

    def __init__(self, conversation: Conversation, protocol: Enveloped, lenient: bool) -> None:
        self.conversation = conversation
        self.protocol: Enveloped = protocol
        self.state: i64 = UNDECIDED
        limit = protocol.max_frame + 2  # type and id
        self.dialer: Course = Course(0, limit, lenient)
        self.acceptor: Course = Course(1, limit, lenient)
        self.held: list[tuple[int, bytes, int]] = []  # side, octets and instant, until decided
        self.waiting: i64 = 0  # octets in it
        self.heads: list[bytes] = [b"", b""]  # the first octets of each side, while they matter
        self.read: list[bool] = [False, False]  # was all that matters of a head there?
        self.path = ""  # what the upgrade asked for

    def course(self, side: i64) -> Course:
        return self.dialer if side == DIALER else self.acceptor

    def feed(self, side: i64, data: bytes, at: i64) -> None:
        """The next octets of one direction."""
        if self.state == FRAMES:
            self.decode(side, data, at)
        elif self.state == PLAIN:
            self.conversation.feed(side, data, at)
        elif self.state == NOTHING:
            self.waste(side, len(data))
        elif len(data) > 0:
            self.held.append((int(side), data, int(at)))
            self.waiting += len(data)
            if len(self.heads[side]) < HEAD_LIMIT:
                self.heads[side] += data[: HEAD_LIMIT - len(self.heads[side])]
            self.decide(at)

    def decode(self, side: i64, data: bytes, at: i64) -> None:
        course = self.course(side)
        course.decoder.feed(data)
        self.deliver(course, side, at)

    def deliver(self, course: Course, side: i64, at: i64) -> None:
        """Hand on what the decoder has found, and account for the rest."""
        c = self.conversation
        d = c.direction(side)
        for item in course.decoder.take():
            if isinstance(item, Message):
                if item.holes and item.holes[0][0] < HEADER:
                    gone = sum([size for _, size in item.holes])
                    d.octets += item.octets
                    d.gap += gone
                    d.undecoded += item.octets - gone
                    d.begun = False
                    d.missed = True
                    c.stop_measuring(at)
                else:
                    c.message(side, item.data, at, item.offset, item.octets)
            elif isinstance(item, Ping):
                self.pinged(item)
            elif isinstance(item, Close):
                self.closed(item)
            elif isinstance(item, Fault):
                self.fault(side, item, at)
            elif isinstance(item, Lost):
                c.lose(d, 0, item.offset, at, item.detail)
        course.account(d)
        if course.decoder.begun() < 0:
            d.begun = False
        elif not d.begun:  # what its sender can know in this message is what it has read by now
            c.protocol.sight.freeze(side)
            d.begun = True

    def fault(self, side: i64, item: Fault, at: i64) -> None:
        c = self.conversation
        ordinal = c.protocol.sight.sent(side)
        if item.rule is TRUNCATED:
            c.blame(side, None, c.protocol.truncated, [item.detail], ordinal, item.offset, at)
            return
        certainty = Certainty.POSSIBLE if c.doubt else Certainty.CERTAIN
        c.violations.append(
            Violation(item.rule, Side(side), ordinal, item.offset, at, "", certainty, item.detail)
        )
        if not self.course(side).decoder.lenient:
            c.lose(c.direction(side), 0, item.offset, at, "the peer broke the WebSocket protocol")
            self.failed(item)

    def pinged(self, ping: Ping) -> None:
        """A ping has come; who watches does not answer."""

    def closed(self, close: Close) -> None:
        """A close has come."""

    def failed(self, fault: Fault) -> None:
        """The peer broke a rule of the framing: nothing of it will be read any more."""

    # --- how it begins

    def decide(self, at: i64) -> None:
        """Octets, frames or an upgrade?"""
        if self.state == UNDECIDED:
            for side in (0, 1):
                begin = self.heads[side][:4]
                if begin != HEADS[side][: len(begin)]:
                    self.begin_without()
                    return
            if len(self.heads[0]) < 4 and len(self.heads[1]) < 4:
                return
            self.state = UPGRADING
        found = recognise(self.heads[0], self.heads[1]) if self.tells_more() else Upgrade(MORE)
        if found.verdict == MORE:
            if self.waiting > 4 * HEAD_LIMIT:
                self.give_up(at, "the WebSocket upgrade was never answered")
        elif found.verdict == NO:
            self.give_up(at, found.reason)
        else:
            self.path = found.path
            self.protocol.enveloped = True
            for side, size in ((0, found.request_size), (1, found.response_size)):
                d = self.conversation.direction(side)
                d.octets += size
                d.carrier += size
                d.offset += size
            if found.undecodable:
                self.settle(NOTHING, found.request_size, found.response_size)
                self.lose_both(at, found.undecodable)
            else:
                self.settle(FRAMES, found.request_size, found.response_size)

    def tells_more(self) -> bool:
        """Can the heads be judged otherwise than before? Each can once it begins wrongly, is whole
        or too long: it is not read again for every octet of the other."""
        more = False
        for side in (0, 1):
            if self.read[side]:
                continue
            head, start = self.heads[side], STARTS[side]
            wrong = head[: len(start)] != start[: len(head)]
            if wrong or len(head) >= HEAD_LIMIT or head_size(head, HEAD_LIMIT) >= 0:
                self.read[side] = True
                more = True
        return more

    def begin_without(self) -> None:
        """The octets do not begin with an upgrade."""
        if self.protocol.carrier == FOUND:
            for begin in self.heads:
                if len(begin) > 0 and begin[0] in FIRSTS:
                    self.protocol.enveloped = True
        self.settle(FRAMES if self.protocol.enveloped else PLAIN, 0, 0)

    def settle(self, state: i64, size0: int, size1: int) -> None:
        """It is decided: read what was held, in the order in which it came, behind the heads."""
        self.state = state
        self.dialer.decoder.offset = self.conversation.dialer.offset
        self.acceptor.decoder.offset = self.conversation.acceptor.offset
        skip = [size0, size1]
        held = self.held
        self.held = []
        self.waiting = 0
        self.heads = [b"", b""]
        for side, data, at in held:
            head = min(len(data), skip[side])
            skip[side] -= head
            if head < len(data):
                self.feed(side, data[head:], at)

    def give_up(self, at: i64, reason: str) -> None:
        """No upgrade after all: nothing of this connection can be read."""
        self.lose_both(at, reason)
        self.settle(NOTHING, 0, 0)

    def lose_both(self, at: i64, reason: str) -> None:
        c = self.conversation
        for d in (c.dialer, c.acceptor):
            if not d.lost:
                c.lose(d, 0, d.offset, at, reason)

    def waste(self, side: i64, size: i64) -> None:
        d = self.conversation.direction(side)
        d.octets += size
        d.undecoded += size
        d.offset += size

    # --- gaps, the end, and a rest on the way

    def gap(self, side: i64, size: i64, at: i64) -> None:
        """Octets of this direction were not captured."""
        c = self.conversation
        if self.state == UNDECIDED or self.state == UPGRADING:
            if self.state == UNDECIDED:
                self.begin_without()  # whatever it was, it is lost with its beginning
            else:
                self.give_up(at, "octets of the WebSocket upgrade are missing")
        if self.state == PLAIN:
            c.gap(side, size, at)
            return
        c.doubt = True
        d = c.direction(side)
        if self.state == NOTHING:
            d.octets += size
            d.gap += size
            d.offset += size
            return
        course = self.course(side)
        known = not d.lost
        course.decoder.gap(size)
        self.deliver(course, side, at)
        if known and d.lost:
            d.holed = True

    def finish(self, at: i64) -> None:
        """No more will come."""
        if self.state == UNDECIDED:
            self.begin_without()
        if self.state == UPGRADING:
            c = self.conversation
            p = c.protocol
            for side in (0, 1):
                if len(self.heads[side]) > 0:
                    c.blame(side, None, p.truncated, ["the octets end inside the HTTP upgrade"],
                            p.sight.sent(side), 0, at)  # fmt: skip
            self.give_up(at, "the connection ended inside the WebSocket upgrade")
        elif self.state == FRAMES:
            for side in (0, 1):
                course = self.course(side)
                course.decoder.finish()
                self.deliver(course, side, at)

    def save(self) -> list[object]:
        courses: list[object] = []
        for course in (self.dialer, self.acceptor):
            counts = [course.carrier, course.skipped, course.missing]
            courses.append([course.decoder.snapshot(), counts])
        held = [list(entry) for entry in self.held]
        return [int(self.state), held, list(self.heads), self.path, courses,
                self.protocol.enveloped]  # fmt: skip

    def load(self, saved: list[object]) -> None:
        state, held, heads, path, courses = saved[0], saved[1], saved[2], saved[3], saved[4]
        assert isinstance(state, int)
        assert isinstance(held, list)
        assert isinstance(heads, list)
        assert isinstance(path, str)
        assert isinstance(courses, list)
        self.state = state
        self.held = [(entry[0], entry[1], entry[2]) for entry in held]
        self.waiting = sum([len(entry[1]) for entry in held])
        self.heads = list(heads)
        self.read = [False, False]
        self.path = path
        self.protocol.enveloped = bool(saved[5])
        for course, kept in ((self.dialer, courses[0]), (self.acceptor, courses[1])):
            course.decoder.restore(kept[0])
            course.carrier, course.skipped, course.missing = kept[1][0], kept[1][1], kept[1][2]
