"""The attack classes that apply to yamux (ATK-01 to 15), on its own frames."""

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
    BUCKET,
    PAIRS,
    YAMUX,
    content,
    flooding,
    opening,
    repeated,
    resetting,
    saying,
)
from tests.attacks.families.credit import hogging
from tests.attacks.families.floods import IDLE, dribbling
from tests.attacks.families.sizes import PATIENCE, drip, trailing
from tests.attacks.runner import COUNTED, ENDED, MIB, UNHARMED, Attack, Play, Scene, until_read

DATA, UPDATE = words.YAMUX_DATA, words.YAMUX_UPDATE
PING, GO_AWAY = words.YAMUX_PING, words.YAMUX_GO_AWAY
WINDOW = 262144
TOP = 2**32 - 1
GROWN = MIB  # the window that a server announces by default


def open_and_reset() -> Iterator[bytes]:
    for n in range(PAIRS):
        yield opening(YAMUX, n) + resetting(YAMUX, n)


def openings() -> Iterator[bytes]:
    for n in range(10 * PAIRS if PAIRS < 100_000 else 100_000):
        yield opening(YAMUX, n)


def unread_pings(scene_pieces: int) -> Play:
    """Pings whose answers are never read."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial(unread=True)
        ping = words.yamux(PING, words.SYN, 0, 7)
        await scene.foe.flood(ping for _ in range(scene_pieces))

    return play


def overrun(size: int) -> Play:
    """One stream is opened and written past the window that was announced for it."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(opening(YAMUX, 0))
        await until_read(scene)
        pieces = [bytes(60_000)] * (size // 60_000) + [bytes(size % 60_000)]
        for piece in pieces:
            await scene.foe.send(content(YAMUX, 0, piece))

    return play


def flooding_attacks() -> list[Attack]:
    return [
        Attack(1, "open and reset at line rate", YAMUX, flooding(open_and_reset()), ENDED, BUCKET,
               memory=16, handled=1100),
        Attack(2, "pings whose answers are not read", YAMUX, unread_pings(PAIRS), ENDED,
               (*IDLE, "max_queued_replies", "deadline write"), memory=8),
        Attack(3, "a flood of SYN that is not accepted", YAMUX, flooding(openings()), ENDED, BUCKET,
               mode="deaf"),
        Attack(10, "one byte a frame", YAMUX, dribbling(YAMUX), UNHARMED, memory=16, mode="read"),
        Attack(11, "content of nothing", YAMUX,
               repeated(opening(YAMUX, 0), content(YAMUX, 0, b"")), ENDED, IDLE),
        Attack(12, "a flood of pings", YAMUX, repeated(b"", words.yamux(PING, words.SYN, 0, 1)),
               ENDED, IDLE),
        Attack(12, "answers to no ping", YAMUX, repeated(b"", words.yamux(PING, words.ACK, 0, 1)),
               ENDED, (*IDLE, "unknown_stream_burst")),
        Attack(12, "Go Away after Go Away", YAMUX, repeated(b"", words.yamux(GO_AWAY, 0, 0)),
               ENDED, IDLE),
        Attack(12, "resets of unknown ids", YAMUX,
               flooding(resetting(YAMUX, n) for n in range(PAIRS)), ENDED,
               ("unknown_stream_burst",)),
        Attack(12, "window updates after one's own FIN", YAMUX,
               repeated(opening(YAMUX, 0) + words.yamux(UPDATE, words.FIN, 1),
                        words.yamux(UPDATE, 0, 1, 0)), UNHARMED),
    ]  # fmt: skip


def size_attacks() -> list[Attack]:
    made = [
        Attack(5, "a whole window that is not read", YAMUX, hogging(YAMUX, 20_000, 52), UNHARMED,
               memory=4, mode="slow"),
        Attack(7, "credit that overflows (CVE-2026-31814)", YAMUX,
               saying(opening(YAMUX, 0), words.yamux(UPDATE, 0, 1, TOP)), ENDED,
               ("yamux.window-overflow",)),
        Attack(7, "an opening whose credit overflows", YAMUX,
               saying(words.yamux(UPDATE, words.SYN, 1, TOP)), ENDED, ("yamux.window-overflow",)),
        Attack(7, "all credit there is, and then a byte more", YAMUX,
               saying(opening(YAMUX, 0), words.yamux(UPDATE, 0, 1, TOP - WINDOW),
                      words.yamux(UPDATE, 0, 1, 1)), ENDED, ("yamux.window-overflow",)),
        Attack(8, "an oversized first frame (CVE-2026-32314)", YAMUX,
               trailing(words.yamux(DATA, words.SYN, 1, WINDOW + 1)), ENDED,
               ("yamux.window-exceeded",), memory=1),
        Attack(8, "a frame of 4 GiB", YAMUX,
               trailing(opening(YAMUX, 0) + words.yamux(DATA, 0, 1, TOP)), ENDED,
               ("yamux.window-exceeded", "yamux.frame-too-long"), memory=1),
        Attack(9, "half a header, then nothing", YAMUX, saying(opening(YAMUX, 0)[:5]), ENDED,
               ("deadline frame",), memory=1, timeouts={"frame": PATIENCE}, within=PATIENCE + 1.5),
        Attack(9, "half a header, byte by byte", YAMUX, drip(opening(YAMUX, 0)[:9]), ENDED,
               ("deadline frame",), memory=1, timeouts={"frame": PATIENCE}, within=PATIENCE + 1.5),
    ]  # fmt: skip
    for title, size in (("1 byte", GROWN + 1), ("10 times", 10 * GROWN)):
        made.append(Attack(6, f"a window overrun by {title}", YAMUX, overrun(size), ENDED,
                           ("yamux.window-exceeded",), mode="slow"))  # fmt: skip
    return made


def manners() -> list[Attack]:
    return [
        Attack(13, "a live id opened again", YAMUX, saying(opening(YAMUX, 0) * 2), ENDED,
               ("yamux.id-reused",)),
        Attack(13, "an id of the other side", YAMUX,
               saying(words.yamux(UPDATE, words.SYN, 2)), ENDED, ("yamux.id-parity",)),
        Attack(13, "stream 0", YAMUX, saying(words.yamux(UPDATE, words.SYN, 0)), ENDED,
               ("yamux.stream-zero",)),
        Attack(14, "data after one's own FIN", YAMUX,
               saying(opening(YAMUX, 0) + words.yamux(UPDATE, words.FIN, 1)
                      + content(YAMUX, 0, b"x") * 100), COUNTED, ("yamux.write-after-fin",)),
        Attack(14, "Go Away that is not answered, and streams after it", YAMUX,
               saying(words.yamux(GO_AWAY, 0, 0, 0), opening(YAMUX, 0), content(YAMUX, 0, b"x")),
               UNHARMED),
        Attack(15, "another version", YAMUX, saying(b"\x01" + bytes(11)), ENDED,
               ("yamux.bad-version",)),
        Attack(15, "an unknown type", YAMUX, saying(words.yamux(9, 0, 1)), ENDED,
               ("yamux.bad-type",)),
    ]  # fmt: skip


def attacks() -> list[Attack]:
    return [*flooding_attacks(), *size_attacks(), *manners()]
