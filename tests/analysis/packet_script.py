"""Captures written packet by packet, with round trips, closed windows and retransmissions."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.recorded_conversation import ACCEPTOR, DIALER, START, Record
from tests.capture.packet_headers import headers

from polymux.capture import PcapngWriter
from polymux.capture.packets.packet_refs import ACK, PSH, SYN
from polymux.capture.synthesis.packet_builder import HeaderTemplate

SEGMENT = 1400


class Wire:
    """A TCP connection whose handshake took `rtt`; every packet is written by hand."""

    def __init__(self, path: Path, rtt: int = 0) -> None:
        self.path = str(path)
        self.writer = PcapngWriter(self.path, sync="none")
        self.makers = (HeaderTemplate(DIALER, ACCEPTOR, 0), HeaderTemplate(ACCEPTOR, DIALER, 1))
        self.next = [101, 901]
        self.packet(0, START, 100, 0, SYN)
        self.packet(1, START + rtt // 2, 900, 101, SYN | ACK)
        self.packet(0, START + rtt, 101, 901, ACK)

    def packet(
        self, side: int, at: int, seq: int, ack: int, flags: int, data: bytes = b"",
        window: int = 65535,
    ) -> None:  # fmt: skip
        before = headers(self.makers[side], seq, ack, flags, data, window)
        self.writer.packet(at, [before, data] if data else [before])

    def data(self, side: int, data: bytes, at: int) -> None:
        """Send bytes in order."""
        for start in range(0, len(data), SEGMENT):
            part = data[start : start + SEGMENT]
            self.packet(side, at, self.next[side], self.next[1 - side], PSH | ACK, part)
            self.next[side] += len(part)

    def window(self, side: int, size: int, at: int) -> None:
        """Send an empty packet that offers this window."""
        self.packet(side, at, self.next[side], self.next[1 - side], ACK, window=size)

    def close(self) -> str:
        self.writer.close()
        return self.path


def wire(path: Path, record: Record, rtt: int = 0) -> str:
    """A recording as packets of ordinary size, with a measurable round trip."""
    made = Wire(path, rtt)
    for side, data, at in record:
        made.data(side, data, at)
    return made.close()
