"""The server is forced to reply, or cannot send its replies (ATK-02, 04)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
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
from tests.attacks.runner import ENDED, SOAK, Attack, Play, Scene, until_read

from polymux import Limits

PATIENCE = 30.0 if SOAK else 1.0  # the server's, with a peer that takes nothing
WINDOW = 16_000
CREDIT = Limits().receive_window  # of Minmux, in bytes
TIMED_OUT = "Connection timed out"  # the system may be quicker, where both wait 30 s
GIVEN_UP = ("deadline write", "max_queued_replies")
ACKS = 3_000_000  # answers until every buffer between the two is full


def openings_to_reject(protocol: str) -> Iterator[bytes]:
    """Beyond the accept backlog each stream must be rejected."""
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
        Attack(2, "openings to be rejected, replies unread", protocol,
               flooding(openings_to_reject(protocol), unread=True), ENDED,
               (*BUCKET, *GIVEN_UP), memory=16, mode="deaf", timeouts=unread, within=late)
        for protocol in (MPLEX, V1, V2, V3)
    ]  # fmt: skip
    made += [
        Attack(2, "windows overrun, answers unread", protocol,
               flooding(overrun_windows(protocol), unread=True), ENDED, (*BUCKET, *GIVEN_UP),
               memory=16, limits={"receive_window": WINDOW}, timeouts=unread, within=late)
        for protocol in (V2, V3)
    ]  # fmt: skip
    pings = (words.websocket(bytes(100), opcode=9) for _ in range(PAIRS))
    made += [
        Attack(
            2,
            "data on unknown ids, answers unread",
            OMNI,
            flooding(data_on_unknown_ids(), unread=True),
            ENDED,
            ("unknown_stream_burst", *BUCKET, *GIVEN_UP),
            memory=16,
            timeouts=unread,
            within=late,
        ),
        Attack(
            2,
            "data on unknown ids, answers unread",
            WS,
            flooding(map(on_websocket, data_on_unknown_ids()), unread=True),
            ENDED,
            ("unknown_stream_burst", *BUCKET, *GIVEN_UP),
            memory=16,
            timeouts=unread,
            within=late,
        ),
        Attack(
            2,
            "pings, pongs unread",
            WS,
            flooding(pings, unread=True),
            ENDED,
            ("empty_frame_burst", *GIVEN_UP),
            memory=16,
            timeouts=unread,
            within=late,
        ),
        Attack(
            2,
            "cancels of nothing, acks unread",
            STREAMUX,
            flooding(cancels_of_nothing(), unread=True),
            ENDED,
            ("empty_frame_burst", "unknown_stream_burst", *BUCKET, *GIVEN_UP),
            memory=16,
            timeouts=unread,
            within=late,
        ),
        Attack(
            2,
            "a storm of Oops, answers unread",
            MINMUX,
            flooding((words.oops(2, 1) for _ in range(PAIRS)), unread=True),
            ENDED,
            ("empty_frame_burst",),
            memory=16,
            timeouts=unread,
            within=late,
        ),
    ]
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
    """Echoed data is never read: the server's writers must wait, and then end the session.

    Windows and credit bound some of it; the server's own buffers must bound the rest.
    """
    count = 12 if protocol in (V2, V3) else 1  # a window is small: many channels
    rounds = {V2: 50, V3: 50, OMNI: 40, WS: 40}.get(protocol, 2000)
    piece = 1_000_000 if protocol in (OMNI, WS) else 20_000

    async def play(scene: Scene) -> None:
        foe = scene.foe
        await foe.dial(unread=True)
        await foe.send(b"".join(opening_on(protocol, n) for n in range(count)))
        await until_read(scene)
        if protocol in (OMNI, WS):
            await foe.send(carried(protocol, words.omni(words.REQUEST, b"\0\xff")))
        await foe.flood(content_on(protocol, n, bytes(piece)) for n in range(count)
                        for _ in range(rounds))  # fmt: skip

    return play


def carried(protocol: str, messages: bytes) -> bytes:
    return on_websocket(messages) if protocol == WS else messages


def opening_on(protocol: str, n: int) -> bytes:
    return carried(protocol, opening(OMNI if protocol == WS else protocol, n))


def content_on(protocol: str, n: int, data: bytes) -> bytes:
    return carried(protocol, content(OMNI if protocol == WS else protocol, n, data))


async def unread_replies(scene: Scene) -> None:
    """Complete requests, whose replies are never read."""
    await scene.foe.dial(unread=True)
    body = bytes(60_000)
    await scene.foe.flood(words.streamux(n, body, last=True) for n in range(2000))


async def unread_items(scene: Scene) -> None:
    """All the credit there is, given and used; what comes back is more than the system holds."""
    await scene.foe.dial(unread=True)
    await scene.foe.send(words.give_credit(2, 1 << 40) + words.write_items(1, bytes(CREDIT)))


def unread() -> list[Attack]:
    plays = {protocol: unread_echo(protocol) for protocol in (MPLEX, V1, V2, V3, OMNI, WS)}
    plays |= {STREAMUX: unread_replies, MINMUX: unread_items}
    return [
        Attack(4, "what is echoed is never read", protocol, play, ENDED,
               ("deadline write", TIMED_OUT), memory=16, timeouts={"write": PATIENCE},
               within=PATIENCE + 2, send_buffer=4096 if protocol == MINMUX else 0)
        for protocol, play in plays.items()
    ]  # fmt: skip


def attacks() -> list[Attack]:
    return [*provoking(), *unread()]
