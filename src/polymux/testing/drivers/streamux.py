"""An honest Streamux application that sends requests, replies, cancels and keep alives."""

from random import Random

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, NoFreeIds, StreamEnded
from polymux.core.events import Ended, Event, Opened
from polymux.core.frames import Frame
from polymux.core.protocol import NO_ID
from polymux.core.streams import OPEN, StreamState
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import (
    EMPTY_REPLY,
    KEEP_ALIVE,
    REPLY_BIT,
    REPLY_LAST,
    REQUEST_LAST,
)
from polymux.testing.drivers.base import Driver

SIZES = (1, 2, 5, 100, 1000, 3000)


class StreamuxDriver(Driver):
    """Sends requests and replies in chunks; some are cancelled, aborted or empty."""

    def __init__(self, endpoint: Endpoint, rng: Random) -> None:
        super().__init__(endpoint, rng)
        assert isinstance(endpoint.protocol, Streamux)  # see `driver_for`
        self.protocol: Streamux = endpoint.protocol
        self.protocol.streams.keep_removed = True  # earlier uses of an id are compared too
        self.requests: list[StreamState] = []
        self.calls: list[StreamState] = []

    def act(self) -> None:
        pick = self.rng.random()
        try:
            if not self.protocol.handshake_done:
                self.send_early_request()
            elif pick < 0.25 or not self.requests:
                self.send_request()
            elif pick < 0.4:
                self.endpoint.send(self.rng.choice(self.requests), bytes(self.rng.choice(SIZES)))
            elif pick < 0.5:
                self.endpoint.end(self.rng.choice(self.requests))
            elif pick < 0.58:
                self.endpoint.abort(self.rng.choice(self.requests))
            elif pick < 0.63:
                self.send_keep_alive()
            elif self.calls:
                self.continue_reply(self.rng.choice(self.calls))
        except (NoFreeIds, StreamEnded, LocalProtocolError):
            pass  # rejected by the endpoint, with no effect

    def send_request(self) -> None:
        """Open a request; mostly its data, and often its end, follow at once."""
        stream = self.endpoint.open()
        self.requests.append(stream)
        if self.rng.random() < 0.8:
            self.endpoint.send(stream, bytes(self.rng.choice(SIZES)))
            if self.rng.random() < 0.7:
                self.endpoint.end(stream)

    def send_early_request(self) -> None:
        """Send a request before the peer's initiator arrives: it needs only this side's."""
        key = self.protocol.next_free_key(self.endpoint.side)
        if key != NO_ID:
            self.endpoint.send_frame(Frame(REQUEST_LAST, key, b"?"))
            stream = self.protocol.streams.find(key)
            assert stream is not None  # the request has just registered it
            self.requests.append(stream)

    def send_keep_alive(self) -> None:
        frame = self.protocol.keep_alive_frame(self.endpoint.side)
        if frame is not None:
            self.endpoint.send_frame(frame)

    def continue_reply(self, stream: StreamState) -> None:
        """Send a chunk of the reply, end it, or abort it."""
        pick = self.rng.random()
        if pick < 0.5:
            self.endpoint.send(stream, bytes(self.rng.choice(SIZES)))
        elif pick < 0.85:
            self.endpoint.end(stream)
        else:
            self.endpoint.abort(stream)

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            stream = event.stream
            if stream is None:
                continue
            if isinstance(event, Opened):
                self.calls.append(stream)
            elif isinstance(event, Ended):
                self.endpoint.resume(stream)  # a reply that waited for the end of the request

    def wind_down(self) -> None:
        for stream in (*self.requests, *self.calls):
            if stream.half(self.endpoint.side).state == OPEN and not stream.over:
                buffers = stream.buffers
                if stream.serial < 0 and buffers is not None and buffers.queued_bytes == 0:
                    self.endpoint.abort(stream)  # a request without data cannot be sent
                else:
                    self.endpoint.end(stream)

    def random_frame(self) -> Frame | None:
        """Return a frame that fits its header, on an id near those in use; it may be illegal."""
        side = self.endpoint.side
        kind = self.rng.randrange(EMPTY_REPLY + 1)
        layout = self.protocol.layout_of(1 - side if kind & REPLY_BIT else side)
        numbers = [stream.stream_id for stream in self.protocol.streams.all()] or [5]
        number = (self.rng.choice(numbers) + self.rng.choice([0, 0, 0, 1, 3])) & layout.max_id
        opener = 1 - side if kind & REPLY_BIT else side
        key = number * 2 + opener
        if kind == KEEP_ALIVE:
            stream = self.protocol.streams.find(key)
            if self.protocol.ends_started_message(side, REQUEST_LAST, stream):
                return None  # would be decoded as the end of that request
        size = self.rng.choice([1, 40]) if kind <= REPLY_LAST else 0
        return Frame(kind, key, b"x" * min(size, layout.max_chunk_bytes))
