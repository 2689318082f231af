# mypyc: compiled
"""Unsigned integers read from `bytes`. The caller checks that they lie inside."""

from __future__ import annotations

from librt.strings import read_i16_be, read_i16_le, read_i32_be, read_i32_le
from mypy_extensions import i64


def u16(data: bytes, pos: i64, big: bool) -> i64:
    return i64(read_i16_be(data, pos) if big else read_i16_le(data, pos)) & 0xFFFF


def u32(data: bytes, pos: i64, big: bool) -> i64:
    return i64(read_i32_be(data, pos) if big else read_i32_le(data, pos)) & 0xFFFFFFFF


def net16(data: bytes, pos: i64) -> i64:
    """A 16-bit number in network byte order."""
    return i64(read_i16_be(data, pos)) & 0xFFFF
