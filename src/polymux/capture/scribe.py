"""A connection written as packets: every chunk that passed becomes TCP segments."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from polymux.capture.frames import ACK, FIN, LARGEST_PAYLOAD, PSH, RST, SYN, FrameMaker, payload_sum

DIALER, ACCEPTOR = 0, 1
# Packets written at once. Four parts each, and Linux takes 1,024 parts in one call.
BURST = 64


class PacketSink(Protocol):
    """What a scribe writes to: `PcapngWriter` or `RotatingWriter`."""

    @property
    def file(self) -> int:
        """Changes when comments have to be said again: a new file, or a packet was missed."""

    def packet(
        self, at: int, parts: list[bytes | memoryview], comment: str = "", wire: int = -1
    ) -> None: ...


@runtime_checkable
class BurstSink(Protocol):
    """A sink that takes several packets of one instant at once; the comment is the first one's."""

    def burst(self, at: int, frames: list[list[bytes | memoryview]], comment: str = "") -> None: ...


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
        self._bursts = sink if isinstance(sink, BurstSink) else None
        self._makers = (FrameMaker(dialer, acceptor, 0), FrameMaker(acceptor, dialer, 1))
        self._comment = comment
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
        if len(data) <= LARGEST_PAYLOAD:
            if data:
                self._write(side, at, PSH | ACK, data, payload_sum(data, 0, len(data)))
                self._next[side] += len(data)
            return
        frames = self._frames(side, data)
        if self._bursts is None:
            for frame in frames:
                self._sink.packet(at, frame, self._comment_now())
            return
        for first in range(0, len(frames), BURST):
            self._bursts.burst(at, frames[first : first + BURST], self._comment_now())

    def _frames(self, side: int, data: bytes) -> list[list[bytes | memoryview]]:
        """More octets than one packet can have, as packets."""
        view = memoryview(data)
        headers = self._makers[side].headers
        seq, ack = self._next[side], self._next[1 - side]
        frames: list[list[bytes | memoryview]] = []
        for start in range(0, len(data), LARGEST_PAYLOAD):
            stop = min(start + LARGEST_PAYLOAD, len(data))
            words = payload_sum(data, start, stop)
            frames.append(
                [headers(seq + start, ack, PSH | ACK, stop - start, words), view[start:stop]]
            )
        self._next[side] = seq + len(data)
        return frames

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

    def _write(
        self,
        side: int,
        at: int,
        flags: int,
        payload: bytes | memoryview = b"",
        words: int = 0,
        acknowledges: bool = True,
    ) -> None:
        ack = self._next[1 - side] if acknowledges else 0
        headers = self._makers[side].headers(self._next[side], ack, flags, len(payload), words)
        self._sink.packet(at, [headers, payload] if payload else [headers], self._comment_now())

    def _comment_now(self) -> str:
        """What the next packet has to say: it may be the first of this connection in its file."""
        file = self._sink.file
        comment = self._comment if file != self._said_in else ""
        self._said_in = file
        return comment
