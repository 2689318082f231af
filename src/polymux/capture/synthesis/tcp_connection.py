"""Writing a connection as packets: every recorded chunk becomes TCP segments."""

from __future__ import annotations

from typing import Protocol

from polymux.capture.packets.packet_refs import ACK, FIN, PSH, RST, SYN
from polymux.capture.pcapng import blocks
from polymux.capture.synthesis.packet_builder import HeaderTemplate, PacketBurst
from polymux.core.side import ACCEPTOR, DIALER

# Packets of a burst. Each has two parts, and Linux accepts 1,024 parts in one call (IOV_MAX).
MAX_BURST_PACKETS = 64


class PacketSink(Protocol):
    """What a `TcpConnectionWriter` writes to: `PcapngWriter` or `RotatingWriter`."""

    @property
    def comment_epoch(self) -> int:
        """Changes when comments must be repeated: in a new file, or after a lost packet."""

    def burst(self, burst: PacketBurst) -> None:
        """Write packets with one timestamp, all of them or none."""


class TcpConnectionWriter:
    """Writes one connection as packets with correct checksums and sequence numbers.

    Initial sequence numbers are derived from the timestamp, so that readers see a reused port as
    a new connection. Bytes that the sink could not write still advance the sequence numbers:
    readers then see a gap of the right size.

    Args:
        sink: Where the packets go. The caller closes it.
        dialer: Address and port of the side that opened the connection.
        acceptor: Address and port of the other side.
        timestamp: Nanoseconds since 1970 of the handshake, which is written at once.
        comment: Comment of the first packet, repeated on the first packet in each further file,
            so that every file describes its own content. See `hint_comment`.
        note: A second comment in the same places, for people: no reader interprets it.
    """

    def __init__(
        self,
        sink: PacketSink,
        dialer: tuple[str, int],
        acceptor: tuple[str, int],
        timestamp: int,
        *,
        comment: str = "",
        note: str = "",
    ) -> None:
        self._sink = sink
        self._templates = (HeaderTemplate(dialer, acceptor, 0), HeaderTemplate(acceptor, dialer, 1))
        self._texts = (comment, note)
        self._comment = blocks.comments(*self._texts)
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
        """Write bytes that a side sent.

        Args:
            side: 0 for the dialer, 1 for the acceptor.
            payload: The bytes, divided into as many packets as needed.
            timestamp: Nanoseconds since 1970.
        """
        data = payload if isinstance(payload, bytes) else bytes(payload)
        start = 0
        while start < len(data):
            burst = self._new_burst(side, timestamp, PSH | ACK)
            burst.add_payload(data, start, MAX_BURST_PACKETS)
            start += burst.payload_bytes
            self._next_seq[side] += burst.payload_bytes
            self._sink.burst(burst)

    def annotate(self, side: int, text: str, timestamp: int) -> None:
        """Write a packet of `side` without payload that has `text` as its comment."""
        burst = self._new_burst(side, timestamp, ACK)
        texts = [text] if not burst.options else [*self._texts, text]
        burst.options = blocks.comments(*texts)
        burst.add_empty()
        self._sink.burst(burst)

    def end(self, side: int, timestamp: int) -> None:
        """Write the FIN of `side`, unless its direction has ended."""
        if not self._ended[side]:
            self._ended[side] = True
            self._write_empty(side, timestamp, FIN | ACK)
            self._next_seq[side] += 1

    def abort(self, side: int, timestamp: int) -> None:
        """Write a RST of `side`, which ends both directions, unless its direction has ended."""
        if not self._ended[side]:
            self._ended = [True, True]
            self._write_empty(side, timestamp, RST | ACK)

    def close(self, timestamp: int) -> None:
        """End both directions, as far as they have not ended."""
        open_before = self._ended != [True, True]
        self.end(DIALER, timestamp)
        self.end(ACCEPTOR, timestamp)
        if open_before:
            self._write_empty(DIALER, timestamp, ACK)

    def _write_empty(
        self, side: int, timestamp: int, flags: int, acknowledges: bool = True
    ) -> None:
        """Write a packet without payload."""
        burst = self._new_burst(side, timestamp, flags, acknowledges)
        burst.add_empty()
        self._sink.burst(burst)

    def _new_burst(
        self, side: int, timestamp: int, flags: int, acknowledges: bool = True
    ) -> PacketBurst:
        """A new burst, with the comment if it is the first of this connection in its file."""
        ack = self._next_seq[1 - side] if acknowledges else 0
        epoch = self._sink.comment_epoch
        options = self._comment if epoch != self._commented_epoch else b""
        self._commented_epoch = epoch
        template, seq = self._templates[side], self._next_seq[side]
        return PacketBurst(template, timestamp, seq, ack, flags, options)
