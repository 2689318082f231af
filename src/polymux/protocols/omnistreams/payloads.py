# mypyc: compiled
"""Helpers for omnistreams payloads: JSON, byte streams in chunks, and request counts.

The protocol carries bytes and leaves their meaning to the applications.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Final

DEFAULT_CHUNK_SIZE: Final = 16384  # bytes
MAX_REQUEST_COUNT: Final = 255  # a request has one byte for its count


def encode_json(value: object) -> bytes:
    """Encode a value as compact JSON in UTF-8, for metadata or a control message.

    Raises:
        ValueError: JSON cannot represent it (NaN, infinity, sets, cycles, lone surrogates).
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as problem:
        raise ValueError(f"JSON cannot say this: {problem}") from None


def decode_json(data: bytes) -> object:
    """Decode JSON in UTF-8 from metadata or a control message.

    Raises:
        ValueError: `data` is not JSON in UTF-8. Empty metadata is not JSON: check for it first.
    """
    try:
        value: object = json.loads(data.decode("utf-8"), parse_constant=reject_constant)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{len(data)} bytes that are no JSON: {problem}") from None
    return value


def reject_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def split_into_chunks(data: bytes, size: int = DEFAULT_CHUNK_SIZE) -> list[bytes]:
    """Split `data` into messages of `size` bytes; the last may be shorter, none if empty.

    Each message costs one credit, so both sides must know the size; put it into the metadata.

    Raises:
        ValueError: `size` is below 1.
    """
    check_chunk_size(size)
    return [data[pos : pos + size] for pos in range(0, len(data), size)]


def rechunk(pieces: Iterable[bytes], size: int = DEFAULT_CHUNK_SIZE) -> Iterator[bytes]:
    """Join and split pieces into messages of exactly `size` bytes; the last may be shorter.

    Raises:
        ValueError: `size` is below 1 (at the first iteration).
    """
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
    """Return the counts of the requests that together request `amount` messages; [] for 0.

    Raises:
        ValueError: `amount` is negative.
    """
    if amount < 0:
        raise ValueError(f"an amount of messages is at least 0, not {amount}")
    whole, rest = divmod(amount, MAX_REQUEST_COUNT)
    return [MAX_REQUEST_COUNT] * whole + ([rest] if rest else [])
