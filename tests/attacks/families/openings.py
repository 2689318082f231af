"""Streams opened too fast, too many, twice, or used when they are gone (ATK-01, 03, 13, 14)."""

from __future__ import annotations

from collections.abc import Iterator

from tests.attacks import raw_frames as words
from tests.attacks.families.common import (
    BUCKET,
    DUPLEX,
    MINMUX,
    MPLEX,
    OMNI,
    PAIRS,
    PROFILE,
    STREAMUX,
    WS,
    content,
    flooding,
    opening,
    over_websocket,
    resetting,
    saying,
)  # fmt: skip
from tests.attacks.runner import COUNTED, ENDED, UNHARMED, Attack, Play, Scene, until_read


def open_and_reset(protocol: str) -> Iterator[bytes]:
    for n in range(PAIRS):
        yield opening(protocol, n) + resetting(protocol, n)


def pairs_on_websocket() -> Iterator[bytes]:
    for n in range(PAIRS):
        yield over_websocket(opening(OMNI, n)) + over_websocket(resetting(OMNI, n))


def stops_on_many_ids() -> Iterator[bytes]:
    """Minmux has no opening: each id is written and stopped."""
    for n in range(PAIRS):
        yield words.stop(2 * n + 1)


def rapid() -> list[Attack]:
    made = [
        Attack(1, "open and reset at line rate", protocol, flooding(open_and_reset(protocol)),
               ENDED, BUCKET, memory=16, handled=1100)
        for protocol in (*DUPLEX, OMNI)
    ]  # fmt: skip
    made.append(Attack(1, "open and reset at line rate", WS, flooding(pairs_on_websocket()), ENDED,
                       BUCKET, memory=16, handled=1100))  # fmt: skip
    made.append(Attack(1, "ask and cancel at line rate", STREAMUX,
                       flooding(open_and_reset(STREAMUX)), ENDED, BUCKET, memory=16))  # fmt: skip
    made.append(Attack(1, "stop stream after stream", MINMUX, flooding(stops_on_many_ids()), ENDED,
                       ("limit max_streams", *BUCKET), memory=16))  # fmt: skip
    return made


def flood_of_openings(protocol: str) -> Iterator[bytes]:
    for n in range(10 * PAIRS if PAIRS < 100_000 else 100_000):
        yield opening(protocol, n)


def never_taken() -> list[Attack]:
    made = [
        Attack(3, "openings that nobody takes", protocol, flooding(flood_of_openings(protocol)),
               ENDED, BUCKET, mode="deaf")
        for protocol in DUPLEX
    ]  # fmt: skip
    metadata = [words.omni(words.CREATE, bytes([n]) + bytes(1024 * 1024 - 2)) for n in range(2)]
    many = [metadata[n % 2][:5] + bytes([n]) + metadata[n % 2][6:] for n in range(256)]
    made += [
        Attack(
            3,
            "256 streams with 1 MiB of metadata each",
            OMNI,
            flooding(iter(many)),
            COUNTED,
            ("omnistreams.metadata-too-long", "max_metadata_bytes", "accept_backlog"),
            mode="deaf",
        ),
        Attack(
            3,
            "openings that nobody takes",
            OMNI,
            flooding(flood_of_openings(OMNI)),
            ENDED,
            ("omnistreams.", "limit "),
            mode="deaf",
        ),
        Attack(
            3,
            "a first chunk on every id",
            STREAMUX,
            flooding(opening(STREAMUX, n) for n in range(16384)),
            ENDED,
            BUCKET,
            mode="deaf",
        ),
        Attack(
            3,
            "packets on ids nobody asked for",
            MINMUX,
            flooding(words.promise(2 * n + 1, 1) for n in range(PAIRS)),
            ENDED,
            ("limit max_streams", "limit open_reset_burst"),
            mode="deaf",
        ),
        Attack(
            3,
            "a packet on an id that is not assigned",
            PROFILE,
            saying(words.promise(9, 1)),
            ENDED,
            ("minmux.unassigned-stream",),
            mode="deaf",
        ),
    ]
    return made


def twice() -> list[Attack]:
    reused = {MPLEX: "mplex.id-reused", STREAMUX: "streamux.id-in-flight"}
    made = [
        Attack(13, "a live id opened again", protocol,
               saying(opening(protocol, 0), opening(protocol, 0)), ENDED,
               (reused.get(protocol, "nerdbank.id-reused"),))
        for protocol in DUPLEX
    ]  # fmt: skip
    whole = words.streamux(3, b"x", last=True)
    made += [
        Attack(13, "a live id opened again", OMNI, saying(opening(OMNI, 0), opening(OMNI, 0)),
               COUNTED, ("omnistreams.create-on-open-id",)),
        Attack(13, "an id asked with again before its reply", STREAMUX, saying(whole, whole),
               COUNTED, ("streamux.id-in-flight",), mode="slow"),
        Attack(13, "written after its own stop", MINMUX,
               saying(words.stop(1) + words.write_items(1, b"x")), ENDED,
               ("minmux.write-past-limit",)),
    ]  # fmt: skip
    return made


def one_late_frame(protocol: str) -> Play:
    """A frame behind the attacker's own end of a stream."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(opening(protocol, 0) + resetting(protocol, 0))
        await until_read(scene)
        await scene.foe.send(content(protocol, 0, b"late"))
        await until_read(scene)

    return play


def late_frames(protocol: str) -> Iterator[bytes]:
    yield opening(protocol, 0) + resetting(protocol, 0)
    for _ in range(PAIRS):
        yield content(protocol, 0, b"late")


def dead() -> list[Attack]:
    late = {MPLEX: "mplex.write-after-reset", OMNI: "omnistreams.data-on-unknown-id"}
    made: list[Attack] = []
    for protocol in (*DUPLEX, OMNI):
        rule = late.get(protocol, "nerdbank.frame-after-termination")
        made.append(Attack(14, "a frame for a dead stream", protocol, one_late_frame(protocol),
                           COUNTED, (rule, "nerdbank.unknown-channel")))  # fmt: skip
        made.append(
            Attack(
                14,
                "frames for a dead stream without end",
                protocol,
                flooding(late_frames(protocol)),
                ENDED,
                ("unknown_stream_burst", "empty_frame_burst", "too many frames"),
            )
        )
    replies = (words.streamux(5, b"x", True, reply=True) for _ in range(PAIRS))
    made += [
        Attack(14, "a reply to nothing", STREAMUX, saying(words.streamux(5, b"x", True, True)),
               COUNTED, ("streamux.reply-unknown",)),
        Attack(14, "replies to nothing without end", STREAMUX, flooding(replies), ENDED,
               ("unknown_stream_burst",)),
        Attack(14, "credit for a stream that is over", MINMUX,
               saying(words.stop(2), words.give_credit(2, 5)), ENDED, ("minmux.",)),
    ]  # fmt: skip
    return made


def colliding() -> list[Attack]:
    """Ids chosen to collide in the hash table of streams."""
    ids = [n << 32 for n in range(1, 1001)]
    frames = [words.mplex(n, words.NEW) for n in ids]
    frames += [words.mplex(n, words.MESSAGE, b"x") for _ in range(50) for n in ids]
    return [Attack(3, "ids that collide in the table", MPLEX, flooding(iter(frames)), UNHARMED,
                   mode="read", limits={"accept_backlog": 2000, "max_streams": 2000})]  # fmt: skip


def attacks() -> list[Attack]:
    return [*rapid(), *never_taken(), *twice(), *dead(), *colliding()]
