"""Traffic for benchmarks: frames of three protocols, encoded without polymux's own code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

DIALER, ACCEPTOR = 0, 1
WINDOW = 64 * 1024 * 1024  # largest window that polymux accepts

Step = tuple[int, bytes]  # side, bytes


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def mplex_frame(number: int, flag: int, payload: bytes = b"") -> bytes:
    return varint(number * 8 + flag) + varint(len(payload)) + payload


def msgpack_int(value: int) -> bytes:
    """Encode a msgpack integer in its shortest form."""
    if value < 0:
        return bytes([value & 255])
    if value < 128:
        return bytes([value])
    for code, width in ((0xCC, 1), (0xCD, 2), (0xCE, 4)):
        if value < 256**width:
            return bytes([code]) + value.to_bytes(width, "big")
    return b"\xcf" + value.to_bytes(8, "big")


def msgpack_binary(payload: bytes) -> bytes:
    for code, width in ((0xC4, 1), (0xC5, 2), (0xC6, 4)):
        if len(payload) < 256**width:
            return bytes([code]) + len(payload).to_bytes(width, "big") + payload
    raise ValueError("a payload of 4 GiB or more")


def nerdbank_frame(code: int, number: int, source: int, payload: bytes = b"") -> bytes:
    head = bytes([0x94 if payload else 0x93, code]) + msgpack_int(number) + msgpack_int(source)
    return head + (msgpack_binary(payload) if payload else b"")


@dataclass
class Traffic:
    """One connection: bytes that open its streams, then `frames` content frames of the dialer."""

    protocol: str
    opening: list[Step]
    content: bytes
    frames: int


def mplex_content(sizes: Iterable[int], streams: int, seed: int, whole: bool) -> Traffic:
    """Content on random streams of `streams`. `whole`: sizes include the header."""
    rng = Random(seed)
    opening = b"".join(mplex_frame(2 * n + 1, 0) for n in range(streams))
    out = []
    for size in sizes:
        number = 2 * rng.randrange(streams) + 1
        if whole:
            size -= len(varint(number * 8)) + (1 if size < 130 else 2)
        out.append(mplex_frame(number, 2, bytes(size)))
    return Traffic("mplex", [(DIALER, opening)], b"".join(out), len(out))


def nerdbank_content(sizes: Iterable[int], streams: int, seed: int, whole: bool) -> Traffic:
    """The same on channels that were offered and accepted; a window of 64 MiB each way."""
    rng = Random(seed)
    window = msgpack_int(WINDOW)
    offers = [nerdbank_frame(0, n + 1, 1, b"\x92\xa0" + window) for n in range(streams)]
    acceptances = [nerdbank_frame(1, n + 1, -1, b"\x91" + window) for n in range(streams)]
    out = []
    for size in sizes:
        number = rng.randrange(streams) + 1
        if whole:
            size -= 3 + len(msgpack_int(number)) + (2 if size < 256 else 3)
        out.append(nerdbank_frame(2, number, 1, bytes(size)))
    opening = [(DIALER, b"".join(offers)), (ACCEPTOR, b"".join(acceptances))]
    return Traffic("nerdbank", opening, b"".join(out), len(out))


def streamux_content(sizes: Iterable[int], streams: int, seed: int, whole: bool) -> Traffic:
    """Chunks of requests on random ids; 17 bits of length and 13 of id on both sides."""
    rng = Random(seed)
    initiator = bytes([1, 17, 13, 0])
    out = []
    for size in sizes:
        size -= 4 if whole else 0
        out.append((size << 13 | rng.randrange(streams)).to_bytes(4, "little") + bytes(size))
    return Traffic(
        "streamux", [(DIALER, initiator), (ACCEPTOR, initiator)], b"".join(out), len(out)
    )


MAKERS = {"mplex": mplex_content, "nerdbank": nerdbank_content, "streamux": streamux_content}


def content(
    protocol: str, sizes: Iterable[int], streams: int = 1000, whole: bool = True
) -> Traffic:
    return MAKERS[protocol](sizes, streams, 1, whole)


def mixed_sizes(total_bytes: int, seed: int = 2) -> list[int]:
    """Frame sizes from 16 bytes to 4 KiB, each power of two as likely as the next."""
    rng = Random(seed)
    sizes: list[int] = []
    total = 0
    while total < total_bytes:
        sizes.append(int(2 ** rng.uniform(4, 12)))
        total += sizes[-1]
    return sizes


# Traffic with violations, to compare two implementations


def random_frames(protocol: str, steps: int = 4000, seed: int = 3) -> list[Step]:
    """Frames of every kind on few ids by both sides, in random order.

    No id is opened twice by a side: which use of an id a late frame is about takes a history of
    that id, which the C reference does not keep.
    """
    rng = Random(seed)
    opened: set[tuple[int, int]] = set()
    return [random_frame(protocol, rng, opened) for _ in range(steps)]


def random_frame(protocol: str, rng: Random, opened: set[tuple[int, int]]) -> Step:
    side, number = rng.randrange(2), rng.randrange(1, 400)
    payload = bytes(rng.choice((0, 1, 5, 40, 200)))
    if protocol == "mplex":
        flag = rng.choice((0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7))
        if flag == 0 and (side, number) in opened:
            flag = 2
        elif flag == 0:
            opened.add((side, number))
        frame = mplex_frame(number, flag, payload if flag < 3 or rng.random() < 0.1 else b"")
        if rng.random() < 0.01:  # a length that is not in its shortest form
            frame = varint(number * 8 + flag) + b"\x80\x00"
        return side, frame
    code = rng.choice((0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9))
    source = 1 if code == 0 and rng.random() < 0.9 else rng.choice((1, -1))
    owner = (side if source == 1 else 1 - side, number)
    if code == 0 and owner in opened:
        code = 2
    elif code == 0:
        opened.add(owner)
    amount = msgpack_int(rng.choice((1, 30, 100, 300, 1000)))
    if code == 0:
        payload = (b"\x92\xa1n" + amount) if rng.random() < 0.95 else b"\x91\xa1n"
    elif code in (1, 5, 7):
        payload = b"\x91" + amount
    elif code != 2:
        payload = b""
    return side, nerdbank_frame(code, number, source, payload)
