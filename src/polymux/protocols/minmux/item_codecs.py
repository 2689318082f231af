# mypyc: compiled
"""How the items of a Minmux stream are encoded, for the rule book and for users.

Minmux leaves this to the instance. A codec turns an item into its bytes and back, and finds where
an item ends. Four come with polymux: single bytes, a fixed size, a length before each item, and
a sizing function of your own.
"""

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.varint import INCOMPLETE, INVALID, put_varu64, varu64

# What stands for a size where there is no fixed one.
PREFIXED: Final[i64] = -1  # a VarU64 length before each item
CODEC_SIZED: Final[i64] = -2  # a codec's own measure
ENDLESS: Final[i64] = -3  # no last item at all: the stream cannot end

DEFAULT_MAX_ITEM_BYTES: Final = 65536  # bytes of an item accepted unless somebody says otherwise
MAX_PLAUSIBLE_SIZE: Final = (
    0x2000000000000000  # 2**61: nothing longer can be meant; a plain int, still small
)

SizeFunction = Callable[[bytes, int, int], int]


class Codec:
    """The encoding of one type of item. `form` is its size, or what stands for one."""

    def __init__(self, item_size: i64) -> None:
        self.item_size: i64 = item_size

    def encode(self, item: bytes) -> bytes:
        """The item's bytes on the wire; ValueError if this encoding cannot hold it."""
        raise NotImplementedError

    def decode(self, data: bytes) -> bytes:
        """The item in these bytes, which are exactly one item's."""
        return data

    def measure(self, data: bytes, pos: i64, end: i64) -> i64:
        """Bytes of the item at `pos`: at least 1, or SHORT (too few to tell) or BAD."""
        raise NotImplementedError

    def count(self, data: bytes) -> int:
        """How many items these bytes are; ValueError if the last is not whole."""
        pos: i64 = 0
        end: i64 = len(data)
        items = 0
        while pos < end:
            size = self.measure(data, pos, end)
            if size <= 0 or size > end - pos:
                raise ValueError(f"the bytes end inside item {items}")
            pos += size
            items += 1
        return items


class Fixed(Codec):
    """Every item has the same number of bytes, at least one. `Fixed(1)`: a stream of bytes."""

    def __init__(self, size: int) -> None:
        if size < 1 or size >= MAX_PLAUSIBLE_SIZE:
            raise ValueError(f"a fixed item has at least 1 byte, not {size}")
        super().__init__(size)
        self.size: i64 = size

    def encode(self, item: bytes) -> bytes:
        if len(item) != self.size:
            raise ValueError(f"an item of this stream has {self.size} bytes, not {len(item)}")
        return item

    def measure(self, data: bytes, pos: i64, end: i64) -> i64:
        return self.size

    def count(self, data: bytes) -> int:
        if len(data) % self.size:
            raise ValueError(f"{len(data)} bytes are no whole number of {self.size}-byte items")
        return len(data) // self.size


class Prefixed(Codec):
    """A VarU64 length, then that many bytes. An item may be empty."""

    def __init__(self) -> None:
        super().__init__(PREFIXED)

    def encode(self, item: bytes) -> bytes:
        out = BytesWriter()
        put_varu64(out, len(item))
        out.write(item)
        return out.getvalue()

    def decode(self, data: bytes) -> bytes:
        _, start = varu64(data, 0, len(data))
        return data[start:] if start > 0 else b""

    def measure(self, data: bytes, pos: i64, end: i64) -> i64:
        length, start = varu64(data, pos, end)
        if start < 0:
            return INCOMPLETE
        if length < 0 or length > MAX_PLAUSIBLE_SIZE:
            return INVALID
        return start - pos + length


class Sized(Codec):
    """Items that say their own size. `sizing(data, pos, end)` returns the bytes of the item at
    `pos`, 0 while too few have come to tell, and raises ValueError where no item can begin so."""

    def __init__(self, sizing: SizeFunction) -> None:
        super().__init__(CODEC_SIZED)
        self.sizing = sizing

    def encode(self, item: bytes) -> bytes:
        if self.measure(item, 0, len(item)) != len(item):
            raise ValueError(f"these {len(item)} bytes are not exactly one item of this stream")
        return item

    def measure(self, data: bytes, pos: i64, end: i64) -> i64:
        try:
            size = self.sizing(data, pos, end)
        except (ValueError, IndexError):
            return INVALID
        if size == 0:
            return INCOMPLETE
        return size if 0 < size < MAX_PLAUSIBLE_SIZE else INVALID


class ItemDecoder:
    """Puts items together again from a stream's content, in whatever pieces it comes.

    An item longer than `limit`, or one that its codec cannot make out, is a ValueError; nothing
    can be read after it.
    """

    def __init__(self, codec: Codec, max_item_bytes: int = DEFAULT_MAX_ITEM_BYTES) -> None:
        self.codec = codec
        self.max_item_bytes: i64 = max_item_bytes
        self.pieces: list[bytes] = []
        self.buffered_bytes: i64 = 0  # bytes in `pieces`
        self.bytes_needed: i64 = 1  # bytes the next item has, as far as is known

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """More content; returns the items that are whole now, decoded."""
        self.pieces.append(bytes(data))
        self.buffered_bytes += len(data)
        if self.buffered_bytes < self.bytes_needed:
            return []
        raw = b"".join(self.pieces)
        found: list[bytes] = []
        pos: i64 = 0
        end: i64 = len(raw)
        self.bytes_needed = 1
        while pos < end:
            size = self.codec.measure(raw, pos, end)
            if size == INVALID:
                raise ValueError("no item can begin like this")
            if size > self.max_item_bytes or (
                size == INCOMPLETE and end - pos > self.max_item_bytes
            ):
                raise ValueError(
                    f"an item of more than {self.max_item_bytes} bytes; "
                    "raise ItemDecoder(max_item_bytes=...)"
                )
            if size == INCOMPLETE or size > end - pos:
                self.bytes_needed = size if size > 0 else end - pos + 1
                break
            found.append(self.codec.decode(raw[pos : pos + size]))
            pos += size
        self.pieces = [raw[pos:]]
        self.buffered_bytes = end - pos
        return found
