# mypyc: compiled
"""Minmux: 2^64 one-way streams of items under credit, with limits and a last item.

Here are the verbs. The packets are in `minmux_packets`, the rules in `minmux_rules`, what items
are in `minmux_profile` and `minmux_items`, the octets in `minmux_wire`, the law in `minmux_law`.
"""

from mypy_extensions import i64

from polymux.core.frames import Frame, Head
from polymux.core.limits import Limits
from polymux.core.protocol import NO_ID, Protocol
from polymux.core.rules import Duty
from polymux.core.side import DIALER, Side
from polymux.core.streams import OPEN, Lane, Stream
from polymux.protocols.minmux.codec import MinmuxWire
from polymux.protocols.minmux.item_codecs import ENDLESS
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    MOST,
    STOP_READ,
    STOP_WRITE,
    WRITE,
    key_of,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT, Profile, Shape, load_profile, plain_profile


class Minmux(MinmuxWire):
    """One conversation of an instance. Both sides may use every assigned stream at once, so
    `reach` is how a program gets hold of one; `allocate` only finds one that is still unused."""

    def __init__(
        self,
        limits: Limits,
        vantage: i64,
        profile: Profile,
        strict: bool = True,
        yielding: bool = True,
    ) -> None:
        super().__init__(limits, vantage, profile, strict, yielding)
        self.next0: i64 = 1
        self.next1: i64 = 0
        self.cutting: i64 = 0  # items in the piece that `cut` has just measured

    # --- streams

    def reach(self, side: i64, number: int) -> Stream:
        """The stream with this id, for reading or writing: the current one, or the next use of an
        id that is over and may be used again. ValueError if the id is not assigned."""
        key = key_of(number)
        if self.profile.shape(key) is None:
            raise ValueError(f"stream {number} is not assigned by the profile")
        stream = self.prepare(side, key)
        if stream.lane is None:
            stream.lane = Lane()
        return stream

    def prepare(self, side: i64, key: i64) -> Stream:
        stream = self.streams.find(key)
        if stream is not None and not (self.profile.reuse and self.is_over(stream)):
            return stream
        waiting = self.prepared.get(key)
        if waiting is None:
            waiting = self.blank(key)
            self.prepared[key] = waiting
        return waiting

    def allocate(self, side: i64) -> i64:
        """An id this side writes that nobody has used; never 2^64-1, whose key is NO_ID."""
        if self.profile.default is None:
            for number in self.profile.numbers:
                key = key_of(number)
                if key != NO_ID and writer_of(key) == side and self.is_free(key):
                    return key
            return NO_ID
        following: i64 = self.next0 if side == DIALER else self.next1
        while not self.is_free(following):
            following += 2
        if side == DIALER:
            self.next0 = following + 2
        else:
            self.next1 = following + 2
        return following

    def is_free(self, key: i64) -> bool:
        if key in self.prepared:
            return False
        stream = self.streams.find(key)
        return stream is None or (self.profile.reuse and self.is_over(stream))

    def held(self, stream: Stream) -> int:
        """Credit the writer of a stream has now."""
        half = stream.half(stream.opener)
        return half.granted - half.spent

    def last_item_at(self, stream: Stream) -> i64:
        """Octets of content before the last item, or -1 while that has not come."""
        return stream.extra - 1

    # --- verbs

    def content_head(self, side: i64, stream: Stream, head: Head, final: bool) -> None:
        head.kind = WRITE
        own = stream.half(side)
        if own.limit == 0:
            head.amount = 1
            head.units = 0
        else:
            head.amount = self.cutting
            head.units = self.cutting

    def cut(self, side: i64, stream: Stream, rest: i64, quantum: i64, last: bool) -> i64:
        """Whole items only, as many as there is credit and limit for; one at least fits a frame."""
        own = stream.half(side)
        shape = self.profile.shape(stream.key)
        if shape is None or own.state != OPEN:
            return -1
        if own.limit == 0:
            return rest
        leave = own.granted - own.spent
        if 0 <= own.limit < leave:
            leave = own.limit
        if leave <= 0:
            return -1
        room: i64 = quantum if quantum < rest else rest
        if shape.item > 0:
            items: i64 = room // shape.item
            if items == 0:
                items = 1
            most: int = items
            if leave < most:
                items = i64(leave)
            self.cutting = items
            return items * shape.item
        return self.cut_sized(stream, shape, room, leave)

    def cut_sized(self, stream: Stream, shape: Shape, room: i64, leave: int) -> i64:
        """The same for items that say their own length: look at the piece itself."""
        lane = stream.lane
        if lane is None:
            return -1
        piece = lane.outgoing[lane.next]
        start = lane.sent
        pos = start
        end: i64 = len(piece)
        items: i64 = 0
        whole: int = end
        most: i64 = i64(leave) if leave < whole else end  # no item is shorter than an octet
        while pos < end and items < most:
            size, _ = self.item(shape.items, piece, pos, end)
            if size < 0 or (items > 0 and pos + size - start > room):
                break
            pos += size
            items += 1
        self.cutting = items
        return pos - start if items > 0 else -1

    def refuse(self, side: i64, stream: Stream, data: bytes) -> str:
        """Why this content could never leave: half an item, another's stream, past one's limit."""
        shape = self.profile.shape(stream.key)
        if shape is None or stream.opener != side:
            return f"stream {stream.label()} is written by the {Side(stream.opener).name.lower()}"
        limit = stream.half(side).limit
        queued = self.queued_items(side, stream) if limit >= 0 else 0  # counting walks the queue
        if limit >= 0 and queued >= limit:
            if shape.last == UNIT or queued > limit:
                return f"stream {stream.label()} has announced its end: nothing more can follow"
            if not self.holds(shape, True, 1, data):
                return f"{len(data)} octets are not the last item of stream {stream.label()}"
            return ""
        items = self.count_items(shape, data)
        if items < 0:
            return f"{len(data)} octets are no whole items of stream {stream.label()}"
        if 0 <= limit < queued + items:
            return f"stream {stream.label()} has announced {limit - queued} more items, not {items}"
        return ""

    def count_items(self, shape: Shape, data: bytes) -> int:
        """Regular items in these octets, or -1 if they are not whole."""
        if shape.item > 0:
            return len(data) // shape.item if len(data) % shape.item == 0 else -1
        return -1 if shape.item == 0 else self.count(shape.items, data, 0)

    def queued_items(self, side: i64, stream: Stream) -> int:
        """Regular items that wait in the stream's lane; one more than the announced limit if the
        last item waits behind them."""
        lane = stream.lane
        shape = self.profile.shape(stream.key)
        if lane is None or shape is None or lane.queued == 0:
            return 0
        limit = stream.half(side).limit
        size: int = shape.item
        if size > 0:
            waiting: int = lane.queued
            return limit + 1 if 0 <= limit * size < waiting else waiting // size
        items = 0
        sent = lane.sent
        for i in range(lane.next, len(lane.outgoing)):
            if 0 <= limit <= items:
                return limit + 1
            items += self.count(shape.items, lane.outgoing[i], sent)
            sent = 0
        return items

    def finishing(self, side: i64, stream: Stream) -> Frame:
        """Announce that what is queued is all: the stream ends, or its last item may be sent, once
        that has left. To be put at once; content sent after it is the last item."""
        return Frame(STOP_WRITE, stream.key, b"", self.queued_items(side, stream))

    def ending_frame(self, side: i64, stream: Stream) -> Frame | None:
        """The writer will write no more (its last item may follow), or the reader give no more."""
        return self.aborting(side, stream, b"")

    def aborting(self, side: i64, stream: Stream, text: bytes) -> Frame | None:
        """Minmux has no abort: the nearest is a limit of 0. An endless stream has none at all."""
        if stream.opener != side:
            return self.refusing(side, stream)
        shape = self.profile.shape(stream.key)
        if shape is None or shape.last == ENDLESS or stream.half(side).limit == 0:
            return None
        return Frame(STOP_WRITE, stream.key, b"", 0)

    def refusing(self, side: i64, stream: Stream) -> Frame | None:
        if stream.opener == side or stream.half(side).limit == 0:
            return None
        return Frame(STOP_READ, stream.key, b"", 0)

    def granting(self, side: i64, stream: Stream, amount: int) -> Frame | None:
        """Credit, as far as our own limit and 2^64-1 allow it."""
        if stream.opener == side:
            return None
        own, peer = stream.half(side), stream.half(stream.opener)
        most = MOST - (peer.granted - peer.spent)
        if 0 <= own.limit < most:
            most = own.limit
        if amount > most:
            amount = most
        if amount <= 0 or peer.state != OPEN:
            return None
        return Frame(GIVE_CREDIT, stream.key, b"", amount)

    def paying(self, duty: Duty) -> Frame | None:
        """Answer an Oops with all credit above its wish; a last item only its writer can give.

        A reader that has announced a limit may never give that credit again, so nothing is given
        up while items wait for it.
        """
        stream = self.streams.find(duty.key)
        if duty.kind != FORGO_CREDIT or stream is None:
            return None
        reader = stream.half(1 - duty.side)
        amount = self.held(stream) - self.wishes.get(duty.key, 0)
        waits = reader.limit >= 0 and stream.lane is not None and stream.lane.queued > 0
        if amount <= 0 or waits or stream.half(duty.side).state != OPEN:
            self.settle(duty.side, duty.kind, duty.key)
            return None
        return Frame(FORGO_CREDIT, duty.key, b"", amount, stream.incarnation)

    def silences(self, duty: Duty) -> bool:
        return False

    # --- saved state

    def save(self) -> dict[str, object]:
        saved = super().save()
        saved["next"] = [self.next0, self.next1]
        saved["wishes"] = list(self.wishes.items())
        saved["murky"] = sorted(self.murky)
        saved["left"] = list(self.left.items())
        saved["slack"] = list(self.slack.items())
        return saved

    def load(self, saved: dict[str, object]) -> None:
        super().load(saved)
        numbers, wishes = saved["next"], saved["wishes"]
        murky, left, slack = saved["murky"], saved["left"], saved["slack"]
        assert isinstance(numbers, list)
        assert isinstance(wishes, list)
        assert isinstance(murky, list)
        assert isinstance(left, list)
        assert isinstance(slack, list)
        self.next0, self.next1 = numbers[0], numbers[1]
        self.wishes = dict(wishes)
        self.murky = set(murky)
        self.left = dict(left)
        self.slack = dict(slack)


def from_options(options: dict[str, str], limits: Limits, vantage: i64) -> Protocol:
    """`profile=FILE.toml`; `canonical=no` also takes numbers that are longer than need be;
    `oops=ignore` keeps credit that the reader would like to have back."""
    profile = load_profile(options["profile"]) if "profile" in options else plain_profile()
    canonical = options.get("canonical", "yes")
    if canonical not in ("yes", "no"):
        raise ValueError(f"canonical is yes or no, not {canonical!r}")
    answer = options.get("oops", "answer")
    if answer not in ("answer", "ignore"):
        raise ValueError(f"oops is answer or ignore, not {answer!r}")
    return Minmux(limits, vantage, profile, canonical == "yes", answer == "answer")
