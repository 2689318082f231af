"""A connection written as packets: every chunk that passed becomes TCP segments."""

from __future__ import annotations

from typing import Protocol

from polymux.capture.pcapng import blocks
from polymux.capture.synthesis.packet_builder import ACK, FIN, PSH, RST, SYN, Burst, FrameMaker

DIALER, ACCEPTOR = 0, 1
# Packets written at once. Two parts each, and Linux takes 1,024 parts in one call.
BURST = 64


class PacketSink(Protocol):
    """What a scribe writes to: `PcapngWriter` or `RotatingWriter`."""

    @property
    def file(self) -> int:
        """Changes when comments have to be said again: a new file, or a packet was missed."""

    def burst(self, burst: Burst) -> None:
        """Write packets of one instant, all of them or none."""


class TcpScribe:
    """Writes one connection with right checksums and sequence numbers.

    `comment` stands on the first packet of the connection, and again on its first packet in each
    further file, so that every file says by itself what it holds. First sequence numbers are
    taken from the clock: a port used again is a new connection to every reader.

    Octets count as sent even if the disk was full: readers then see a gap of the right size.
    """

    def __init__(
        self,
        sink: PacketSink,
        dialer: tuple[str, int],
        acceptor: tuple[str, int],
        at: int,
        *,
        comment: str = "",
    ) -> None:
        self._sink = sink
        self._makers = (FrameMaker(dialer, acceptor, 0), FrameMaker(acceptor, dialer, 1))
        self._comment = blocks.comment(comment)
        self._said_in = -1
        self._over = [False, False]
        isn = at >> 6 & 0xFFFFFFFF
        self._next = [isn, isn ^ 0x80000000]
        self._write(DIALER, at, SYN, acknowledges=False)
        self._next[DIALER] += 1
        self._write(ACCEPTOR, at, SYN | ACK)
        self._next[ACCEPTOR] += 1
        self._write(DIALER, at, ACK)

    def data(self, side: int, octets: bytes | memoryview, at: int) -> None:
        """`side` sent these octets."""
        data = octets if isinstance(octets, bytes) else bytes(octets)
        start = 0
        while start < len(data):
            burst = self._burst(side, at, PSH | ACK)
            burst.carry(data, start, BURST)
            start += burst.payload
            self._next[side] += burst.payload
            self._sink.burst(burst)

    def end(self, side: int, at: int) -> None:
        """`side` closed its direction."""
        if not self._over[side]:
            self._over[side] = True
            self._write(side, at, FIN | ACK)
            self._next[side] += 1

    def abort(self, side: int, at: int) -> None:
        """`side` reset the connection."""
        if not self._over[side]:
            self._over = [True, True]
            self._write(side, at, RST | ACK)

    def close(self, at: int) -> None:
        """Both sides are done, as far as they were not."""
        open_before = self._over != [True, True]
        self.end(DIALER, at)
        self.end(ACCEPTOR, at)
        if open_before:
            self._write(DIALER, at, ACK)

    def _write(self, side: int, at: int, flags: int, acknowledges: bool = True) -> None:
        """A packet that carries nothing."""
        burst = self._burst(side, at, flags, acknowledges)
        burst.lone()
        self._sink.burst(burst)

    def _burst(self, side: int, at: int, flags: int, acknowledges: bool = True) -> Burst:
        """Packets to come. They may be the first of this connection in their file."""
        ack = self._next[1 - side] if acknowledges else 0
        file = self._sink.file
        said = self._comment if file != self._said_in else b""
        self._said_in = file
        return Burst(self._makers[side], at, self._next[side], ack, flags, said)
