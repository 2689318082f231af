# mypyc: compiled
"""The Internet checksum (RFC 1071), for writing headers and for detecting damaged packets."""

from __future__ import annotations

from librt.strings import read_i64_be
from mypy_extensions import i64


def word_sum(data: bytes, pos: i64, end: i64) -> i64:
    """The sum of the 16-bit words of `data[pos:end]`, not folded; the first is at `pos`."""
    total: i64 = 0
    # Several words for each iteration: this runs over every recorded byte.
    while end - pos >= 32:
        one = read_i64_be(data, pos)
        two = read_i64_be(data, pos + 8)
        three = read_i64_be(data, pos + 16)
        four = read_i64_be(data, pos + 24)
        low = (one & 0xFFFFFFFF) + (two & 0xFFFFFFFF) + (three & 0xFFFFFFFF) + (four & 0xFFFFFFFF)
        total += low + sum_high_halves(one, two) + sum_high_halves(three, four)
        pos += 32
    while end - pos >= 8:
        total += sum_halves(read_i64_be(data, pos))
        pos += 8
    while end - pos >= 2:
        first: i64 = data[pos]
        second: i64 = data[pos + 1]
        total += first * 256 + second
        pos += 2
    if end > pos:
        last: i64 = data[pos]
        total += last * 256
    return total


def sum_high_halves(one: i64, two: i64) -> i64:
    """The sum of the upper 32 bits of both."""
    return ((one >> 32) & 0xFFFFFFFF) + ((two >> 32) & 0xFFFFFFFF)


def fold(total: i64) -> i64:
    """A sum of words folded to 16 bits: 0xFFFF if it covers a correct checksum."""
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def sum_halves(word: i64) -> i64:
    """The sum of the two halves of a 64-bit word.

    The prefix of a mapped IPv4 address adds 0xFFFF, which is 0 in this arithmetic.
    """
    return (word & 0xFFFFFFFF) + ((word >> 32) & 0xFFFFFFFF)


def ipv4_checksum_is_valid(data: bytes, ip: i64, size: i64) -> bool:
    """Whether an IPv4 header's checksum is correct, or 0: left to the network card."""
    if fold(word_sum(data, ip, ip + size)) == 0xFFFF:
        return True
    return data[ip + 10] == 0 and data[ip + 11] == 0


def tcp_checksum_is_valid(data: bytes, tcp: i64, stop: i64, address_sum: i64) -> bool:
    """Whether a TCP checksum is correct or not computed; `address_sum` sums both addresses.

    A segment captured before the network card computed the checksum (offloading) has 0 there, or
    the sum of the pseudo header with or without the length. Such a segment counts as valid.
    """
    pseudo = address_sum + 6 + stop - tcp
    if fold(pseudo + word_sum(data, tcp, stop)) == 0xFFFF:
        return True
    first: i64 = data[tcp + 16]
    second: i64 = data[tcp + 17]
    stored = first * 256 + second
    return stored in (0, fold(pseudo), fold(address_sum + 6))
