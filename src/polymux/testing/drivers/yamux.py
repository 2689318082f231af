"""A random application of yamux: duplex streams that use up their windows, pings and Go Away."""

from polymux.core.frames import Frame
from polymux.protocols.yamux.protocol import NO_PARITY, Yamux
from polymux.protocols.yamux.rules import SESSION_KINDS, SYN
from polymux.testing.drivers.base import DuplexDriver

BULK_BYTES = 200_000  # two of these are more than the initial window


class YamuxDriver(DuplexDriver):
    """As `DuplexDriver`, with pings, rare bulk transfers, and a Go Away at the end of some runs."""

    names = False

    def act(self) -> None:
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Yamux)  # `driver_for` pairs the two
        pick = self.rng.random()
        if pick < 0.05:
            protocol.request_ping(self.endpoint.side)
        elif pick < 0.06:
            self.endpoint.send_frame(protocol.go_away_frame(0))
        elif pick < 0.14 and self.streams:
            stream = self.rng.choice(self.streams)
            buffers = stream.buffers
            own = stream.half(self.endpoint.side)
            if buffers is not None and not buffers.end_queued and own.state == 0:
                self.endpoint.send(stream, bytes(BULK_BYTES))
        elif protocol.go_away_code(1 - self.endpoint.side) < 0 or self.streams:
            super().act()

    def random_frame(self) -> Frame | None:
        """Any frame; an id of the other side is opened only after one of this side.

        An observer learns from the ids that a side opens first which ids are its own.
        """
        frame = super().random_frame()
        protocol = self.endpoint.protocol
        assert isinstance(protocol, Yamux)  # `driver_for` pairs the two
        own = protocol.parity0 if self.endpoint.side == 0 else protocol.parity1
        if (
            frame is not None
            and frame.kind < SESSION_KINDS
            and frame.kind & SYN
            and own == NO_PARITY
        ):
            return None
        return frame
