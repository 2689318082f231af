"""The victim is made to answer, or cannot (ATK-02, 04)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.attacks import words
from tests.attacks.families.common import (
    ALL,
    BUCKET,
    MINMUX,
    MPLEX,
    OMNI,
    PAIRS,
    STREAMUX,
    V1,
    V2,
    V3,
    WS,
    content,
    flooding,
    nerdbank,
    opening,
    over_websocket,
)  # fmt: skip
from tests.attacks.runner import ENDED, SOAK, Attack, Play, Scene

PATIENCE = 30.0 if SOAK else 1.0  # the server's, with a peer that takes nothing
WINDOW = 16_000
TIMED_OUT = "Connection timed out"  # the system may be quicker, where both wait 30 s
GIVEN_UP = ("deadline write", "control_queue")
ACKS = 3_000_000  # answers until every buffer between the two is full


def openings_to_reject(protocol: str) -> Iterator[bytes]:
    """Past those the server lets wait, each must be turned away."""
    for n in range(PAIRS):
        yield opening(protocol, n)


def overrun_windows(protocol: str) -> Iterator[bytes]:
    """Every channel is offered, accepted, and written past its window at once."""
    wire = nerdbank(protocol)
    for n in range(PAIRS):
        number = wire.number(n)
        yield wire.offer(number) + wire.frame(words.CONTENT, number, bytes(WINDOW + 1))


def data_on_unknown_ids() -> Iterator[bytes]:
    """A stream opened and ended makes its id unknown again, so it is answered again."""
    for n in range(PAIRS):
        one = bytes([n % 256])
        yield words.omni(words.CREATE, one) + words.omni(words.END, one)
        yield words.omni(words.DATA, one + b"x")


def cancels_of_nothing() -> Iterator[bytes]:
    many = b"".join(words.streamux(n) for n in range(16000))
    for _ in range(ACKS // 16000):
        yield many


def provoking() -> list[Attack]:
    unread = {"write": PATIENCE}
    late = PATIENCE + 1
    made = [
        Attack(2, "openings to be turned away, answers unread", protocol,
               flooding(openings_to_reject(protocol), unread=True), ENDED,
               (*BUCKET, *GIVEN_UP), memory=16, mode="deaf", policy=unread, within=late)
        for protocol in (MPLEX, V1, V2, V3)
    ]  # fmt: skip
    made += [
        Attack(2, "windows overrun, answers unread", protocol,
               flooding(overrun_windows(protocol), unread=True), ENDED, (*BUCKET, *GIVEN_UP),
               memory=16, limits={"window": WINDOW}, policy=unread, within=late)
        for protocol in (V2, V3)
    ]  # fmt: skip
    pings = (words.websocket(bytes(100), opcode=9) for _ in range(PAIRS))
    made += [
        Attack(2, "data on unknown ids, answers unread", OMNI,
               flooding(data_on_unknown_ids(), unread=True), ENDED,
               ("unknown_burst", *BUCKET, *GIVEN_UP), memory=16, policy=unread, within=late),
        Attack(2, "data on unknown ids, answers unread", WS,
               flooding(map(on_websocket, data_on_unknown_ids()), unread=True), ENDED,
               ("unknown_burst", *BUCKET, *GIVEN_UP), memory=16, policy=unread, within=late),
        Attack(2, "pings, pongs unread", WS, flooding(pings, unread=True), ENDED,
               ("idle_burst", *GIVEN_UP), memory=16, policy=unread, within=late),
        Attack(2, "cancels of nothing, acks unread", STREAMUX,
               flooding(cancels_of_nothing(), unread=True), ENDED,
               ("idle_burst", "unknown_burst", *BUCKET, *GIVEN_UP), memory=16, policy=unread,
               within=late),
        Attack(2, "a storm of Oops, answers unread", MINMUX,
               flooding((words.oops(2, 1) for _ in range(PAIRS)), unread=True), ENDED,
               ("idle_burst",), memory=16, policy=unread, within=late),
    ]  # fmt: skip
    return made


def on_websocket(messages: bytes) -> bytes:
    """Messages behind their lengths, each as a WebSocket frame instead."""
    out = b""
    while messages:
        size = 4 + int.from_bytes(messages[:4], "big")
        out += over_websocket(messages[:size])
        messages = messages[size:]
    return out


def unread_echo(protocol: str) -> Play:
    """What is sent comes back, and is never read: the server's writers must wait, then end it."""

    async def play(scene: Scene) -> None:
        foe = scene.foe
        await foe.dial(unread=True)
        if protocol == STREAMUX:
            for n in range(12):
                await foe.send(words.streamux(n, bytes(60_000)) * (200 if n == 0 else 10))
                await foe.send(words.streamux(n, b"x", last=True))
            return
        count = 12 if protocol in (V2, V3) else 1  # a window is small: many channels
        await foe.send(b"".join(opening(protocol, n) for n in range(count)))
        await asyncio.sleep(0.3)
        if protocol == OMNI:
            await foe.send(words.omni(words.REQUEST, b"\0\xff"))
        # Windows and credit bound some of it; the server's own buffers must bound the rest.
        piece = 1_000_000 if protocol == OMNI else 20_000
        rounds = {V2: 50, V3: 50, OMNI: 40}.get(protocol, 2000)
        await foe.flood(content(protocol, n, bytes(piece)) for n in range(count)
                        for _ in range(rounds))  # fmt: skip

    return play


def unread() -> list[Attack]:
    made: list[Attack] = []
    for protocol in ALL:
        if protocol == MINMUX:
            continue  # its whole window fits the socket: there is nothing a writer must wait for
        made.append(Attack(4, "what is echoed is never read", protocol, unread_echo(protocol),
                           ENDED, ("deadline write", TIMED_OUT), memory=28,
                           policy={"write": PATIENCE}, within=PATIENCE + 2))  # fmt: skip
    return made


def attacks() -> list[Attack]:
    return [*provoking(), *unread()]
