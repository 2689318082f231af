"""An honest Minmux application that behaves at random, on whatever streams its profile assigns."""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, StreamEnded
from polymux.core.events import Credit, Event
from polymux.core.frames import Frame
from polymux.core.streams import OPEN, Stream
from polymux.protocols.minmux.item_codecs import ENDLESS, Prefixed
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    MOST,
    OOPS,
    PROMISE_READ,
    PROMISE_WRITE,
    STOP_READ,
    STOP_WRITE,
    WRITE,
    key_of,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT, Shape
from polymux.protocols.minmux.protocol import Minmux
from polymux.testing.drivers.base import Driver

# Near every place where an id changes its form, and both roles in each.
NUMBERS = (0, 1, 2, 3, 62, 63, 64, 318, 319, 2**63 - 1, 2**63, 2**63 + 62, MOST - 1, MOST)


class MinmuxDriver(Driver):
    """Gives, writes, stops, forgoes, asks back and promises; never breaks its word."""

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        super().__init__(endpoint, rng)
        protocol = endpoint.protocol
        assert isinstance(protocol, Minmux)
        self.protocol = protocol
        protocol.streams.keep = True  # earlier uses of an id are compared too
        self.side = endpoint.side
        numbers = list(protocol.profile.numbers)
        if protocol.profile.default is not None:
            numbers += [number for number in NUMBERS if number not in numbers]
        self.mine = [n for n in numbers if writer_of(key_of(n)) == self.side]
        self.theirs = [n for n in numbers if writer_of(key_of(n)) != self.side]

    # --- honest acts

    def act(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            try:
                if self.rng.random() < 0.5:
                    self.write_side(self.some_stream(self.mine))
                else:
                    self.read_side(self.some_stream(self.theirs))
            except (LocalProtocolError, StreamEnded):
                pass  # an honest application is told no, and nothing has changed

    def some_stream(self, numbers: list[int]) -> Stream:
        """Two ids in two thirds of all cases, so that much happens on them."""
        few = numbers[:2] if self.rng.random() < 0.66 else numbers
        return self.protocol.reach(self.side, self.rng.choice(few))

    def read_side(self, stream: Stream) -> None:
        limit = stream.half(self.side).limit
        pick = self.rng.random()
        if limit == 0:
            if pick < 0.2:
                self.put(OOPS, stream, self.rng.randrange(20))
        elif pick < 0.6:
            amount = self.rng.choice([1, 2, 10, 300, 70_000, MOST])
            frame = self.protocol.granting(self.side, stream, amount)
            if frame is not None:
                self.endpoint.put(frame)
        elif pick < 0.75:
            self.put(OOPS, stream, self.rng.choice([0, 1, 10, MOST]))
        elif pick < 0.85:
            self.put(PROMISE_READ, stream, self.some(limit))
        else:
            self.put(STOP_READ, stream, self.rng.choice([0, self.some(limit), max(limit, 3)]))

    def write_side(self, stream: Stream) -> None:
        limit = stream.half(self.side).limit
        shape = self.shape(stream)
        pick = self.rng.random()
        queued = self.protocol.queued_items(self.side, stream)
        if stream.half(self.side).state != OPEN:
            return
        if pick < 0.6:
            self.write_items(stream, shape, limit, queued)
        elif pick < 0.7 and self.protocol.held(stream) > 0:
            self.put(FORGO_CREDIT, stream, self.some(self.protocol.held(stream)))
        elif pick < 0.8 and limit != 0:
            self.put(PROMISE_WRITE, stream, self.some(limit))
        elif pick < 0.9:
            self.stop(stream, shape, limit, queued)
        elif shape.last != ENDLESS and limit < 0:
            self.endpoint.end(stream)

    def write_items(self, stream: Stream, shape: Shape, limit: int, queued: int) -> None:
        if 0 <= limit <= queued:
            if limit == queued and shape.last != UNIT:
                self.endpoint.send(stream, self.octets(shape.last, 1))
            return
        amount = self.rng.choice([1, 2, 7, 40, 500])
        if limit >= 0:
            amount = min(amount, limit - queued)
        if shape.item != 0:
            self.endpoint.send(stream, self.octets(shape.item, amount))
        elif self.protocol.held(stream) >= amount:
            self.endpoint.put(Frame(WRITE, stream.key, b"", amount))

    def stop(self, stream: Stream, shape: Shape, limit: int, queued: int) -> None:
        """Announce a limit that still holds what is queued."""
        if shape.last == ENDLESS or 0 <= limit < queued or limit == 0:
            return
        if (self.side, FORGO_CREDIT, stream.key) in self.protocol.duties:
            return  # what is given up should leave before the end
        amount = queued + self.rng.choice([0, 1, 5, 1000])
        self.put(STOP_WRITE, stream, min(amount, limit) if limit >= 0 else amount)

    def heard(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Credit) and event.stream is not None:
                self.endpoint.resume(event.stream)

    def wind_down(self) -> None:
        for stream in self.protocol.streams.all():
            own = stream.half(self.side)
            shape = self.shape(stream)
            if own.state != OPEN or (stream.lane is not None and stream.lane.ending):
                continue
            if stream.opener == self.side:
                queued = self.protocol.queued_items(self.side, stream)
                if queued == 0 and own.limit == 0:
                    self.endpoint.send(stream, self.octets(shape.last, 1))
                elif queued == 0 and shape.last != ENDLESS:
                    self.endpoint.end(stream)
            elif stream.half(stream.opener).state != OPEN:
                self.put(STOP_READ, stream, 0)
            elif self.protocol.held(stream) == 0:
                frame = self.protocol.granting(self.side, stream, 600)
                if frame is not None:
                    self.endpoint.put(frame)

    # --- lies

    def lie(self) -> Frame | None:
        """A packet this side could send on some stream: perhaps legal, perhaps not."""
        keys = [stream.key for stream in self.protocol.streams.all()]
        key = self.rng.choice(keys + [key_of(n) for n in (*self.mine, *self.theirs)])
        writes = writer_of(key) == self.side
        kind = self.rng.choice(
            [WRITE, STOP_WRITE, FORGO_CREDIT, PROMISE_WRITE]
            if writes
            else [GIVE_CREDIT, STOP_READ, OOPS, PROMISE_READ]
        )
        amount = self.rng.choice([1, 2, 7, 30] if kind == WRITE else [1, 7, 500, MOST - 1, MOST])
        stream = self.protocol.streams.find(key)
        shape = self.protocol.profile.shape(key)
        if kind != WRITE or shape is None:
            return Frame(kind, key, b"", amount)
        form = shape.item
        if stream is not None and self.protocol.is_last(stream.half(self.side), amount, shape):
            form = shape.last
        return Frame(kind, key, self.octets(form, amount), amount)

    # --- words

    def put(self, kind: int, stream: Stream, amount: int) -> None:
        self.endpoint.put(Frame(kind, stream.key, b"", amount))

    def shape(self, stream: Stream) -> Shape:
        shape = self.protocol.profile.shape(stream.key)
        assert shape is not None
        return shape

    def some(self, most: int) -> int:
        """At least 1, and not above `most` unless that is no limit."""
        wish = self.rng.choice([1, 3, 50, 10**9])
        return wish if most < 0 else max(1, min(wish, most))

    def octets(self, form: int, amount: int) -> bytes:
        """That many items of this size, or with a length before each."""
        if form >= 0:
            return self.rng.randbytes(form * amount)
        codec = Prefixed()
        sizes = [self.rng.choice([0, 1, 5, 247, 248, 300]) for _ in range(min(amount, 60))]
        sizes += [0] * (amount - len(sizes))
        return b"".join(codec.encode(self.rng.randbytes(size)) for size in sizes)
