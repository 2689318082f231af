# mypyc: compiled
"""Durations, sizes and rates as text, and sizes read from text.

The only formatter of the project: the report's page (`dom.js`) prints the same text for the same
number. A unit is chosen by the rounded value, so that 999.6 ms is `1 s` and never `1000 ms`.
"""

import re
from typing import Final

from mypy_extensions import i64

KIB: Final = 1024
MIB: Final = 1048576
GIB: Final = 1073741824
TIB: Final = 1099511627776
SIZE_UNITS: Final = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


def duration_text(ns: i64) -> str:
    """A duration in nanoseconds: `350 us`, `80 ms`, `2.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if ns < 1_000_000:
        return f"{ns // 1000} us"
    value = float(ns) / 1e6
    if value < 999.5:
        return f"{format_number(value)} ms"
    value = float(ns) / 1e9
    if value < 119.5:
        return f"{format_number(value)} s"
    seconds = ns // 1_000_000_000
    if ns % 1_000_000_000 >= 500_000_000:
        seconds += 1
    if seconds < 7_200:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def size_text(size: int) -> str:
    """A number of bytes: `500 bytes`, `100 KiB`, `1.5 MiB`."""
    if size < KIB:
        return f"{size} bytes" if size != 1 else "1 byte"
    value = float(size) / KIB
    if value < 1023.5:
        return f"{format_number(value)} KiB"
    value = float(size) / MIB
    if value < 1023.5:
        return f"{format_number(value)} MiB"
    value = float(size) / GIB
    if value < 1023.5:
        return f"{format_number(value)} GiB"
    return f"{format_number(float(size) / TIB)} TiB"


def rate_text(size: int, ns: i64) -> str:
    """`size` bytes in `ns` nanoseconds, as bits per second: `10 Mbit/s`."""
    value = float(size) * 8e9 / float(ns if ns > 0 else 1)
    if value < 999.5:
        return f"{format_number(value)} bit/s"
    value /= 1e3
    if value < 999.5:
        return f"{format_number(value)} kbit/s"
    value /= 1e3
    if value < 999.5:
        return f"{format_number(value)} Mbit/s"
    return f"{format_number(value / 1e3)} Gbit/s"


def format_number(value: float) -> str:
    """One decimal below 10, none from there on; `.0` is left out. Halves are rounded up.

    Rounding is done by hand because `format` and JavaScript's `toFixed` treat halves differently.
    """
    tenths = int(value * 10.0 + 0.5)
    if tenths >= 100:
        return f"{int(value + 0.5)}"
    whole = tenths // 10
    return f"{whole}.{tenths % 10}" if tenths % 10 != 0 else f"{whole}"


def parse_bytes(text: str) -> int | None:
    """Return a number of bytes, with or without a unit (65536, 64M, 2 GiB); None: it is none."""
    match = re.fullmatch(r"(\d{1,16})\s*([kmgt]?)(i?b)?", text.strip().lower())
    return None if match is None else int(match[1]) * SIZE_UNITS[match[2]]
