# mypyc: compiled
"""An interface of a capture: its link type, and the conversion of its timestamps."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from polymux.capture.packets.byteorder import u16, u32

# Timestamps stay within 62 bits (the years 1823 to 2116), so that differences never overflow.
MAX_TIMESTAMP: Final[i64] = 0x3FFFFFFFFFFFFFFF
MIN_TIMESTAMP: Final[i64] = -0x4000000000000000


class Interface:
    """An interface description block of pcapng, or the file header of classic pcap.

    A timestamp of n ticks is n * `multiplier` // `divisor` nanoseconds; if `tick_shift` is not
    negative, a second has 2**tick_shift ticks instead. `hint` is the text of its comment or else
    of its section's. `is_simple` interfaces need only the multiplier.
    """

    def __init__(
        self, link_type: i64, snap_length: i64, resolution: i64, offset_seconds: i64, hint: str
    ) -> None:
        self.link_type: i64 = link_type
        self.snap_length: i64 = snap_length
        self.resolution: i64 = (
            resolution  # if_tsresol: 6 is microseconds, 0x80 | n is 2**-n seconds
        )
        self.offset_seconds: i64 = offset_seconds  # if_tsoffset
        self.hint: str = hint
        self.hint_index: i64 = 0  # of `hint`, among the hints of its scanner
        self.index: i64 = 0  # among the interfaces of its scanner
        self.tick_shift: i64 = -1
        self.multiplier: i64 = 1
        self.divisor: i64 = 1
        if resolution >= 128:
            self.tick_shift = resolution - 128
        elif resolution <= 9:
            self.multiplier = power_of_ten(9 - resolution)
        elif resolution <= 27:
            self.divisor = power_of_ten(resolution - 9)
        else:
            self.multiplier = 0
        self.max_ticks: i64 = (
            MAX_TIMESTAMP // self.multiplier if self.multiplier > 0 else MAX_TIMESTAMP
        )
        self.is_simple: bool = self.tick_shift < 0 and self.divisor == 1 and offset_seconds == 0

    def to_nanoseconds(self, high: i64, low: i64) -> i64:
        """A timestamp of two 32-bit halves in nanoseconds, clamped to 62 bits."""
        if self.is_simple and high < 0x80000000:
            ticks = (high << 32) | low
            return ticks * self.multiplier if ticks <= self.max_ticks else MAX_TIMESTAMP
        return to_nanoseconds_slow(
            high, low, self.tick_shift, self.multiplier, self.divisor, self.offset_seconds
        )


def to_nanoseconds_slow(
    high: int, low: int, shift: int, multiplier: int, divisor: int, offset_seconds: int
) -> i64:
    """`Interface.to_nanoseconds` for any resolution and offset, in integers of any size."""
    ticks = high * 4294967296 + low
    value = (ticks * 1000000000) >> shift if shift >= 0 else ticks * multiplier // divisor
    value += offset_seconds * 1000000000
    # Literals: compared with an i64 constant, a large value would be narrowed, which fails.
    if value > 0x3FFFFFFFFFFFFFFF:
        return MAX_TIMESTAMP
    if value < -0x4000000000000000:
        return MIN_TIMESTAMP
    return value


def power_of_ten(power: i64) -> i64:
    value: i64 = 1
    for _ in range(power):
        value *= 10
    return value


def timestamp_options(data: bytes, pos: i64, end: i64, big: bool) -> tuple[i64, i64]:
    """if_tsresol and if_tsoffset from the options of an interface block, or their defaults."""
    resolution: i64 = 6
    offset: i64 = 0
    while end - pos >= 4:
        code = u16(data, pos, big)
        size = u16(data, pos + 2, big)
        if code == 0 or size > end - pos - 4:
            break
        if code == 9 and size >= 1:
            resolution = data[pos + 4]
        elif code == 14 and size >= 8:
            high = u32(data, pos + (4 if big else 8), big)
            low = u32(data, pos + (8 if big else 4), big)
            if high > 0x7FFFFFFF:
                high -= 0x100000000
            offset = (high << 32) | low
        pos += 4 + ((size + 3) & -4)
    return resolution, offset
