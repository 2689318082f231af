"""Credit at the limits of 64 bits, in any order: violations, never a crash (R7)."""

from __future__ import annotations

import contextlib
import os
import struct
from random import Random

import pytest
from tests.attacks import raw_frames as words

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.protocols.registry import create

SOAK = float(os.environ.get("POLYMUX_SOAK") or 0)  # minutes asked for; 0: the fast form
PROTOCOLS = ["nerdbank:version=2", "nerdbank:version=3", "omnistreams:carrier=length", "minmux",
             "yamux"]  # fmt: skip
DEMANDED = 10_000_000  # inputs of all protocols together
INPUTS = int(min(1.0, SOAK / 10) * DEMANDED / len(PROTOCOLS)) if SOAK else 6_000
AT_ONCE = 200  # frames a conversation is fed with
EDGES = sorted({max(0, (1 << bits) + near) for bits in (0, 7, 8, 15, 16, 31, 32, 53, 62, 63, 64)
                for near in (-2, -1, 0, 1)} - {1 << 64, (1 << 64) + 1})  # fmt: skip
BELOW_ZERO = [b"\xff", b"\xd0\x80", b"\xd3" + struct.pack(">q", -1), b"\xd3\x80" + bytes(7)]
HELLO = {"nerdbank:version=2": words.HELLO[2]}


def nerdbank(version: int) -> list[bytes]:
    """Every frame that moves a window, with every number, on channels of either side."""
    wire = words.Nerdbank(version)
    numbers = [words.msgpack_uint(edge) for edge in EDGES] + BELOW_ZERO
    frames: list[bytes] = []
    for channel in range(1, 6):
        for number in numbers:
            offer = b"\x92\xa1x" + number
            frames.append(wire.frame(words.OFFER, channel, offer))
            for source in (1, -1):
                for code in (words.ACCEPTED, words.PROCESSED, words.ADJUST):
                    frames.append(wire.frame(code, channel, b"\x91" + number, source))
        for source in (1, -1):
            frames += [wire.frame(words.CONTENT, channel, bytes(size), source) for size in (1, 999)]
            frames.append(wire.frame(words.GROWTH, channel, source=source))
            frames.append(wire.frame(words.TERMINATED, channel, source=source))
    return frames


def omnistreams() -> list[bytes]:
    frames: list[bytes] = []
    for number in range(4):
        one = bytes([number])
        frames += [words.omni(words.REQUEST, one + bytes([count])) for count in range(256)]
        frames += [words.omni(words.CREATE, one), words.omni(words.END, one)] * 8
        frames += [words.omni(words.DATA, one + bytes(size)) for size in (0, 1, 9)] * 20
    return frames


def minmux() -> list[bytes]:
    frames: list[bytes] = []
    for number in range(1, 7):
        for edge in EDGES:
            frames += [words.stop(number, edge), words.oops(number, edge)]
            if edge:
                frames += [words.promise(number, edge), words.give_credit(number + 1, edge)]
        frames += [words.write_items(number, bytes(size)) for size in (1, 5, 70)] * 10
    return frames


def yamux() -> list[bytes]:
    """Window updates with every number of 32 bits, on streams of either side."""
    frames: list[bytes] = []
    for number in range(1, 6):
        for edge in (edge for edge in EDGES if edge < 1 << 32):
            for flags in (0, words.SYN, words.ACK):
                frames.append(words.yamux(words.YAMUX_UPDATE, flags, number, edge))
        frames += [
            words.yamux(words.YAMUX_DATA, 0, number, 0, bytes(size)) for size in (1, 999)
        ] * 9
        frames.append(words.yamux(words.YAMUX_UPDATE, words.RST, number))
    return frames


POOLS = {"nerdbank:version=2": nerdbank(2), "nerdbank:version=3": nerdbank(3),
         "omnistreams:carrier=length": omnistreams(), "minmux": minmux(),
         "yamux": yamux()}  # fmt: skip


def watched(protocol: str, frames: list[bytes], chance: Random) -> None:
    """An observer validates every frame, also after violations."""
    observer = Observer(create(protocol, Limits()))
    for side in (0, 1):
        random = words.ODD if side == 0 else bytes(16)
        observer.feed(side, HELLO.get(protocol, b"").replace(words.ODD, random), 0)
    at = 0
    for frame in frames:
        at += 1000
        observer.feed(chance.getrandbits(1), frame, at)
    observer.finish(at, True, True)
    assert observer.accounts_for_all_bytes()
    for violation in observer.take_violations():
        assert violation.rule.name


def answered(protocol: str, frames: list[bytes]) -> None:
    """An endpoint ends at the first frame that violates a fatal rule, and names it."""
    endpoint = Endpoint(create(protocol, Limits(), vantage=1), 1, direct=True)
    endpoint.start(bytes(16))
    with contextlib.suppress(PeerViolation, LimitExceeded):
        endpoint.receive(HELLO.get(protocol, b""), 1.0)
        for frame in frames:
            endpoint.receive(frame, 1.0)
            endpoint.data_to_send()


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_number_and_no_order_of_credit_does_harm(protocol: str) -> None:
    chance = Random(protocol)
    pool = POOLS[protocol]
    done = 0
    while done < INPUTS:
        frames = chance.choices(pool, k=AT_ONCE)
        try:
            watched(protocol, frames, chance)
            answered(protocol, frames)
        except Exception as problem:
            raise AssertionError(f"{protocol}: {b''.join(frames).hex()}") from problem
        done += AT_ONCE
    print(f"R7 {protocol}: {done} inputs, {len(pool)} different frames")
