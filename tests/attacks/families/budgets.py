"""Many messages, channels and connections at once, none of which exceeds a limit of its own
(ATK-30): the budgets of a session and of a server bound them together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Iterator

from tests.attacks import raw_frames as words
from tests.attacks.attacker_connection import Foe
from tests.attacks.families.common import MPLEX, STREAMUX, V1, V2, V3, YAMUX, content, opening
from tests.attacks.runner import COUNTED, MIB, SOAK, UNHARMED, Attack, Play, Scene

import polymux

CALLS = 1024
CHANNELS = 1000
CONNECTIONS = 48 if SOAK else 10
HELD = (18 if SOAK else 5) * MIB  # what each of these connections sends
STREAMS, FRAME = 8, 60_000
PAUSES = 20 if SOAK else 4  # of reading, after each of which the server has aborted some requests
GIVEN_UP = 120.0  # seconds after which a flood has failed
PIECE = 60_000 if SOAK else 15_000
# The fast form scales the budgets down, and what is sent with them.
SMALL = {} if SOAK else {"assembly_buffer_bytes": 8 * MIB, "session_buffer_bytes": 2 * MIB,
                         "max_message_bytes": MIB}  # fmt: skip
SERVER = {} if SOAK else {"server_buffer_bytes": 8 * MIB, "session_buffer_bytes": 4 * MIB}

CHANNEL = {} if SOAK else {"session_buffer_bytes": 4 * MIB}


def unfinished_calls() -> Play:
    """A piece of every request, again and again: 16 MiB each, if the server took them.

    It goes on until the server has stopped reading, and given up what held it up, several times.
    """

    def pieces() -> Iterator[bytes]:
        for _ in range(4):
            for number in range(CALLS):
                yield words.streamux(number, bytes(PIECE))

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        sending = asyncio.create_task(scene.foe.flood(pieces()))
        try:
            async with asyncio.timeout(GIVEN_UP):
                while not sending.done():
                    hits = (await scene.told())["hits"]
                    if hits.get("session_buffer_bytes", 0) >= PAUSES:
                        break
                    await asyncio.sleep(0.05)
        finally:
            sending.cancel()
            await asyncio.wait([sending])
        scene.notes.append(f"{CALLS} requests at once")

    return play


def filled_windows(protocol: str) -> Play:
    """As much content on each of a thousand channels as its window allows."""

    async def play(scene: Scene) -> None:
        session = await scene.client()
        streams = await asyncio.gather(*(session.open("x") for _ in range(CHANNELS)))
        allowed = sum(stream.own_half.credit_granted for stream in streams)
        for stream in streams:
            stream.send_nowait(bytes(stream.own_half.credit_granted))
        while any(stream.buffers.queued_bytes for stream in streams):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        scene.notes.append(f"{CHANNELS} windows of {allowed / MIB:.1f} MiB together")
        assert allowed <= (64 if SOAK else 16) * MIB
        scene.target.sample()

    return play


def many_connections(protocol: str) -> Play:
    """Connections that each send what one session may hold, to streams that are not read.

    Every connection opens several, and sends a frame on each in turn.
    """

    async def play(scene: Scene) -> None:
        await scene.foe.dial()
        foes = [scene.foe, *[await scene.another() for _ in range(CONNECTIONS - 1)]]

        async def fill(foe: Foe) -> None:
            for n in range(STREAMS):
                await foe.send(opening(protocol, n))
            data = bytes(FRAME)
            await foe.flood(content(protocol, n % STREAMS, data) for n in range(HELD // FRAME))

        await all_filled([fill(foe) for foe in foes])
        scene.notes.append(f"{CONNECTIONS} connections of {HELD // MIB} MiB")

    return play


def windows_of_many_connections(protocol: str) -> Play:
    """Connections that fill windows, each as many as one session may hold."""

    async def play(scene: Scene) -> None:
        sessions = [await scene.client() for _ in range(CONNECTIONS)]

        async def fill(session: polymux.Session) -> None:
            sent = 0
            while sent < HELD:
                stream = await session.open("" if protocol == YAMUX else "x")
                allowed = stream.own_half.credit_granted
                with contextlib.suppress(polymux.StreamAborted):
                    await stream.send(bytes(allowed))
                sent += allowed

        await all_filled([fill(session) for session in sessions])
        scene.notes.append(f"{CONNECTIONS} connections of {HELD // MIB} MiB")

    return play


async def all_filled(filling: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all of these; they fail if they take too long."""
    tasks = [asyncio.create_task(each) for each in filling]
    try:
        async with asyncio.timeout(GIVEN_UP):
            await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def attacks() -> list[Attack]:
    made = [
        Attack(30, "a thousand requests at once, none of which ends", STREAMUX, unfinished_calls(),
               COUNTED, ("assembly_buffer_bytes",), memory=112 if SOAK else 20, within=10,
               limits=SMALL, timeouts={"slow_reader": 1.0}),
    ]  # fmt: skip
    for protocol, mode, play, what in (
        (MPLEX, "slow", many_connections(MPLEX), "unread streams"),
        (V1, "slow", many_connections(V1), "unread channels"),
        (STREAMUX, "slow", many_connections(STREAMUX), "unread requests"),
        (STREAMUX, "echo", many_connections(STREAMUX), "requests that do not end"),
        (V2, "slow", windows_of_many_connections(V2), "windows"),
        (V3, "slow", windows_of_many_connections(V3), "windows"),
        (YAMUX, "slow", windows_of_many_connections(YAMUX), "windows"),
    ):
        title = f"connections that each stay within their own limit, with {what}"
        made.append(
            Attack(30, title, protocol, play, COUNTED, ("server_buffer_bytes",),
                   memory=320 if SOAK else 20, mode=mode, limits=SERVER,
                   # Its windows are small: there is a pause for each 256 KiB.
                   timeouts={"slow_reader": 2.0 if SOAK and protocol != YAMUX else 0.5})
        )  # fmt: skip
    made += [
        Attack(
            30,
            "a thousand channels, every window filled",
            protocol,
            filled_windows(protocol),
            UNHARMED,
            memory=96 if SOAK else 32,
            mode="slow",
            limits=CHANNEL,
        )
        for protocol in (V2, V3)
    ]
    return made
