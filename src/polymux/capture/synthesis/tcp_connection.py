"""A connection written as packets: every chunk that passed becomes TCP segments."""

from __future__ import annotations

from typing import Protocol

from polymux.capture.packets.packet_refs import ACK, FIN, PSH, RST, SYN
from polymux.capture.pcapng import blocks
from polymux.capture.synthesis.packet_builder import HeaderTemplate, PacketBurst
from polymux.core.side import ACCEPTOR, DIALER

# Packets written at once. Two parts each, and Linux takes 1,024 parts in one call.
MAX_BURST_PACKETS = 64


class PacketSink(Protocol):
    """What a scribe writes to: `PcapngWriter` or `RotatingWriter`."""

    @property
    def comment_epoch(self) -> int:
        """Changes when comments have to be said again: a new file, or a packet was missed."""

    def burst(self, burst: PacketBurst) -> None:
        """Write packets of one instant, all of them or none."""


class TcpConnectionWriter:
    """Writes one connection with right checksums and sequence numbers.

    `comment` stands on the first packet of the connection, and again on its first packet in each
    further file, so that every file says by itself what it holds. First sequence numbers are
    taken from the clock: a port used again is a new connection to every reader.

    Bytes count as sent even if the disk was full: readers then see a gap of the right size.
    """

    def __init__(
        self,
        sink: PacketSink,
        dialer: tuple[str, int],
        acceptor: tuple[str, int],
        timestamp: int,
        *,
        comment: str = "",
    ) -> None:
        self._sink = sink
        self._templates = (HeaderTemplate(dialer, acceptor, 0), HeaderTemplate(acceptor, dialer, 1))
        self._comment = blocks.comment(comment)
        self._commented_epoch = -1
        self._ended = [False, False]
        isn = timestamp >> 6 & 0xFFFFFFFF
        self._next_seq = [isn, isn ^ 0x80000000]
        self._write_empty(DIALER, timestamp, SYN, acknowledges=False)
        self._next_seq[DIALER] += 1
        self._write_empty(ACCEPTOR, timestamp, SYN | ACK)
        self._next_seq[ACCEPTOR] += 1
        self._write_empty(DIALER, timestamp, ACK)

    def data(self, side: int, payload: bytes | memoryview, timestamp: int) -> None:
        """`side` sent these bytes."""
        data = payload if isinstance(payload, bytes) else bytes(payload)
        start = 0
        while start < len(data):
            burst = self._new_burst(side, timestamp, PSH | ACK)
            burst.add_payload(data, start, MAX_BURST_PACKETS)
            start += burst.payload_bytes
            self._next_seq[side] += burst.payload_bytes
            self._sink.burst(burst)

    def end(self, side: int, timestamp: int) -> None:
        """`side` closed its direction."""
        if not self._ended[side]:
            self._ended[side] = True
            self._write_empty(side, timestamp, FIN | ACK)
            self._next_seq[side] += 1

    def abort(self, side: int, timestamp: int) -> None:
        """`side` reset the connection."""
        if not self._ended[side]:
            self._ended = [True, True]
            self._write_empty(side, timestamp, RST | ACK)

    def close(self, timestamp: int) -> None:
        """Both sides are done, as far as they were not."""
        open_before = self._ended != [True, True]
        self.end(DIALER, timestamp)
        self.end(ACCEPTOR, timestamp)
        if open_before:
            self._write_empty(DIALER, timestamp, ACK)

    def _write_empty(
        self, side: int, timestamp: int, flags: int, acknowledges: bool = True
    ) -> None:
        """A packet that carries nothing."""
        burst = self._new_burst(side, timestamp, flags, acknowledges)
        burst.add_empty()
        self._sink.burst(burst)

    def _new_burst(
        self, side: int, timestamp: int, flags: int, acknowledges: bool = True
    ) -> PacketBurst:
        """Packets to come. They may be the first of this connection in their file."""
        ack = self._next_seq[1 - side] if acknowledges else 0
        file = self._sink.comment_epoch
        said = self._comment if file != self._commented_epoch else b""
        self._commented_epoch = file
        return PacketBurst(self._templates[side], timestamp, self._next_seq[side], ack, flags, said)
