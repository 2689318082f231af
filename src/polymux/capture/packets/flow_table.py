# mypyc: compiled
"""Numbering flows: the two endpoints of a TCP connection become a flow number and a direction."""

from __future__ import annotations

import os
from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i16_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i16, i64

from polymux.capture.packets.packet_refs import LOW32

TABLE_FULL: Final[i64] = -1
IPV4_MAPPED: Final[i64] = 0xFFFF00000000
KEY_WORDS: Final[i64] = 5


class FlowTable:
    """Flows in order of their first packet: a hash table with open addressing over columns.

    The hash is seeded at random, so that a capture cannot be crafted to make flows collide.
    An address is two signed 64-bit halves (IPv4 as ::ffff:a.b.c.d). The *first* endpoint of a
    flow is the smaller one by (high, low, port), so both directions find the same flow.
    """

    def __init__(self, limit: i64) -> None:
        self.limit: i64 = limit
        self.count: i64 = 0
        self.refused_packets: i64 = 0
        self.mask: i64 = 255
        self.shift: i64 = 56  # 64 less the bits of the mask
        seed = os.urandom(72)
        self.mix0: i64 = read_i64_le(seed, 0)
        self.mix1: i64 = read_i64_le(seed, 8)
        self.mix2: i64 = read_i64_le(seed, 16)
        self.mix3: i64 = read_i64_le(seed, 24)
        self.mix4: i64 = read_i64_le(seed, 32)
        self.mix5: i64 = read_i64_le(seed, 40)
        self.mix6: i64 = read_i64_le(seed, 48)
        self.mix7: i64 = read_i64_le(seed, 56)
        self.mix8: i64 = read_i64_le(seed, 64)
        self.slots: vec[i64] = vec[i64]([-1] * 256)
        self.keys: vec[i64] = vec[i64]()  # five words for each flow: both addresses, ports

    def direction_index(self, high: i64, low: i64, to_high: i64, to_low: i64, ports: i64) -> i64:
        """Twice the flow's number, plus 1 if its second endpoint sent; TABLE_FULL past the limit.

        `ports` is source port << 16 | target port.
        """
        back: i64 = 0
        if high > to_high or (high == to_high and low >= to_low):
            source = ports >> 16
            target = ports & 0xFFFF
            if high != to_high or low != to_low or source > target:
                back = 1
                ports = (target << 16) | source
                high, to_high = to_high, high
                low, to_low = to_low, low
        keys = self.keys
        slot = self.slot_of(high, low, to_high, to_low, ports)
        while True:
            flow = self.slots[slot]
            if flow < 0:
                flow = self.add(slot, high, low, to_high, to_low, ports)
                return flow if flow == TABLE_FULL else flow * 2 + back
            key = flow * KEY_WORDS
            if (
                keys[key + 4] == ports
                and keys[key + 1] == low
                and keys[key + 3] == to_low
                and keys[key] == high
                and keys[key + 2] == to_high
            ):
                return flow * 2 + back
            slot = (slot + 1) & self.mask

    def slot_of(self, high1: i64, low1: i64, high2: i64, low2: i64, ports: i64) -> i64:
        """The slot at which probing for a flow starts.

        Thorup's pair-multiply-shift: any two flows collide with low probability. It multiplies
        halves of words and uses the top bits of the 64-bit sum. The products wrap when compiled
        and do not when interpreted; since a single shift and a mask follow, both give the same
        slot.
        """
        mixed = (
            (self.mix0 + (high1 & LOW32)) * (self.mix1 + ((high1 >> 32) & LOW32))
            + (self.mix2 + (low1 & LOW32)) * (self.mix3 + ((low1 >> 32) & LOW32))
            + (self.mix4 + (high2 & LOW32)) * (self.mix5 + ((high2 >> 32) & LOW32))
            + (self.mix6 + (low2 & LOW32)) * (self.mix7 + ((low2 >> 32) & LOW32))
            + self.mix8 * ports
        )
        return (mixed >> self.shift) & self.mask

    def add(self, slot: i64, high1: i64, low1: i64, high2: i64, low2: i64, ports: i64) -> i64:
        if self.count >= self.limit:
            self.refused_packets += 1
            return TABLE_FULL
        flow = self.count
        self.count += 1
        self.slots[slot] = flow
        keys = append(append(append(append(self.keys, high1), low1), high2), low2)
        self.keys = append(keys, ports)
        if self.count * 2 > self.mask:
            self.grow()
        return flow

    def grow(self) -> None:
        self.mask = self.mask * 4 + 3
        self.shift -= 2
        self.slots = vec[i64]([-1] * (self.mask + 1))
        for flow in range(self.count):
            k = flow * KEY_WORDS
            keys = self.keys
            slot = self.slot_of(keys[k], keys[k + 1], keys[k + 2], keys[k + 3], keys[k + 4])
            while self.slots[slot] >= 0:
                slot = (slot + 1) & self.mask
            self.slots[slot] = flow

    def key(self, flow: i64) -> bytes:
        """The key of a flow: first and second address (16 bytes each), first and second port."""
        writer = BytesWriter()
        for n in range(flow * KEY_WORDS, flow * KEY_WORDS + 4):
            write_i64_be(writer, self.keys[n])
        ports = self.keys[flow * KEY_WORDS + 4]
        write_i16_be(writer, to_i16(ports >> 16))
        write_i16_be(writer, to_i16(ports & 0xFFFF))
        return writer.getvalue()


def to_i16(port: i64) -> i16:
    """The 16 bits of a port as the signed number `write_i16_be` takes."""
    if port > 0x7FFF:
        port -= 0x10000
    return i16(port)
