"""Honest applications that use an endpoint at random, one per protocol shape.

`act` performs one random legal action, `on_events` gets the events of each delivery, and
`wind_down` starts nothing new and ends what is open.
"""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, StreamEnded
from polymux.core.events import Accepted, Credit, Data, Event, Opened
from polymux.core.frames import Frame
from polymux.core.streams import NEVER, OPEN, StreamState


class Driver:
    """The interface between the simulator and an application on one endpoint."""

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        self.endpoint = endpoint
        self.rng = rng
        self.reuse_ids = False  # reuse ids, if the protocol lets the opener choose them

    def act(self) -> None:
        raise NotImplementedError

    def on_events(self, events: list[Event]) -> None:
        raise NotImplementedError

    def wind_down(self) -> None:
        raise NotImplementedError

    def random_frame(self) -> Frame | None:
        """Return a frame of any kind on a key near those in use; it may be illegal."""
        kinds = [kind for kind in self.endpoint.protocol.kinds if kind < 250]
        keys = [stream.key for stream in self.endpoint.protocol.streams.all()] or [5]
        key = max(0, self.rng.choice(keys) + self.rng.choice([0, 0, 0, 1, -1, 8, 64]))
        amount = self.rng.choice([0, 1, 7, 500, 100_000])
        return Frame(self.rng.choice(kinds), key, b"x" * self.rng.choice([0, 1, 40]), amount)


class DuplexDriver(Driver):
    """Opens, accepts, rejects, writes, reads, ends and aborts duplex streams."""

    names = True  # streams have names

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        super().__init__(endpoint, rng)
        self.streams: list[StreamState] = []
        self.unaccepted: list[StreamState] = []
        self.unread: dict[int, int] = {}
        self.window = rng.choice([64, 500, 5000, 1_000_000])

    def act(self) -> None:
        pick = self.rng.random()
        try:
            if pick < 0.2 or not self.streams:
                name = bytes(self.rng.randrange(32, 127) for _ in range(self.rng.randrange(4)))
                name = name if self.names else b""
                self.streams.append(
                    self.open_reused_id(name) or self.endpoint.open(name, self.window)
                )
            elif pick < 0.35 and self.unaccepted:
                self.accept_or_reject(self.unaccepted.pop(self.rng.randrange(len(self.unaccepted))))
            elif pick < 0.7:
                size = self.rng.choice([0, 1, 5, 100, 1000, 3000])
                self.endpoint.send(self.rng.choice(self.streams), bytes(size))
            elif pick < 0.8:
                self.endpoint.end(self.rng.choice(self.streams))
            elif pick < 0.85:
                self.endpoint.abort(self.rng.choice(self.streams), b"changed my mind")
            else:
                self.read(self.rng.choice(self.streams))
        except (NoFreeIds, StreamEnded, LocalProtocolError):
            pass  # rejected by the endpoint, with no effect

    def open_reused_id(self, name: bytes) -> StreamState | None:
        """Open the first of this side's ids whose stream is over, as npm `multiplex` does."""
        end = self.endpoint
        if not self.reuse_ids:
            return None
        for stream in end.protocol.streams.all():
            if stream.over and stream.opener == end.side:
                end.send_frame(Frame(0, stream.key, name))
                return end.protocol.streams.find(stream.key)
        return None

    def accept_or_reject(self, stream: StreamState) -> None:
        if self.rng.random() < 0.15:
            self.endpoint.abort(stream)
            return
        if stream.half(stream.opener).last_frame_index != NEVER:
            return  # withdrawn in the meantime
        self.endpoint.accept(stream, self.window)
        self.streams.append(stream)

    def read(self, stream: StreamState) -> None:
        amount = self.unread.pop(stream.serial, 0)
        if amount:
            self.endpoint.read(stream, amount)

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            stream = event.stream
            if stream is None:
                continue
            if isinstance(event, Opened):
                self.unaccepted.append(stream)
            elif isinstance(event, Data):
                self.unread[stream.serial] = self.unread.get(stream.serial, 0) + len(event.data)
            elif isinstance(event, Accepted | Credit):
                self.endpoint.resume(stream)

    def wind_down(self) -> None:
        for stream in self.unaccepted:
            if stream.half(stream.opener).last_frame_index == NEVER:
                self.accept_or_reject(stream)
        self.unaccepted.clear()
        for stream in self.streams:
            self.read(stream)
            if stream.half(self.endpoint.side).state == OPEN:
                self.endpoint.end(stream)
