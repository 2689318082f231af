# mypyc: compiled
"""An interface of a capture: its link type, and how its timestamps become nanoseconds."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from polymux.capture.packets.byteorder import u16, u32

# Instants stay within 62 bits (the years 1823 to 2116), so that differences never overflow.
LAST_INSTANT: Final[i64] = 0x3FFFFFFFFFFFFFFF
FIRST_INSTANT: Final[i64] = -0x4000000000000000


class Interface:
    """What an interface block says, or the header of a classic file.

    The ticks of a timestamp times `multiply` over `divide` are nanoseconds; where `shift` is not
    negative, a second has 2**shift ticks. `hint` is the text of its comment or its section's.
    """

    def __init__(self, link: i64, snap: i64, resolution: i64, offset: i64, hint: str) -> None:
        self.link: i64 = link
        self.snap: i64 = snap
        self.resolution: i64 = resolution  # as if_tsresol: 6 is microseconds, 0x80 | n is 2**-n
        self.offset: i64 = offset  # seconds
        self.hint: str = hint
        self.number: i64 = 0  # of the hint, in the scanner that uses it
        self.place: i64 = 0  # among the interfaces of that scanner
        self.shift: i64 = -1
        self.multiply: i64 = 1
        self.divide: i64 = 1
        if resolution >= 128:
            self.shift = resolution - 128
        elif resolution <= 9:
            self.multiply = ten_to(9 - resolution)
        elif resolution <= 27:
            self.divide = ten_to(resolution - 9)
        else:
            self.multiply = 0
        self.most: i64 = LAST_INSTANT // self.multiply if self.multiply > 0 else LAST_INSTANT
        self.simple: bool = self.shift < 0 and self.divide == 1 and offset == 0

    def instant(self, high: i64, low: i64) -> i64:
        """The two halves of a timestamp as nanoseconds; kept within 62 bits."""
        if self.simple and high < 0x80000000:
            ticks = (high << 32) | low
            return ticks * self.multiply if ticks <= self.most else LAST_INSTANT
        return slow_instant(high, low, self.shift, self.multiply, self.divide, self.offset)


def slow_instant(high: int, low: int, shift: int, multiply: int, divide: int, offset: int) -> i64:
    ticks = high * 4294967296 + low
    value = (ticks * 1000000000) >> shift if shift >= 0 else ticks * multiply // divide
    value += offset * 1000000000
    # Plain numbers: next to an i64 constant a large value would be narrowed, and fail.
    if value > 0x3FFFFFFFFFFFFFFF:
        return LAST_INSTANT
    if value < -0x4000000000000000:
        return FIRST_INSTANT
    return value


def ten_to(power: i64) -> i64:
    value: i64 = 1
    for _ in range(power):
        value *= 10
    return value


def timestamp_options(data: bytes, at: i64, end: i64, big: bool) -> tuple[i64, i64]:
    """What the options of an interface block say of its timestamps: resolution and offset."""
    resolution: i64 = 6
    offset: i64 = 0
    while end - at >= 4:
        code = u16(data, at, big)
        size = u16(data, at + 2, big)
        if code == 0 or size > end - at - 4:
            break
        if code == 9 and size >= 1:
            resolution = data[at + 4]
        elif code == 14 and size >= 8:
            high = u32(data, at + (4 if big else 8), big)
            low = u32(data, at + (8 if big else 4), big)
            if high > 0x7FFFFFFF:
                high -= 0x100000000
            offset = (high << 32) | low
        at += 4 + ((size + 3) & -4)
    return resolution, offset
