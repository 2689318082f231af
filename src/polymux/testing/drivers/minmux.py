"""An honest Minmux application that behaves at random, on whatever streams its profile assigns."""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, StreamEnded
from polymux.core.events import Credit, Event
from polymux.core.frames import Frame
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.minmux.id_reuse import is_last_item
from polymux.protocols.minmux.item_codecs import ENDLESS, Prefixed
from polymux.protocols.minmux.packets import (
    FORGO_CREDIT,
    GIVE_CREDIT,
    OOPS,
    PROMISE_READ,
    PROMISE_WRITE,
    STOP_READ,
    STOP_WRITE,
    U64_MAX,
    WRITE,
    key_of,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, StreamFormat
from polymux.protocols.minmux.protocol import Minmux
from polymux.testing.drivers.base import Driver

# Ids at every boundary of the id encoding, with both roles.
STREAM_IDS = (0, 1, 2, 3, 62, 63, 64, 318, 319, 2**63 - 1, 2**63, 2**63 + 62, U64_MAX - 1, U64_MAX)


class MinmuxDriver(Driver):
    """Sends packets of all eight kinds at random, within credit and announced limits."""

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        super().__init__(endpoint, rng)
        protocol = endpoint.protocol
        assert isinstance(protocol, Minmux)  # see `driver_for`
        self.protocol = protocol
        protocol.streams.keep_removed = True  # earlier uses of an id are compared too
        self.side = endpoint.side
        numbers = list(protocol.profile.assigned_ids)
        if protocol.profile.default is not None:
            numbers += [number for number in STREAM_IDS if number not in numbers]
        self.written_ids = [n for n in numbers if writer_of(key_of(n)) == self.side]
        self.read_ids = [n for n in numbers if writer_of(key_of(n)) != self.side]

    # Legal actions

    def act(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            try:
                if self.rng.random() < 0.5:
                    self.act_as_writer(self.random_stream(self.written_ids))
                else:
                    self.act_as_reader(self.random_stream(self.read_ids))
            except (LocalProtocolError, StreamEnded):
                pass  # rejected by the endpoint, with no effect

    def random_stream(self, numbers: list[int]) -> StreamState:
        """Return a random stream, mostly one of the first two ids, so that these are busy."""
        few = numbers[:2] if self.rng.random() < 0.66 else numbers
        return self.protocol.get_stream(self.side, self.rng.choice(few))

    def act_as_reader(self, stream: StreamState) -> None:
        limit = stream.half(self.side).promised_limit
        pick = self.rng.random()
        if limit == 0:
            if pick < 0.2:
                self.send_packet(OOPS, stream, self.rng.randrange(20))
        elif pick < 0.6:
            amount = self.rng.choice([1, 2, 10, 300, 70_000, U64_MAX])
            frame = self.protocol.credit_frame(self.side, stream, amount)
            if frame is not None:
                self.endpoint.send_frame(frame)
        elif pick < 0.75:
            self.send_packet(OOPS, stream, self.rng.choice([0, 1, 10, U64_MAX]))
        elif pick < 0.85:
            self.send_packet(PROMISE_READ, stream, self.random_amount(limit))
        else:
            self.send_packet(
                STOP_READ, stream, self.rng.choice([0, self.random_amount(limit), max(limit, 3)])
            )

    def act_as_writer(self, stream: StreamState) -> None:
        limit = stream.half(self.side).promised_limit
        stream_format = self.format_of(stream)
        pick = self.rng.random()
        queued = self.protocol.queued_items(self.side, stream)
        if stream.half(self.side).state != OPEN:
            return
        if pick < 0.6:
            self.write_items(stream, stream_format, limit, queued)
        elif pick < 0.7 and self.protocol.writer_credit(stream) > 0:
            self.send_packet(
                FORGO_CREDIT, stream, self.random_amount(self.protocol.writer_credit(stream))
            )
        elif pick < 0.8 and limit != 0:
            self.send_packet(PROMISE_WRITE, stream, self.random_amount(limit))
        elif pick < 0.9:
            self.announce_end(stream, stream_format, limit, queued)
        elif stream_format.last_item_size != ENDLESS and limit < 0:
            self.endpoint.end(stream)

    def write_items(
        self, stream: StreamState, stream_format: StreamFormat, limit: int, queued: int
    ) -> None:
        if 0 <= limit <= queued:
            if limit == queued and stream_format.last_item_size != UNIT_LAST_ITEM:
                self.endpoint.send(stream, self.random_items(stream_format.last_item_size, 1))
            return
        amount = self.rng.choice([1, 2, 7, 40, 500])
        if limit >= 0:
            amount = min(amount, limit - queued)
        if stream_format.item_size != 0:
            self.endpoint.send(stream, self.random_items(stream_format.item_size, amount))
        elif self.protocol.writer_credit(stream) >= amount:
            self.endpoint.send_frame(Frame(WRITE, stream.key, b"", amount))

    def announce_end(
        self, stream: StreamState, stream_format: StreamFormat, limit: int, queued: int
    ) -> None:
        """Announce a limit that still holds what is queued."""
        if stream_format.last_item_size == ENDLESS or 0 <= limit < queued or limit == 0:
            return
        if (self.side, FORGO_CREDIT, stream.key) in self.protocol.pending_replies:
            return  # the ForgoCredit should be sent before the end
        amount = queued + self.rng.choice([0, 1, 5, 1000])
        self.send_packet(STOP_WRITE, stream, min(amount, limit) if limit >= 0 else amount)

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Credit) and event.stream is not None:
                self.endpoint.resume(event.stream)

    def wind_down(self) -> None:
        for stream in self.protocol.streams.all():
            own = stream.half(self.side)
            stream_format = self.format_of(stream)
            if own.state != OPEN or (stream.buffers is not None and stream.buffers.end_queued):
                continue
            if stream.opener == self.side:
                queued = self.protocol.queued_items(self.side, stream)
                if queued == 0 and own.promised_limit == 0:
                    self.endpoint.send(stream, self.random_items(stream_format.last_item_size, 1))
                elif queued == 0 and stream_format.last_item_size != ENDLESS:
                    self.endpoint.end(stream)
            elif stream.half(stream.opener).state != OPEN:
                self.send_packet(STOP_READ, stream, 0)
            elif self.protocol.writer_credit(stream) == 0:
                frame = self.protocol.credit_frame(self.side, stream, 600)
                if frame is not None:
                    self.endpoint.send_frame(frame)

    # Possibly illegal frames

    def random_frame(self) -> Frame | None:
        """Return a packet of a kind that this side may send; it may be illegal now."""
        keys = [stream.key for stream in self.protocol.streams.all()]
        key = self.rng.choice(keys + [key_of(n) for n in (*self.written_ids, *self.read_ids)])
        writes = writer_of(key) == self.side
        kind = self.rng.choice(
            [WRITE, STOP_WRITE, FORGO_CREDIT, PROMISE_WRITE]
            if writes
            else [GIVE_CREDIT, STOP_READ, OOPS, PROMISE_READ]
        )
        amount = self.rng.choice(
            [1, 2, 7, 30] if kind == WRITE else [1, 7, 500, U64_MAX - 1, U64_MAX]
        )
        stream = self.protocol.streams.find(key)
        stream_format = self.protocol.profile.format_of(key)
        if kind != WRITE or stream_format is None:
            return Frame(kind, key, b"", amount)
        form = stream_format.item_size
        if stream is not None and is_last_item(stream.half(self.side), amount, stream_format):
            form = stream_format.last_item_size
        return Frame(kind, key, self.random_items(form, amount), amount)

    # Private helpers

    def send_packet(self, kind: int, stream: StreamState, amount: int) -> None:
        self.endpoint.send_frame(Frame(kind, stream.key, b"", amount))

    def format_of(self, stream: StreamState) -> StreamFormat:
        stream_format = self.protocol.profile.format_of(stream.key)
        assert stream_format is not None  # drivers use assigned streams only
        return stream_format

    def random_amount(self, limit: int) -> int:
        """Return an amount of at least 1, and at most `limit` unless that is negative."""
        amount = self.rng.choice([1, 3, 50, 10**9])
        return amount if limit < 0 else max(1, min(amount, limit))

    def random_items(self, item_size: int, amount: int) -> bytes:
        """Return `amount` random items of this size, or with length prefixes."""
        if item_size >= 0:
            return self.rng.randbytes(item_size * amount)
        codec = Prefixed()
        sizes = [self.rng.choice([0, 1, 5, 247, 248, 300]) for _ in range(min(amount, 60))]
        sizes += [0] * (amount - len(sizes))
        return b"".join(codec.encode(self.rng.randbytes(size)) for size in sizes)
