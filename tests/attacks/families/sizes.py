"""Lengths that lie, headers that never end, nested bombs, endless messages (ATK-08, 09, 16, 27)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator

from tests.attacks import raw_frames as words
from tests.attacks.attacker_connection import Foe
from tests.attacks.families.bombs import corpus
from tests.attacks.families.common import (
    MINMUX,
    MPLEX,
    OMNI,
    PROFILE,
    STREAMUX,
    V1,
    V2,
    V3,
    WS,
    nerdbank,
    opening,
    saying,
)  # fmt: skip
from tests.attacks.runner import (
    COUNTED,
    ENDED,
    MIB,
    SOAK,
    UNHARMED,
    Attack,
    Play,
    Scene,
    until_read,
)

PATIENCE = 10.0 if SOAK else 0.5
TOP = (1 << 64) - 1
WIDE = bytes([1, 29, 1, 50])  # a Streamux layout with 29 bits of length


def trailing(head: bytes, hello: bool = True) -> Play:
    """A header that announces a large frame, then as much of it as the server accepts."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial(hello=hello)
        await scene.foe.send(head)
        await scene.foe.flood(bytes(65_536) for _ in range(64))

    return play


def oversized() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        head = wire.offer(wire.number(0)) + wire.frame(words.CONTENT, wire.number(0), b"x")
        for title, form in (("4 GiB", b"\xc6" + b"\xff" * 4), ("1 MiB", b"\xc6\0\x10\0\0")):
            made.append(Attack(8, f"a payload of {title}", protocol, trailing(head[:-3] + form),
                               ENDED, ("nerdbank.frame-too-long",), memory=1))  # fmt: skip
    wire = nerdbank(V1)
    full = struct.pack(">BIH", words.CONTENT, 1, 65_535)
    made.append(Attack(8, "the longest payload there is, unfinished", V1,
                       saying(wire.offer(1) + full), UNHARMED, memory=1))  # fmt: skip
    for bits in (21, 32, 40, 56, 62):
        head = opening(MPLEX, 0) + words.uvarint(2) + words.uvarint(1 << bits)
        made.append(Attack(8, f"a message of 2^{bits}", MPLEX, trailing(head), ENDED,
                           ("mplex.frame-too-long",), memory=1))  # fmt: skip
    made += [
        Attack(8, "a message of 2^63", MPLEX,
               trailing(opening(MPLEX, 0) + words.uvarint(2) + words.uvarint(1 << 63)), ENDED,
               ("mplex.varint-too-long",), memory=1),
        Attack(8, "a name of 512 MiB", MPLEX, trailing(b"\0" + words.uvarint(512 * MIB)), ENDED,
               ("mplex.frame-too-long",), memory=1),
        Attack(8, "a message of 64 MiB", OMNI, trailing(struct.pack(">I", 64 * MIB)), ENDED,
               ("omnistreams.message-too-long",), memory=1),
        Attack(8, "a message of 64 MiB", WS, trailing(words.websocket(b"", size=64 * MIB)), ENDED,
               ("too-long", "too-big", "limit", "size"), memory=1),
        Attack(8, "a message of 2^63-1", WS, trailing(words.websocket(b"", size=(1 << 63) - 1)),
               ENDED, ("too-long", "too-big", "limit", "size"), memory=1),
        Attack(8, "a chunk of 2^29", STREAMUX,
               trailing(WIDE + struct.pack("<I", ((1 << 29) - 1) << 1), hello=False), ENDED,
               ("streamux.chunk-too-long",), memory=1),
        Attack(8, "2^64-1 items", MINMUX, trailing(words.minmux(0, 1, TOP)), ENDED,
               ("minmux.credit-exceeded",), memory=1),
        Attack(8, "an item of 2^62 bytes", PROFILE, item_of(1 << 62), ENDED,
               ("minmux.bad-item",), memory=1, mode="read"),
        Attack(8, "an item of 64 MiB", PROFILE, item_of(64 * MIB), ENDED,
               ("minmux.item-too-long",), memory=1, mode="read"),
    ]  # fmt: skip
    return made


def item_of(size: int) -> Play:
    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await until_read(scene)  # credit must have come
        await scene.foe.send(words.minmux(0, 5, 1) + words.varu64(size))
        await scene.foe.flood(bytes(65_536) for _ in range(64))

    return play


def unfinished() -> list[Attack]:
    halves = {
        V1: struct.pack(">BI", 2, 1), V2: b"\x93\x02", V3: b"\x94\x02\x01", OMNI: b"\0\0",
        WS: b"\x82\xfe\x01", STREAMUX: b"\x01", MPLEX: b"\x80", MINMUX: b"\x01\xff" + bytes(7),
    }  # fmt: skip
    made = [
        Attack(9, "half a header, then nothing", protocol, saying(half), ENDED,
               ("deadline frame",), memory=1, timeouts={"frame": PATIENCE}, within=PATIENCE + 1.5)
        for protocol, half in halves.items()
    ]  # fmt: skip
    made += [
        Attack(9, "a number without end", MPLEX, saying(b"\x80" * 5000), ENDED,
               ("mplex.varint-too-long",), memory=1),
        Attack(9, "an empty message", OMNI, saying(bytes(4)), COUNTED,
               ("omnistreams.empty-message",), memory=1),
        Attack(9, "half a control frame, byte by byte", V3, drip(b"\x94\x00\x01\x01\xc4\x06"),
               ENDED, ("deadline frame",), memory=1, timeouts={"frame": PATIENCE},
               within=PATIENCE + 1.5),
    ]  # fmt: skip
    return made


def drip(data: bytes) -> Play:
    """Byte by byte: progress within a frame does not extend the timeout."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        for byte in data:
            await scene.foe.send(bytes([byte]))
            await asyncio.sleep(PATIENCE / 20)

    return play


def bombs(protocol: str) -> Play:
    """The whole corpus, one connection each; every one must be closed or have no effect."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(b"\xc1" * 9)
        files = corpus(int(protocol[-1]))
        open_still = 0
        for data in files:
            foe = Foe(protocol, scene.target.port)
            await foe.dial()
            await foe.send(data)
            if not await foe.wait_closed(0.15):
                open_still += 1  # it waits for more: that is no harm
            await foe.leave()
        scene.notes.append(f"{len(files)} bombs, {open_still} waited for more")

    return play


def endless() -> list[Attack]:
    def request() -> Iterator[bytes]:
        for _ in range(400):
            yield words.streamux(1, bytes(60_000))

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.flood(request())
        await asyncio.sleep(0.3)

    last = words.stop(1) + words.minmux(0, 1, 1) + words.varu64(32 * MIB)
    return [
        Attack(
            27,
            "a request that never ends",
            STREAMUX,
            play,
            COUNTED,
            ("max_message_bytes",),
            memory=40,
        ),
        Attack(
            27,
            "a last item of 32 MiB",
            PROFILE,
            trailing(last),
            ENDED,
            ("minmux.item-too-long", "limit max_message_bytes"),
            memory=2,
        ),
        Attack(27, "data without an end", OMNI, endless_data(), UNHARMED, memory=8, mode="read"),
    ]


def endless_data() -> Play:
    """As many messages as credit allows; memory of read messages is freed."""

    async def play(scene: Scene) -> None:
        foe = scene.foe
        await foe.dial()
        await foe.send(opening(OMNI, 0))
        sent = 0
        for _ in range(2000 if SOAK else 200):
            await foe.hear(1)
            asked = sum(foe.heard[6::7])
            if asked > sent:
                await foe.send(words.omni(words.DATA, b"\0" + bytes(10_000)) * (asked - sent))
                sent = asked
            else:
                await asyncio.sleep(0.002)
        scene.notes.append(f"{sent} messages")

    return play


def attacks() -> list[Attack]:
    made = [*oversized(), *unfinished(), *endless()]
    made += [
        Attack(16, "a corpus of msgpack bombs", protocol, bombs(protocol), ENDED,
               ("nerdbank.bad-frame",), memory=2)
        for protocol in (V2, V3)
    ]  # fmt: skip
    return made
