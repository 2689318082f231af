"""An honest omnistreams application that acts at random."""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, StreamEnded
from polymux.core.events import Credit, Data, Event, Opened
from polymux.core.frames import Frame
from polymux.core.streams import StreamState
from polymux.testing.drivers.base import Driver

CONTROL_MESSAGE, CREATE, REQUEST = 0, 1, 5


class OmnistreamsDriver(Driver):
    """Opens one-way streams, writes, requests, ends, cancels on both sides, sends control messages.

    `id_count` > 0: the driver allocates that many ids itself and reuses them as soon as its side
    may. 0: the endpoint allocates.
    """

    id_count = 0

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        super().__init__(endpoint, rng)
        self.writing: list[StreamState] = []
        self.reading: list[StreamState] = []
        self.unaccepted: list[StreamState] = []
        self.unread: dict[int, int] = {}
        self.window = rng.choice([1, 2, 10, 300])

    def act(self) -> None:
        pick = self.rng.random()
        try:
            if pick < 0.2 or not self.writing:
                self.open()
            elif pick < 0.45:
                size = self.rng.choice([0, 0, 1, 5, 100, 3000, 20_000])
                self.endpoint.send(self.rng.choice(self.writing), bytes(size))
            elif pick < 0.55:
                self.endpoint.end(self.rng.choice(self.writing))
            elif pick < 0.6:
                self.endpoint.abort(self.rng.choice(self.writing))
            elif pick < 0.65:
                text = self.rng.choice([b"", b"{}", b"hello"])
                self.endpoint.send_frame(Frame(CONTROL_MESSAGE, 0, text))
            elif pick < 0.75 and self.unaccepted:
                self.accept_or_reject(self.unaccepted.pop(self.rng.randrange(len(self.unaccepted))))
            elif self.reading:
                self.act_as_reader(self.rng.choice(self.reading))
        except (NoFreeIds, StreamEnded, LocalProtocolError):
            pass  # rejected by the endpoint, with no effect

    def act_as_reader(self, stream: StreamState) -> None:
        pick = self.rng.random()
        if pick < 0.15:
            self.endpoint.abort(stream)
        elif pick < 0.4 and not stream.over and self.is_current(stream):
            amount = self.rng.choice([0, 1, 3, 255, 300])
            self.endpoint.send_frame(Frame(REQUEST, stream.key, b"", amount))
        else:
            self.read(stream)

    def is_current(self, stream: StreamState) -> bool:
        """Return whether this is still the newest use of its id."""
        return self.endpoint.protocol.streams.find(stream.key) is stream

    def open(self) -> None:
        metadata = self.rng.choice([b"", b"{}", '{"größe":1}'.encode()])
        if not self.id_count:
            self.writing.append(self.endpoint.open(metadata))
            return
        key = self.rng.randrange(self.id_count) * 2 + self.endpoint.side
        previous = self.endpoint.protocol.streams.find(key)
        if previous is None or previous.over:
            self.endpoint.send_frame(Frame(CREATE, key, metadata))
            made = self.endpoint.protocol.streams.find(key)
            assert made is not None  # CREATE has just registered it
            self.writing.append(made)

    def accept_or_reject(self, stream: StreamState) -> None:
        if self.rng.random() < 0.15:
            self.endpoint.abort(stream)
            return
        self.endpoint.accept(stream, self.window)
        self.reading.append(stream)

    def read(self, stream: StreamState) -> None:
        messages = self.unread.pop(stream.serial, 0)
        if messages:
            self.endpoint.read(stream, messages)

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            stream = event.stream
            if stream is None:
                continue
            if isinstance(event, Opened):
                self.unaccepted.append(stream)
            elif isinstance(event, Data):
                self.unread[stream.serial] = self.unread.get(stream.serial, 0) + 1
            elif isinstance(event, Credit):
                self.endpoint.resume(stream)

    def wind_down(self) -> None:
        for stream in self.unaccepted:
            self.accept_or_reject(stream)
        self.unaccepted.clear()
        for stream in self.reading:
            self.read(stream)
        for stream in self.writing:
            self.endpoint.end(stream)
