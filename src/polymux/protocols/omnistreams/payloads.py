# mypyc: compiled
"""What applications put into omnistreams messages: JSON, and byte streams cut into chunks.

The protocol itself carries bytes and leaves their meaning to both sides. Pure functions.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

DEFAULT_CHUNK_SIZE: Final = 16384  # bytes of a message where a byte stream is cut into messages
MAX_REQUEST_COUNT: Final = 255  # a request has one byte for its count


def encode_json(value: object) -> bytes:
    """Metadata or a control message from a value: compact JSON in UTF-8.

    Raises ValueError for what JSON cannot say (NaN, infinity, sets, loops, lone surrogates).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"JSON cannot say this: {problem}") from None


def decode_json(data: bytes) -> object:
    """The value in metadata or a control message, which the peer may have filled with anything.

    Raises ValueError if it is not JSON in UTF-8. Empty metadata is no JSON: test for it first.
    """
    try:
        value: object = json.loads(data.decode("utf-8"), parse_constant=reject_constant)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{len(data)} bytes that are no JSON: {problem}") from None
    return value


def reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def split_into_chunks(data: bytes, size: int = DEFAULT_CHUNK_SIZE) -> list[bytes]:
    """A piece of a byte stream as messages of `size` bytes, the last one shorter; none if empty.

    Each message costs one credit, so both sides must know the size: say it in the metadata.
    """
    check_chunk_size(size)
    return [data[pos : pos + size] for pos in range(0, len(data), size)]


def rechunk(pieces: Iterable[bytes], size: int = DEFAULT_CHUNK_SIZE) -> Iterator[bytes]:
    """Pieces of any sizes as messages of exactly `size` bytes; only the last may be shorter."""
    check_chunk_size(size)
    held: list[bytes] = []
    byte_count = 0
    for piece in pieces:
        held.append(piece)
        byte_count += len(piece)
        if byte_count >= size:
            joined = b"".join(held)
            whole = byte_count - byte_count % size
            for pos in range(0, whole, size):
                yield joined[pos : pos + size]
            held = [joined[whole:]]
            byte_count -= whole
    if byte_count > 0:
        yield b"".join(held)


def check_chunk_size(size: int) -> None:
    if size < 1:
        raise ValueError(f"a chunk has at least 1 byte, not {size}")


def request_counts(amount: int) -> list[int]:
    """The counts of the requests that together ask for `amount` messages; none for 0."""
    if amount < 0:
        raise ValueError(f"an amount of messages is at least 0, not {amount}")
    whole, rest = divmod(amount, MAX_REQUEST_COUNT)
    return [MAX_REQUEST_COUNT] * whole + ([rest] if rest else [])
