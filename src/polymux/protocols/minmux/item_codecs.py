# mypyc: compiled
"""Encodings of the items of a Minmux stream, for the protocol and for applications.

Minmux leaves the encoding to the instance. A codec encodes and decodes an item and finds where it
ends. polymux has codecs for single bytes and other fixed sizes (`Fixed`), for items with a length
prefix (`Prefixed`) and for a sizing function of the application (`Sized`).
"""

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from polymux.core.varint import INCOMPLETE, INVALID, put_varu64, varu64

# Values of `item_size` for items without a fixed size:
PREFIXED: Final[i64] = -1  # a VarU64 length before each item
CODEC_SIZED: Final[i64] = -2  # measured by the codec
ENDLESS: Final[i64] = -3  # last item only: there is none, the stream cannot end

DEFAULT_MAX_ITEM_BYTES: Final = 65536  # bytes; longer items are rejected by default
MAX_PLAUSIBLE_SIZE: Final = 0x2000000000000000  # 2**61 bytes; still a tagged (unboxed) int

SizeFunction = Callable[[bytes, int, int], int]


class Codec:
    """The encoding of one item type. `item_size` is in bytes, or PREFIXED or CODEC_SIZED."""

    def __init__(self, item_size: i64) -> None:
        self.item_size: i64 = item_size

    def encode(self, item: bytes) -> bytes:
        """Return the encoded item.

        Raises:
            ValueError: this encoding cannot hold the item.
        """
        raise NotImplementedError

    def decode(self, data: bytes) -> bytes:
        """Return the item that `data` holds; `data` is exactly one encoded item."""
        return data

    def measure(self, data: bytes, pos: i64, end: i64) -> i64:
        """Return the size of the item at `pos`: at least 1, or INCOMPLETE or INVALID."""
        raise NotImplementedError

    def count(self, data: bytes) -> int:
        """Return the number of items in `data`.

        Raises:
            ValueError: the last item is incomplete.
        """
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
    """Every item has `size` bytes, at least one. `Fixed(1)` is a stream of bytes."""

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
    """Items measured by a function of the application.

    `sizing(data, pos, end)` returns the size in bytes of the item at `pos`, or 0 if more bytes are
    needed to tell; it raises ValueError if no item can begin like this.
    """

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
    """Reassembles items from a stream's content, which may arrive in any pieces."""

    def __init__(self, codec: Codec, max_item_bytes: int = DEFAULT_MAX_ITEM_BYTES) -> None:
        self.codec = codec
        self.max_item_bytes: i64 = max_item_bytes
        self.pieces: list[bytes] = []
        self.buffered_bytes: i64 = 0  # bytes in `pieces`
        self.bytes_needed: i64 = 1  # lower bound of the next item's size

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Add content and return the items that are complete now, decoded.

        Raises:
            ValueError: an item is longer than `max_item_bytes` or invalid for its codec; nothing
                can be decoded after it.
        """
        self.pieces.append(bytes(data))
        self.buffered_bytes += len(data)
        if self.buffered_bytes < self.bytes_needed:
            return []
        raw = b"".join(self.pieces)
        items: list[bytes] = []
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
            items.append(self.codec.decode(raw[pos : pos + size]))
            pos += size
        self.pieces = [raw[pos:]]
        self.buffered_bytes = end - pos
        return items
