# mypyc: compiled
"""The wire of Minmux: a header octet, perhaps the rest of an id, one number, and a Write's items.

Where a Write ends is not on the wire: the profile gives the size of an item, the writer's own limit
says whether it is the last one, and items that say their own length are sized as they come.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.errors import LocalProtocolError
from polymux.core.frames import Head
from polymux.core.varint import BAD, HUGE, SHORT, put_varu64, varu64, varu64_width
from polymux.protocols.minmux.item_codecs import BOUND, PREFIXED, Codec
from polymux.protocols.minmux.packets import (
    BIAS,
    MOST,
    WORD,
    WRITE,
    add_bias,
    counts_from_one,
    put_number,
    take_bias,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT, Shape
from polymux.protocols.minmux.rules import (
    BAD_ITEM,
    ITEM_TOO_LONG,
    UNASSIGNED_STREAM,
    VARINT_NONCANONICAL,
    VARINT_OVERFLOW,
)
from polymux.protocols.minmux.validation import MinmuxLaw

FEW: Final[i64] = 0x20000000  # so many items of any fixed size are far from 2**63 octets


class MinmuxWire(MinmuxLaw):
    """The only parser and the only writer of packets, and the measure of items."""

    def header(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        if pos >= end:
            return SHORT
        octet: i64 = data[pos]
        at = pos + 1
        number = octet & 63
        flaws: i64 = 0
        value: i64
        if number == BIAS:
            value, at = varu64(data, at, end)
            if at < 0:
                return SHORT
            if -BIAS <= value < 0:
                return self.astray(head, VARINT_OVERFLOW, "a stream id past 2^64-1")
            if self.strict and at - pos - 1 != varu64_width(value):
                flaws = VARINT_NONCANONICAL
            number = add_bias(value)
        value, start = varu64(data, at, end)
        if start < 0:
            return SHORT
        if self.strict and start - at > 1 and start - at != varu64_width(value):
            flaws = VARINT_NONCANONICAL
        writer = writer_of(number)
        kind = (octet >> 6) * 2 + (1 if writer == sender else 0)
        amount: int = value
        if value < 0:
            amount += WORD
        if counts_from_one(kind):
            if value == -1:
                return self.astray(head, VARINT_OVERFLOW, "an amount of 2^64")
            amount += 1
        head.kind = kind
        head.key = number
        head.number = number
        head.opener = writer
        head.size = 0
        head.tail = 0
        head.units = 0
        head.parts = 0
        head.amount = amount
        head.text_size = -1
        head.flaws = flaws
        return start if kind != WRITE else self.extent(sender, start, head)

    def extent(self, sender: i64, start: i64, head: Head) -> i64:
        """How long a Write is: its size, or the parts that are sized as they come."""
        shape = self.profile.shape(head.key)
        if shape is None:
            number: int = head.number
            if number < 0:
                number += WORD
            reason = f"stream {number} is not in the profile, so its items have no known size"
            return self.astray(head, UNASSIGNED_STREAM, reason)
        form = shape.item
        amount = head.amount
        if shape.last != UNIT or form == 0:
            stream = self.streams.find(head.key)
            if stream is not None:
                own = stream.half(sender)
                if self.is_last(own, amount, shape):
                    if shape.last > 0:
                        head.size = shape.last
                    else:
                        head.parts = 1
                    return start
                if form == 0:  # no octets bound the count of such items
                    room: int = HUGE - own.units
                    head.units = amount if amount < room else room
                    return start
        few: i64 = BOUND if amount > BOUND else i64(amount)
        head.units = few
        if form < 0:
            head.parts = few
        elif few > FEW and form > 0 and few > BOUND // form:
            head.size = BOUND  # never whole in anybody's lifetime
        else:
            head.size = few * form
        return start

    def astray(self, head: Head, flaw: i64, reason: str) -> i64:
        """The next packet cannot be found."""
        head.flaws = flaw
        self.reason = reason
        return BAD

    def part(self, sender: i64, data: bytes, pos: i64, end: i64, head: Head) -> i64:
        """As many whole items as are there; or one that is not whole, or has a flaw, alone."""
        shape = self.profile.shape(head.key)
        stream = self.streams.find(head.key)
        assert shape is not None
        codec = shape.items
        if shape.item >= 0 or (shape.last < 0 and stream is not None and stream.extra > 0):
            codec = shape.finale
        at = pos
        while head.parts > 0 and at < end:
            size, flaws = self.item(codec, data, at, end)
            if size < 0:
                if at > pos:
                    break
                if size == BAD:
                    return self.astray(head, flaws, "an item's size cannot be read")
                return SHORT
            if flaws != 0 or size > end - at:
                if at > pos:
                    break
                head.flaws = flaws
                head.parts -= 1
                return size
            head.parts -= 1
            at += size
        return at - pos if at > pos else SHORT

    def item(self, codec: Codec | None, data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
        """Octets of the item at `pos`, or SHORT or BAD; and what is wrong with it."""
        size: i64
        flaws: i64 = 0
        if codec is not None and codec.form != PREFIXED:
            size = codec.measure(data, pos, end)
            if size == BAD:
                return BAD, BAD_ITEM
            if size == SHORT:
                return (BAD, ITEM_TOO_LONG) if end - pos > self.max_frame else (SHORT, flaws)
            return size, (ITEM_TOO_LONG if size > self.max_frame else flaws)
        length, start = varu64(data, pos, end)
        if start < 0:
            return SHORT, flaws
        if length < 0 or length > BOUND:
            return BAD, BAD_ITEM
        if self.strict and start - pos != varu64_width(length):
            flaws = VARINT_NONCANONICAL
        if length > self.max_frame:
            flaws |= ITEM_TOO_LONG
        return start - pos + length, flaws

    def put(self, out: BytesWriter, sender: i64, head: Head, text: bytes) -> None:
        kind = head.kind
        number = head.number
        amount = head.amount - 1 if counts_from_one(kind) else head.amount
        if amount < 0 or amount > MOST:
            raise LocalProtocolError(f"{self.kind_name(kind)} cannot carry {head.amount}")
        group = (kind >> 1) * 64
        if 0 <= number < BIAS:
            out.append(group + number)
        else:
            out.append(group + BIAS)
            put_varu64(out, take_bias(number))
        put_number(out, amount)

    def address(self, sender: i64, head: Head) -> None:
        head.number = head.key
        head.opener = writer_of(head.key)
        head.units = 0
        shape = self.profile.shape(head.key)
        if head.kind == WRITE and shape is not None:
            stream = self.streams.find(head.key)
            room: int = HUGE
            if stream is not None:
                own = stream.half(sender)
                room = 0 if self.is_last(own, head.amount, shape) else HUGE - own.units
            head.units = head.amount if 0 <= head.amount < room else room

    def holds(self, shape: Shape, last: bool, amount: int, octets: bytes) -> bool:
        form = shape.last if last else shape.item
        if form >= 0:
            size: int = form
            return len(octets) == size * amount
        codec = shape.finale if last else shape.items
        return self.count(codec, octets, 0) == amount

    def count(self, codec: Codec | None, octets: bytes, pos: i64) -> int:
        """Items in these octets from `pos` on; -1 if they are not whole or over their limit."""
        end: i64 = len(octets)
        items = 0
        while pos < end:
            size, flaws = self.item(codec, octets, pos, end)
            if size < 0 or flaws != 0 or size > end - pos:
                return -1
            pos += size
            items += 1
        return items
