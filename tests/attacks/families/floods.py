"""Frames that carry next to nothing, by the hundred thousand (ATK-10 to 12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
    ALL,
    MINMUX,
    MPLEX,
    OMNI,
    PAIRS,
    PROFILE,
    STREAMUX,
    V1,
    V2,
    V3,
    WS,
    YAMUX,
    content,
    flooding,
    nerdbank,
    opening,
    over_websocket,
    repeated,
)  # fmt: skip
from tests.attacks.runner import ENDED, SOAK, UNHARMED, Attack, Play, Scene, until_read

TINY = 1_000_000 if SOAK else 60_000  # frames of one byte
LEAST = 100_000  # of them a second of the server's processor time
IDLE = ("empty_frame_burst", "too many frames")


def dribbling(protocol: str) -> Play:
    """One byte per frame, within the credit; every frame must be processed at a low cost."""

    async def play(scene: Scene) -> None:
        foe = scene.foe
        await foe.dial()
        await foe.send(opening(protocol, 0) if protocol != MINMUX else b"")
        await until_read(scene)
        before = (await scene.told())["frames"]
        one = content(protocol, 0, b"x")
        count = LEAVE.get(protocol, TINY)
        cpu, began = scene.target.cpu(), time.monotonic()
        await foe.flood(one * 1000 for _ in range(count // 1000))
        while (seen := (await scene.told())["frames"] - before) < count:
            if time.monotonic() - began > 120 or foe.closed:
                raise AssertionError(f"{seen} frames of {count} were seen")
            await asyncio.sleep(0.01)
        rate = count / max(0.01, scene.target.cpu() - cpu)
        scene.notes.append(f"{count} tiny frames, {rate / 1000:.0f} k/s of its processor")
        assert rate >= LEAST, f"only {rate:.0f} tiny frames a second of processor time"

    return play


# What may be sent without more leave: a window of bytes, messages on order, credit.
LEAVE = {V2: 60_000, V3: 60_000, OMNI: 0, MINMUX: 60_000, YAMUX: 60_000}


def dribble() -> list[Attack]:
    return [
        Attack(10, "one byte a frame", protocol, dribbling(protocol), UNHARMED, memory=16,
               mode="slow" if protocol == STREAMUX else "read")
        for protocol in ALL
        if protocol != OMNI  # messages need leave one by one: see data without an end
    ]  # fmt: skip


def empty() -> list[Attack]:
    made = [
        Attack(11, "content of nothing", protocol,
               repeated(opening(protocol, 0), content(protocol, 0, b"")), ENDED, IDLE)
        for protocol in (MPLEX, V1, V2, V3)
    ]  # fmt: skip
    made += [
        Attack(11, "control messages of nothing", OMNI, repeated(b"", words.omni(words.CONTROL)),
               ENDED, IDLE),
        Attack(11, "empty messages", OMNI, repeated(b"", bytes(4)), ENDED,
               (*IDLE, "unknown_stream_burst")),
        Attack(11, "empty messages", WS, repeated(b"", words.websocket(b"")), ENDED,
               (*IDLE, "unknown_stream_burst")),
        Attack(11, "empty fragments", WS,
               repeated(words.websocket(b"\x00x", first=0), words.websocket(b"", 0, first=0)),
               ENDED, ("limit", *IDLE)),
        Attack(11, "keep alives", STREAMUX, repeated(b"", words.streamux(7, last=True)), ENDED,
               IDLE),
        Attack(11, "items of no bytes", PROFILE, repeated(b"", words.minmux(0, 3, 1), 0.1), ENDED,
               ("minmux.credit-exceeded", *IDLE), mode="read"),
    ]  # fmt: skip
    return made


def unknown_ids(make: Callable[[int], bytes]) -> Iterator[bytes]:
    for n in range(PAIRS):
        yield make(n)


def control() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        strange = wire.frame(99, wire.number(0))
        made.append(Attack(12, "codes that nobody knows", protocol,
                           repeated(wire.offer(wire.number(0)), strange), ENDED, IDLE))  # fmt: skip
    wire = nerdbank(V1)
    made += [
        Attack(12, "a code that nobody knows", V1, repeated(b"", wire.frame(99, 1)), ENDED,
               IDLE),
        Attack(12, "control messages that nobody reads", OMNI,
               repeated(b"", words.omni(words.CONTROL, b"x")), UNHARMED if PAIRS < 60_000 else
               ENDED, ("session_buffer_bytes",), memory=24),
        Attack(12, "control messages of 1 MiB that nobody reads", OMNI,
               flooding(words.omni(words.CONTROL, bytes(60_000)) for _ in range(400)), ENDED,
               ("session_buffer_bytes",), memory=24),
        Attack(12, "pings", WS, repeated(b"", words.websocket(bytes(125), opcode=9)), ENDED, IDLE),
        Attack(12, "pongs", WS, repeated(b"", words.websocket(b"", opcode=10)), ENDED, IDLE),
        Attack(12, "cancels of nothing, acks read", STREAMUX,
               flooding(unknown_ids(lambda n: words.streamux(n % 16384))), ENDED,
               (*IDLE, "unknown_stream_burst"), memory=16),
        Attack(12, "resets of unknown ids", MPLEX,
               flooding(unknown_ids(lambda n: words.mplex(n, words.RESET))), ENDED,
               ("unknown_stream_burst",)),
        Attack(12, "a storm of promises", MINMUX, repeated(b"", words.promise(1, 5)), ENDED, IDLE),
        Attack(12, "a storm of Oops", MINMUX, repeated(b"", words.oops(2)), ENDED, IDLE),
        Attack(12, "credit in crumbs", MINMUX, repeated(b"", words.give_credit(2, 1)), UNHARMED),
    ]  # fmt: skip
    made.append(Attack(12, "resets of unknown ids", WS,
                       flooding(unknown_ids(lambda n: over_websocket(words.omni(
                           words.CANCEL_SEND, bytes([n % 256]))))), ENDED, IDLE))  # fmt: skip
    return made


def attacks() -> list[Attack]:
    return [*dribble(), *empty(), *control()]
