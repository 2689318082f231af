"""Many messages, channels and connections at once, none of which exceeds a limit of its own
(ATK-30): the budgets of a session and of a server bound them together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from tests.attacks import raw_frames as words
from tests.attacks.attacker_connection import Foe
from tests.attacks.families.common import MPLEX, STREAMUX, V2, V3, opening
from tests.attacks.runner import COUNTED, MIB, SOAK, UNHARMED, Attack, Play, Scene

import polymux

CALLS = 1024
CHANNELS = 1000
CONNECTIONS = 48 if SOAK else 10
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
        await scene.foe.dial()
        url = f"tcp://127.0.0.1:{scene.target.port}"
        session = await polymux.connect(url, protocol=protocol)
        try:
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
        finally:
            session.abort()
            await session.wait_closed()

    return play


def many_connections() -> Play:
    """Connections that each send what one session may hold, to streams that are not read."""

    async def play(scene: Scene) -> None:
        size = (18 if SOAK else 5) * MIB
        await scene.foe.dial()
        foes = [scene.foe, *[await scene.another() for _ in range(CONNECTIONS - 1)]]
        frame = words.mplex(0, words.MESSAGE, bytes(60_000))

        async def fill(foe: Foe) -> None:
            await foe.send(opening(MPLEX, 0))
            await foe.flood(frame for _ in range(size // 60_000))

        filling = [asyncio.create_task(fill(foe)) for foe in foes]
        try:
            async with asyncio.timeout(GIVEN_UP):
                await asyncio.gather(*filling)
        finally:
            for task in filling:
                task.cancel()
            await asyncio.wait(filling)
        scene.notes.append(f"{CONNECTIONS} connections of {size // MIB} MiB")

    return play


def attacks() -> list[Attack]:
    made = [
        Attack(30, "a thousand requests at once, none of which ends", STREAMUX, unfinished_calls(),
               COUNTED, ("assembly_buffer_bytes",), memory=112 if SOAK else 20, within=10,
               limits=SMALL, timeouts={"slow_reader": 1.0}),
        Attack(30, "connections that each stay within their own limit", MPLEX, many_connections(),
               COUNTED, ("server_buffer_bytes",), memory=320 if SOAK else 20, mode="slow",
               limits=SERVER, timeouts={"slow_reader": 2.0}),
    ]  # fmt: skip
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
