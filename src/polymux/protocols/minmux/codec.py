# mypyc: compiled
"""The wire of Minmux: a header byte, perhaps the rest of an id, one number, and a Write's items.

Where a Write ends is not on the wire: the profile gives the size of an item, the writer's own limit
says whether it is the last one, and items that say their own length are sized as they come.
"""

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.errors import LocalProtocolError
from polymux.core.frames import FrameHeader
from polymux.core.varint import I64_MAX, INCOMPLETE, INVALID, put_varu64, varu64, varu64_width
from polymux.protocols.minmux.item_codecs import MAX_PLAUSIBLE_SIZE, PREFIXED, Codec
from polymux.protocols.minmux.packets import (
    ID_BIAS,
    U64_MAX,
    U64_MODULUS,
    WRITE,
    add_id_bias,
    has_nonzero_amount,
    put_u64,
    remove_id_bias,
    writer_of,
)
from polymux.protocols.minmux.profile import UNIT_LAST_ITEM, StreamFormat
from polymux.protocols.minmux.rules import (
    BAD_ITEM,
    ITEM_TOO_LONG,
    UNASSIGNED_STREAM,
    VARINT_NONCANONICAL,
    VARINT_OVERFLOW,
)
from polymux.protocols.minmux.validation import MinmuxValidation

OVERFLOW_FREE_ITEMS: Final[i64] = (
    0x20000000  # so many items of any fixed size are far from 2**63 bytes
)


class MinmuxCodec(MinmuxValidation):
    """The only parser and the only writer of packets, and the measure of items."""

    def decode_header(self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader) -> i64:
        if pos >= end:
            return INCOMPLETE
        byte: i64 = data[pos]
        at = pos + 1
        number = byte & 63
        flaws: i64 = 0
        value: i64
        if number == ID_BIAS:
            value, at = varu64(data, at, end)
            if at < 0:
                return INCOMPLETE
            if -ID_BIAS <= value < 0:
                return self.fail_decoding(head, VARINT_OVERFLOW, "a stream id past 2^64-1")
            if self.canonical_only and at - pos - 1 != varu64_width(value):
                flaws = VARINT_NONCANONICAL
            number = add_id_bias(value)
        value, start = varu64(data, at, end)
        if start < 0:
            return INCOMPLETE
        if self.canonical_only and start - at > 1 and start - at != varu64_width(value):
            flaws = VARINT_NONCANONICAL
        writer = writer_of(number)
        kind = (byte >> 6) * 2 + (1 if writer == sender else 0)
        amount: int = value
        if value < 0:
            amount += U64_MODULUS
        if has_nonzero_amount(kind):
            if value == -1:
                return self.fail_decoding(head, VARINT_OVERFLOW, "an amount of 2^64")
            amount += 1
        head.kind = kind
        head.key = number
        head.stream_id = number
        head.opener = writer
        head.payload_size = 0
        head.trailer_size = 0
        head.credit_cost = 0
        head.parts_left = 0
        head.amount = amount
        head.text_size = -1
        head.format_violations = flaws
        return start if kind != WRITE else self.fill_write_size(sender, start, head)

    def fill_write_size(self, sender: i64, start: i64, head: FrameHeader) -> i64:
        """How long a Write is: its size, or the parts that are sized as they come."""
        shape = self.profile.format_of(head.key)
        if shape is None:
            number: int = head.stream_id
            if number < 0:
                number += U64_MODULUS
            reason = f"stream {number} is not in the profile, so its items have no known size"
            return self.fail_decoding(head, UNASSIGNED_STREAM, reason)
        form = shape.item_size
        amount = head.amount
        if shape.last_item_size != UNIT_LAST_ITEM or form == 0:
            stream = self.streams.find(head.key)
            if stream is not None:
                own = stream.half(sender)
                if self.is_last_item(own, amount, shape):
                    if shape.last_item_size > 0:
                        head.payload_size = shape.last_item_size
                    else:
                        head.parts_left = 1
                    return start
                if form == 0:  # no bytes bound the count of such items
                    room: int = I64_MAX - own.content_units
                    head.credit_cost = amount if amount < room else room
                    return start
        few: i64 = MAX_PLAUSIBLE_SIZE if amount > MAX_PLAUSIBLE_SIZE else i64(amount)
        head.credit_cost = few
        if form < 0:
            head.parts_left = few
        elif few > OVERFLOW_FREE_ITEMS and form > 0 and few > MAX_PLAUSIBLE_SIZE // form:
            head.payload_size = MAX_PLAUSIBLE_SIZE  # never whole in anybody's lifetime
        else:
            head.payload_size = few * form
        return start

    def fail_decoding(self, head: FrameHeader, violation: i64, reason: str) -> i64:
        """The next packet cannot be found."""
        head.format_violations = violation
        self.undecodable_reason = reason
        return INVALID

    def decode_part_size(
        self, sender: i64, data: bytes, pos: i64, end: i64, head: FrameHeader
    ) -> i64:
        """As many whole items as are there; or one that is not whole, or has a flaw, alone."""
        shape = self.profile.format_of(head.key)
        stream = self.streams.find(head.key)
        assert shape is not None
        codec = shape.item_codec
        if shape.item_size >= 0 or (
            shape.last_item_size < 0 and stream is not None and stream.protocol_state > 0
        ):
            codec = shape.last_item_codec
        at = pos
        while head.parts_left > 0 and at < end:
            size, flaws = self.measure_item(codec, data, at, end)
            if size < 0:
                if at > pos:
                    break
                if size == INVALID:
                    return self.fail_decoding(head, flaws, "an item's size cannot be read")
                return INCOMPLETE
            if flaws != 0 or size > end - at:
                if at > pos:
                    break
                head.format_violations = flaws
                head.parts_left -= 1
                return size
            head.parts_left -= 1
            at += size
        return at - pos if at > pos else INCOMPLETE

    def measure_item(self, codec: Codec | None, data: bytes, pos: i64, end: i64) -> tuple[i64, i64]:
        """Bytes of the item at `pos`, or SHORT or BAD; and what is wrong with it."""
        size: i64
        flaws: i64 = 0
        if codec is not None and codec.item_size != PREFIXED:
            size = codec.measure(data, pos, end)
            if size == INVALID:
                return INVALID, BAD_ITEM
            if size == INCOMPLETE:
                return (
                    (INVALID, ITEM_TOO_LONG)
                    if end - pos > self.max_frame_bytes
                    else (INCOMPLETE, flaws)
                )
            return size, (ITEM_TOO_LONG if size > self.max_frame_bytes else flaws)
        length, start = varu64(data, pos, end)
        if start < 0:
            return INCOMPLETE, flaws
        if length < 0 or length > MAX_PLAUSIBLE_SIZE:
            return INVALID, BAD_ITEM
        if self.canonical_only and start - pos != varu64_width(length):
            flaws = VARINT_NONCANONICAL
        if length > self.max_frame_bytes:
            flaws |= ITEM_TOO_LONG
        return start - pos + length, flaws

    def encode_frame(self, out: BytesWriter, sender: i64, head: FrameHeader, text: bytes) -> None:
        kind = head.kind
        number = head.stream_id
        amount = head.amount - 1 if has_nonzero_amount(kind) else head.amount
        if amount < 0 or amount > U64_MAX:
            raise LocalProtocolError(f"{self.kind_name(kind)} cannot carry {head.amount}")
        group = (kind >> 1) * 64
        if 0 <= number < ID_BIAS:
            out.append(group + number)
        else:
            out.append(group + ID_BIAS)
            put_varu64(out, remove_id_bias(number))
        put_u64(out, amount)

    def resolve_ids(self, sender: i64, head: FrameHeader) -> None:
        head.stream_id = head.key
        head.opener = writer_of(head.key)
        head.credit_cost = 0
        shape = self.profile.format_of(head.key)
        if head.kind == WRITE and shape is not None:
            stream = self.streams.find(head.key)
            room: int = I64_MAX
            if stream is not None:
                own = stream.half(sender)
                room = (
                    0 if self.is_last_item(own, head.amount, shape) else I64_MAX - own.content_units
                )
            head.credit_cost = head.amount if 0 <= head.amount < room else room

    def holds_items(
        self, stream_format: StreamFormat, last: bool, amount: int, data: bytes
    ) -> bool:
        form = stream_format.last_item_size if last else stream_format.item_size
        if form >= 0:
            size: int = form
            return len(data) == size * amount
        codec = stream_format.last_item_codec if last else stream_format.item_codec
        return self.count_encoded(codec, data, 0) == amount

    def count_encoded(self, codec: Codec | None, data: bytes, pos: i64) -> int:
        """Items in these bytes from `pos` on; -1 if they are not whole or over their limit."""
        end: i64 = len(data)
        items = 0
        while pos < end:
            size, flaws = self.measure_item(codec, data, pos, end)
            if size < 0 or flaws != 0 or size > end - pos:
                return -1
            pos += size
            items += 1
        return items
