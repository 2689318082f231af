"""Hostile names and texts, wrong handshakes, roles and encapsulations (ATK-17 to 20, 22, 23, 28,
29)."""

from __future__ import annotations

import asyncio
import zlib

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
    MINMUX,
    MPLEX,
    NERDBANK,
    OMNI,
    PROFILE,
    STREAMUX,
    V1,
    V2,
    V3,
    WS,
    nerdbank,
    opening,
    over_websocket,
    saying,
)  # fmt: skip
from tests.attacks.runner import (
    COUNTED,
    ENDED,
    MIB,
    REFUSED,
    SOAK,
    UNHARMED,
    Attack,
    Play,
    Scene,
)  # fmt: skip

PATIENCE = 10.0 if SOAK else 1.5
NAMES = [
    b"\xff\xfe\x80", b"<script>alert(1)</script>", b"../../etc/passwd", b"\xe2\x80\xaeevil",
    b"a\0b", b"=cmd|' /C calc'!A0", b"\x1b[2J\x1b]0;owned\x07", b"%s%n{0}", b"\r\nSet-Cookie: x",
    b"C:\\con", "𝔘𝔫𝔦".encode(), b"x" * 4000,
]  # fmt: skip


def named(protocol: str, n: int, name: bytes) -> bytes:
    if protocol == MPLEX:
        return words.mplex(n, words.NEW, name)
    if protocol in NERDBANK:
        wire = nerdbank(protocol)
        return wire.offer(wire.number(n), name)
    return words.omni(words.CREATE, bytes([n]) + name)


def names() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (MPLEX, V1, V2, V3, OMNI):
        many = [named(protocol, n, name) for n, name in enumerate(NAMES)]
        made.append(Attack(17, "names that want to be more than names", protocol, lingering(*many),
                           UNHARMED))  # fmt: skip
        long = named(protocol, 0, b"x" * (5000 if protocol in NERDBANK else 20_000))
        if protocol != OMNI:
            made.append(Attack(17, "a name of more than 4 KiB", protocol, lingering(long), COUNTED,
                               ("max_name_bytes",)))  # fmt: skip
    made.append(Attack(17, "a name of 1 MiB", MPLEX, lingering(named(MPLEX, 0, b"x" * MIB)), ENDED,
                       ("mplex.frame-too-long", "limit max_control_bytes"), memory=4))  # fmt: skip
    bad = "\x1b[31m\r\n\u202e" * 50
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        number = wire.number(0)
        text = b"\x91" + words.msgpack_text(bad.encode())
        last = wire.frame(words.TERMINATED, number, text)
        made.append(Attack(28, "a termination that wants to write on the terminal", protocol,
                           lingering(wire.offer(number), last), UNHARMED))  # fmt: skip
    made += [
        Attack(28, "a reset that wants to write on the terminal", MPLEX,
               lingering(opening(MPLEX, 0), words.mplex(0, words.RESET, bad.encode())), UNHARMED),
        Attack(28, "metadata that wants to write on the terminal", OMNI,
               lingering(named(OMNI, 0, bad.encode()), words.omni(words.CANCEL_RECEIVE, b"\0")),
               UNHARMED),
    ]  # fmt: skip
    return made


def lingering(*pieces: bytes) -> Play:
    """Send the pieces with pauses between them."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        for piece in pieces:
            await scene.foe.send(piece)
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)

    return play


def half_open(part: bytes, count: int) -> Play:
    """Many connections that never finish their handshake; all must be closed after the timeout."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial(hello=False)
        await scene.foe.send(part)
        for _ in range(count - 1):
            foe = await scene.another(hello=False)
            await foe.send(part)
        scene.foe.quiet_at = scene.foes[-1].quiet_at
        deadline = (PATIENCE + 2) * (1 if SOAK else 4)
        async with asyncio.timeout(deadline):
            closed = [await foe.wait_closed(deadline) for foe in scene.foes]
        assert all(closed)
        scene.notes.append(f"{count} half-open")

    return play


def handshakes() -> list[Attack]:
    parts = {V1: words.HELLO[1][:3], V2: words.HELLO[2][:5], STREAMUX: words.INITIATOR[:3],
             WS: words.UPGRADE[:40]}  # fmt: skip
    count = 1000 if SOAK else 300
    made = [
        Attack(18, "handshakes that are never finished", protocol, half_open(part, count), REFUSED,
               memory=32, timeouts={"handshake": PATIENCE}, within=1.5)
        for protocol, part in parts.items()
    ]  # fmt: skip
    made += [
        Attack(19, "our own random value said back", protocol, reflecting(protocol), ENDED,
               ("nerdbank.equal-randoms",))
        for protocol in (V1, V2)
    ]  # fmt: skip
    return made


def reflecting(protocol: str) -> Play:
    async def play(scene: Scene) -> None:
        await scene.foe.dial(hello=False)
        size = len(words.HELLO[int(protocol[-1])])
        heard = await scene.foe.hear(size)
        await scene.foe.send(heard[:size])

    return play


def roles() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (V1, V2):
        made.append(Attack(20, "an offer with an id of the other party", protocol,
                           saying(nerdbank(protocol).offer(2)), ENDED,
                           ("nerdbank.id-parity",)))  # fmt: skip
    wire = nerdbank(V3)
    wrong = wire.frame(words.OFFER, 1, b"\x92\xa1x\xcd\x10\x00", source=-1)
    made += [
        Attack(20, "an offer in the other party's name", V3, saying(wrong), ENDED,
               ("nerdbank.wrong-source",)),
        Attack(20, "both are dialers", MPLEX,
               lingering(opening(MPLEX, 1), words.mplex(1, words.MESSAGE_RECEIVER, b"x")), COUNTED,
               ("mplex.wrong-role-flag",)),
        Attack(20, "both are proactive", MINMUX, saying(words.write_items(2, b"\xff" * 200)),
               ENDED, ("minmux.",)),
        Attack(29, "version 3 at a server of version 2", V2,
               saying(words.Nerdbank(3).offer(1), hello=False), ENDED,
               ("nerdbank.bad-handshake", "nerdbank.version-mismatch")),
        Attack(29, "version 1 at a server of version 2", V2, saying(words.HELLO[1], hello=False),
               ENDED, ("nerdbank.bad-handshake",)),
        Attack(29, "version 2 at a server of version 3", V3, saying(words.HELLO[2]), ENDED,
               ("nerdbank.",)),
        Attack(29, "the deployed numbering at a server of the spec's", OMNI,
               lingering(words.omni(0, b"\0{}"), words.omni(1, b"\0data"), words.omni(2, b"\0")),
               UNHARMED),
        Attack(29, "the wrong layout", STREAMUX,
               saying(bytes([1, 10, 4, 50]), b"\x55\x80hello", hello=False), ENDED,
               ("streamux.mixed-header-sizes",)),
        Attack(29, "the wrong profile", PROFILE, saying(words.write_items(7, b"x")), ENDED,
               ("minmux.unassigned-stream",)),
    ]  # fmt: skip
    return made


def carriers() -> list[Attack]:
    deflate = zlib.compressobj(9, wbits=-15)
    bomb = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_SYNC_FLUSH)
    message = over_websocket(words.omni(words.CREATE, b"\x05{}"))
    parts = [words.websocket(b"\x01", first=0), words.websocket(b"\x06", 0, first=0),
             words.websocket(b"{}", 0)]  # fmt: skip
    return [
        Attack(22, "a bomb of permessage-deflate", WS,
               saying(words.websocket(bomb * 16, first=0xC0)), ENDED, ("websocket.", "reserved"),
               memory=4),
        Attack(23, "a text message", WS, told_code(words.websocket(b"\x01\x00", opcode=1), 1003),
               ENDED, ("websocket.", "text")),
        Attack(23, "a message in fragments", WS, lingering(message, *parts), UNHARMED),
        Attack(23, "a frame without a mask", WS, saying(b"\x82\x02\x01\x07"), ENDED,
               ("websocket.",)),
        Attack(8, "a message past the limit is closed with 1009", WS,
               told_code(words.websocket(b"", size=64 * MIB), 1009), ENDED, ("limit", "too-")),
    ]  # fmt: skip


def told_code(data: bytes, code: int) -> Play:
    """The server gives the reason in its close frame."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(data)
        assert await scene.foe.wait_closed(5)
        heard = bytes(scene.foe.heard)
        assert heard[:1] == b"\x88", heard[:20]
        assert int.from_bytes(heard[2:4], "big") == code, heard[:60]
        scene.notes.append(f"close code {code}")

    return play


def attacks() -> list[Attack]:
    return [*names(), *handshakes(), *roles(), *carriers()]
