"""Constructed captures of stalls, whose causes and durations are known.

Frames are encoded here and not by the library, and every timestamp is chosen by the script, so that
cause and duration of each stall are known without an analysis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.analysis.packet_script import SEGMENT, Wire
from tests.analysis.recorded_conversation import MS, START

from polymux.capture.packets.packet_refs import ACK, FIN, PSH

DIALER, ACCEPTOR = 0, 1
SIDES = ("dialer", "acceptor")
WIDE = 50_000_000  # a window that is never full
RATE = 2_000  # bytes per millisecond of the constructed line
RTT = 1.0  # milliseconds


def uvarint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


class Mplex:
    name = "mplex"

    def hello(self) -> list[tuple[int, bytes]]:
        return []

    def open(self, opener: int, n: int, window: int = WIDE) -> list[tuple[int, bytes]]:
        return [(opener, uvarint(n << 3) + b"\x01s")]

    def data(self, side: int, opener: int, n: int, size: int, last: bool = False) -> bytes:
        flag = 2 if side == opener else 1
        return uvarint(n << 3 | flag) + uvarint(size) + b"m" * size

    def end(self, side: int, opener: int, n: int) -> bytes:
        return uvarint(n << 3 | (4 if side == opener else 3)) + b"\0"

    def label(self, opener: int, n: int) -> str:
        return f"{'da'[opener]}{n}"


def packed(value: int) -> bytes:
    """A number in MessagePack."""
    return b"\xce" + value.to_bytes(4, "big") if value > 127 else bytes([value])


class Nerdbank(Mplex):
    name = "nerdbank:version=3"

    def frame(self, code: int, side: int, opener: int, n: int, payload: bytes | None) -> bytes:
        head = bytes([0x93 if payload is None else 0x94, code, n, 1 if side == opener else 0xFF])
        return (
            head if payload is None else head + b"\xc5" + len(payload).to_bytes(2, "big") + payload
        )

    def offer(self, opener: int, n: int, window: int = WIDE) -> bytes:
        return self.frame(0, opener, opener, n, b"\x92\xa1s" + packed(window))

    def accept(self, opener: int, n: int, window: int = WIDE) -> bytes:
        return self.frame(1, 1 - opener, opener, n, b"\x91" + packed(window))

    def open(self, opener: int, n: int, window: int = WIDE) -> list[tuple[int, bytes]]:
        return [
            (opener, self.offer(opener, n, window)),
            (1 - opener, self.accept(opener, n, window)),
        ]

    def data(self, side: int, opener: int, n: int, size: int, last: bool = False) -> bytes:
        return self.frame(2, side, opener, n, b"m" * size)

    def end(self, side: int, opener: int, n: int) -> bytes:
        return self.frame(3, side, opener, n, None)

    def grant(self, side: int, opener: int, n: int, size: int) -> bytes:
        """`side` acknowledges this many bytes."""
        return self.frame(5, side, opener, n, b"\x91" + packed(size))


class Streamux(Mplex):
    name = "streamux"

    def hello(self) -> list[tuple[int, bytes]]:
        return [(0, b"\x01\x10\x0e\x32"), (1, b"\x01\x10\x0e\x32")]

    def open(self, opener: int, n: int, window: int = WIDE) -> list[tuple[int, bytes]]:
        return []  # its first chunk opens it

    def data(self, side: int, opener: int, n: int, size: int, last: bool = False) -> bytes:
        flags = (2 if last else 0) | (0 if side == opener else 1)
        return (flags << 30 | size << 14 | n).to_bytes(4, "little") + b"m" * size


class Omnistreams(Mplex):
    """One way, from the opener; credit is counted in messages."""

    name = "omnistreams"

    def message(self, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    def open(self, opener: int, n: int, window: int = 200) -> list[tuple[int, bytes]]:
        made = [(opener, self.message(bytes([1, n]) + b"{}"))]
        return [*made, (1 - opener, self.grant(1 - opener, opener, n, window))] if window else made

    def grant(self, side: int, opener: int, n: int, size: int) -> bytes:
        return self.message(bytes([5, n, size]))

    def data(self, side: int, opener: int, n: int, size: int, last: bool = False) -> bytes:
        return self.message(bytes([2, n]) + b"m" * size)

    def end(self, side: int, opener: int, n: int) -> bytes:
        return self.message(bytes([3, n]))


class Minmux(Mplex):
    """One way, from the writer; credit is counted in items, which are bytes here."""

    name = "minmux"

    def number(self, value: int) -> bytes:
        value -= 1
        if value < 248:
            return bytes([value])
        return b"\xf9" + value.to_bytes(2, "big") if value > 255 else b"\xf8" + bytes([value])

    def open(self, opener: int, n: int, window: int = 60_000) -> list[tuple[int, bytes]]:
        return [(1 - opener, self.grant(1 - opener, opener, n, window))]

    def grant(self, side: int, opener: int, n: int, size: int) -> bytes:
        return bytes([n]) + self.number(size)

    def data(self, side: int, opener: int, n: int, size: int, last: bool = False) -> bytes:
        return bytes([n]) + self.number(size) + b"m" * size


@dataclass
class Case:
    """A script and the stalls that the analysis must find.

    `rows`: every stall as (stream, sender, cause, milliseconds); those of an idle sender only if
    `idle`. `behind` and `blocked`: milliseconds of all streams but the `hogs` together, a side.
    """

    name: str
    protocol: str
    events: list[tuple[float, int, str, object]] = field(default_factory=list)
    rows: list[tuple[str, int, str, float]] = field(default_factory=list)
    behind: tuple[float, float] = (0.0, 0.0)
    blocked: tuple[float, float] | None = None
    hogs: tuple[str, ...] = ()
    ends: float | None = None
    idle: bool = False

    def send(self, at: float, side: int, data: bytes, rate: int = 0) -> float:
        """Send bytes at `at`, at once or at a rate in bytes per ms; return when all are sent."""
        for start in range(0, len(data), SEGMENT):
            part = data[start : start + SEGMENT]
            if rate:
                at += len(part) / rate
            self.events.append((at, side, "data", part))
        return at

    def window(self, at: float, side: int, size: int) -> None:
        self.events.append((at, side, "window", size))

    def lose(self, at: float, side: int, data: bytes, after: bytes, again: float) -> None:
        """`data` is lost, `after` arrives, and `data` is retransmitted at `again`."""
        self.events.append((at, side, "early", (data, after)))
        self.events.append((again, side, "data", data))
        self.events.append((again, side, "skip", len(after)))

    def write(self, path: Path) -> str:
        made = Wire(path, rtt=int(RTT * MS))
        order = sorted(self.events, key=lambda event: event[0])
        for at, side, kind, what in order:
            when = START + int((at + 2.0) * MS)
            if kind == "data":
                assert isinstance(what, bytes)
                made.data(side, what, when)
            elif kind == "window":
                assert isinstance(what, int)
                made.window(side, what, when)
            elif kind == "early":
                assert isinstance(what, tuple)
                lost, after = what
                place = made.next[side] + len(lost)
                made.packet(side, when, place, made.next[1 - side], PSH | ACK, after)
            else:
                assert isinstance(what, int)
                made.next[side] += what
        if self.ends is not None:
            for side in (0, 1):
                when = START + int((self.ends + 2.0) * MS)
                made.packet(side, when, made.next[side], made.next[1 - side], FIN | ACK)
        return made.close()
