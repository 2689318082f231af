"""Shared by the families: protocols, and the frames for streams of an attacker in each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from tests.attacks import raw_frames as words
from tests.attacks.attacker_connection import WS
from tests.attacks.runner import SOAK, Play, Scene, until_read

MPLEX, STREAMUX, MINMUX, OMNI = "mplex", "streamux", "minmux", "omnistreams"
YAMUX = "yamux"
V1, V2, V3 = "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"
NERDBANK = (V1, V2, V3)
PROFILE = f"minmux:profile={Path(__file__).parents[1] / 'profile.toml'}"
ALL = (MPLEX, *NERDBANK, OMNI, STREAMUX, MINMUX)
DUPLEX = (MPLEX, *NERDBANK)

PAIRS = 1_000_000 if SOAK else 20_000  # frames or pairs of a flood
BUCKET = ("open_reset_burst",)


def nerdbank(protocol: str) -> words.Nerdbank:
    return words.Nerdbank(int(protocol[-1]))


def opening(protocol: str, n: int) -> bytes:
    """Open the n-th stream of the attacker."""
    if protocol == MPLEX:
        return words.mplex(n, words.NEW)
    if protocol in NERDBANK:
        wire = nerdbank(protocol)
        return wire.offer(wire.number(n))
    if protocol == OMNI:
        return words.omni(words.CREATE, bytes([n % 256]))
    if protocol == STREAMUX:
        return words.streamux(n % 16384, b"x")
    if protocol == YAMUX:
        return words.yamux(words.YAMUX_UPDATE, words.SYN, 2 * n + 1)
    return words.write_items(2 * n + 1, b"x")


def resetting(protocol: str, n: int) -> bytes:
    """Abort the n-th stream."""
    if protocol == MPLEX:
        return words.mplex(n, words.RESET)
    if protocol in NERDBANK:
        wire = nerdbank(protocol)
        return wire.frame(words.TERMINATED, wire.number(n))
    if protocol == OMNI:
        return words.omni(words.CANCEL_RECEIVE, bytes([n % 256]))
    if protocol == YAMUX:
        return words.yamux(words.YAMUX_UPDATE, words.RST, 2 * n + 1)
    return words.streamux(n % 16384) if protocol == STREAMUX else words.stop(2 * n + 1)


def content(protocol: str, n: int, data: bytes) -> bytes:
    """Bytes on the n-th stream."""
    if protocol == MPLEX:
        return words.mplex(n, words.MESSAGE, data)
    if protocol in NERDBANK:
        wire = nerdbank(protocol)
        return wire.frame(words.CONTENT, wire.number(n), data)
    if protocol == OMNI:
        return words.omni(words.DATA, bytes([n % 256]) + data)
    if protocol == STREAMUX:
        return words.streamux(n % 16384, data)
    if protocol == YAMUX:
        return words.yamux(words.YAMUX_DATA, 0, 2 * n + 1, 0, data)
    return words.write_items(2 * n + 1, data)


def flooding(pieces: Iterable[bytes], unread: bool = False) -> Play:
    """Connect and send these pieces until the server closes."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial(unread=unread)
        sent = await scene.foe.flood(pieces)
        scene.notes.append(f"{sent} pieces sent")

    return play


def saying(*pieces: bytes, hello: bool = True) -> Play:
    """Connect and send only this."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial(hello=hello)
        for piece in pieces:
            await scene.foe.send(piece)

    return play


def repeated(first: bytes, one: bytes, pause: float = 0.0) -> Play:
    """Connect, send `first`, and then the same piece without end."""

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        await scene.foe.send(first)
        await asyncio.sleep(pause)
        await until_read(scene)
        sent = await scene.foe.flood(one for _ in range(PAIRS))
        scene.notes.append(f"{sent} pieces sent")

    return play


def over_websocket(message: bytes) -> bytes:
    """A message behind its length, as a WebSocket frame instead."""
    return words.websocket(message[4:])


__all__ = ["ALL", "BUCKET", "DUPLEX", "MINMUX", "MPLEX", "NERDBANK", "OMNI", "PAIRS", "PROFILE",
           "STREAMUX", "V1", "V2", "V3", "WS", "YAMUX", "content", "flooding", "nerdbank",
           "opening", "over_websocket", "repeated", "resetting", "saying"]  # fmt: skip
