"""Readers that do not read, credit overrun, and credit that adds up wrongly (ATK-05 to 07, 26)."""

from __future__ import annotations

import asyncio
import struct

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
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
    content,
    flooding,
    nerdbank,
    opening,
    over_websocket,
    repeated,
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

from polymux import Limits

PAUSE = 5.0 if SOAK else 0.4
TOP = (1 << 64) - 1
WINDOW = 20_000
CREDIT = Limits().receive_window  # of Minmux, in bytes
SMALL = 256 * 1024
OVERRUNS = (("1 byte", [WINDOW + 1]), ("1 frame", [WINDOW, 500]), ("10 times", [WINDOW] * 10))


def hogging(protocol: str, piece: int, rounds: int) -> Play:
    """One stream is filled and never read."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(opening(protocol, 0))
        await until_read(scene)  # where it must be accepted, or credit comes
        await scene.foe.flood(content(protocol, 0, bytes(piece)) for _ in range(rounds))
        await asyncio.sleep(PAUSE + 0.3)
        await scene.foe.send(opening(protocol, 1))  # the session still takes frames
        await asyncio.sleep(0.2)

    return play


def slow_readers() -> list[Attack]:
    calm = {"slow_reader": PAUSE}
    made = [
        Attack(5, "a stream that nobody reads", protocol, hogging(protocol, 20_000, 1500), COUNTED,
               ("stream_buffer_bytes",), memory=24, mode="slow", timeouts=calm)
        for protocol in (MPLEX, V1, STREAMUX)
    ]  # fmt: skip
    made += [
        Attack(5, "a whole window that nobody reads", protocol, hogging(protocol, 20_000, 52),
               UNHARMED, memory=4, mode="slow")
        for protocol in (V2, V3)
    ]  # fmt: skip
    made += [
        Attack(
            5,
            "64 messages of 1 MiB that nobody reads",
            OMNI,
            hogging(OMNI, MIB - 2, 64),
            COUNTED,
            ("stream_buffer_bytes",),
            memory=24,
            mode="slow",
            timeouts=calm,
        ),
        Attack(
            5,
            "all credit used, nothing read",
            MINMUX,
            saying(words.write_items(1, bytes(SMALL))),
            UNHARMED,
            memory=2,
            mode="slow",
            limits={"receive_window": SMALL},
        ),
        Attack(
            5,
            "all the usual credit used, nothing read",
            MINMUX,
            saying(words.write_items(1, bytes(CREDIT))),
            UNHARMED,
            memory=4,
            mode="slow",
        ),
    ]
    return made


def after_acceptance(*pieces: bytes) -> Play:
    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        for piece in pieces:
            await scene.foe.send(piece)
            await until_read(scene)

    return play


def overruns() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        one = wire.number(0)
        for title, sizes in OVERRUNS:
            pieces = [wire.frame(words.CONTENT, one, bytes(size)) for size in sizes]
            made.append(Attack(6, f"a window overrun by {title}", protocol,
                               after_acceptance(wire.offer(one), b"".join(pieces)), COUNTED,
                               ("nerdbank.window-exceeded",), mode="slow",
                               limits={"receive_window": WINDOW}))  # fmt: skip
    for title, count in (("1 message", 65), ("10 times", 640)):
        data = words.omni(words.DATA, b"\0x") * count
        made.append(Attack(6, f"64 messages overrun: {title}", OMNI,
                           after_acceptance(opening(OMNI, 0), data), COUNTED,
                           ("omnistreams.credit-exceeded",), mode="slow"))  # fmt: skip
    made.append(Attack(6, "one byte more than a message may have", MPLEX,
                       saying(opening(MPLEX, 0), content(MPLEX, 0, bytes(MIB + 1))), ENDED,
                       ("mplex.frame-too-long",), mode="slow"))  # fmt: skip
    for extra in (1, 1000, 9 * CREDIT):
        made.append(Attack(6, f"credit overrun by {extra}", MINMUX,
                           after_acceptance(b"", words.write_items(1, bytes(CREDIT + extra))),
                           ENDED, ("minmux.credit-exceeded",), mode="slow"))  # fmt: skip
    return made


def window_arithmetic() -> list[Attack]:
    made: list[Attack] = []
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        one = wire.number(0)
        offers = {
            "2^63": b"\x92\xa1x\xcf" + struct.pack(">Q", 1 << 63),
            "2^64-1": b"\x92\xa1x\xcf" + struct.pack(">Q", TOP),
            "0": b"\x92\xa1x\x00",
            "-1": b"\x92\xa1x\xff",
        }
        for title, payload in offers.items():
            made.append(Attack(7, f"a window of {title}", protocol,
                               saying(wire.frame(words.OFFER, one, payload)),
                               COUNTED,
                               ("nerdbank.bad-window", "nerdbank.bad-offer",
                                "nerdbank.offer-without-window")))  # fmt: skip
        for title, number in (("1 byte", b"\x01"), ("2^63", b"\xcf" + struct.pack(">Q", 1 << 63)),
                              ("2^64-1", b"\xcf" + struct.pack(">Q", TOP))):  # fmt: skip
            processed = wire.frame(words.PROCESSED, one, b"\x91" + number)
            made.append(Attack(7, f"{title} processed that was never sent", protocol,
                               saying(wire.offer(one), processed), ENDED,
                               ("nerdbank.acknowledged-too-much",)))  # fmt: skip
        shrink = wire.frame(words.ADJUST, one, b"\x91\x01")
        made.append(Attack(7, "a window made smaller", protocol, saying(wire.offer(one), shrink),
                           COUNTED, ("nerdbank.window-shrunk",)))  # fmt: skip
    return made


def other_arithmetic() -> list[Attack]:
    requests = words.omni(words.REQUEST, b"\0\xff")
    made = [
        Attack(7, "255 more messages without end", OMNI,
               repeated(opening(OMNI, 0), requests, 0.3), UNHARMED, memory=4),
        Attack(7, "requests for streams that never were", OMNI, repeated(b"", requests), ENDED,
               ("empty_frame_burst",)),
        Attack(7, "all credit given twice", MINMUX, saying(words.give_credit(2, TOP) * 2), ENDED,
               ("minmux.credit-overflow",)),
        Attack(7, "more credit given up than is held", MINMUX, saying(words.oops(1, TOP - 2)),
               ENDED, ("minmux.forgo-exceeds-credit",)),
        Attack(7, "a limit announced and then raised", MINMUX, saying(words.stop(1, 5),
               words.stop(1, 6)), ENDED, ("minmux.limit-raised",)),
        Attack(26, "2^64-1 items promised", MINMUX,
               saying(words.promise(1, TOP), words.promise(2, TOP)), UNHARMED, memory=1),
        Attack(26, "2^64-1 items promised where each has its own length", PROFILE,
               saying(words.promise(5, TOP)), UNHARMED, memory=1),
        Attack(26, "255 requests of 255 messages", WS,
               saying(over_websocket(opening(OMNI, 0)), over_websocket(requests) * 255), UNHARMED,
               memory=1),
        Attack(26, "requests that are never finished", STREAMUX,
               saying(*[words.streamux(n, b"x") for n in range(1000)]), UNHARMED, memory=4),
    ]  # fmt: skip
    for protocol in (V2, V3):
        wire = nerdbank(protocol)
        grow = wire.frame(words.GROWTH, wire.number(0))
        made.append(Attack(26, "wishes for a wider window", protocol,
                           flooding([wire.offer(wire.number(0)), *[grow] * PAIRS]), ENDED,
                           ("empty_frame_burst",)))  # fmt: skip
    return made


def attacks() -> list[Attack]:
    return [*slow_readers(), *overruns(), *window_arithmetic(), *other_arithmetic()]
