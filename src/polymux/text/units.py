# mypyc: compiled
"""Durations, sizes and rates as a person would say them."""

from typing import Final

from mypy_extensions import i64

KIB: Final = 1024
MIB: Final = 1048576
GIB: Final = 1073741824
TIB: Final = 1099511627776


def duration_text(ns: i64) -> str:
    """`350 us`, `80 ms`, `2.5 s`, `3 min 20 s`, `2 h 5 min`."""
    if ns < 1_000_000:
        return f"{ns // 1000} us"
    if ns < 1_000_000_000:
        return f"{format_number(float(ns) / 1e6)} ms"
    if ns < 120_000_000_000:
        return f"{format_number(float(ns) / 1e9)} s"
    seconds = ns // 1_000_000_000
    if seconds < 7_200:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def size_text(size: int) -> str:
    """`500 bytes`, `100 KiB`, `1.5 MiB`."""
    if size < KIB:
        return f"{size} bytes" if size != 1 else "1 byte"
    if size < MIB:
        return f"{format_number(float(size) / KIB)} KiB"
    if size < GIB:
        return f"{format_number(float(size) / MIB)} MiB"
    if size < TIB:
        return f"{format_number(float(size) / GIB)} GiB"
    return f"{format_number(float(size) / TIB)} TiB"


def rate_text(size: int, ns: i64) -> str:
    """So many bytes in so long a time, as bits a second: `10 Mbit/s`."""
    bits = float(size) * 8e9 / float(ns if ns > 0 else 1)
    if bits < 1e3:
        return f"{format_number(bits)} bit/s"
    if bits < 1e6:
        return f"{format_number(bits / 1e3)} kbit/s"
    if bits < 1e9:
        return f"{format_number(bits / 1e6)} Mbit/s"
    return f"{format_number(bits / 1e9)} Gbit/s"


def format_number(value: float) -> str:
    """Two significant digits below 10, whole numbers above; no `.0`."""
    if value >= 9.95:
        return f"{value:.0f}"
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text
