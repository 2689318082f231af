"""A proxy killed at any moment: what a peer has received is in the file."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random

import pytest
from tests.record.captured_bytes import by_number
from tests.record.logging_peers import Room
from tests.record.record_process import Child

from polymux.capture import index_file, recover

KILLS = 100 if os.environ.get("POLYMUX_SOAK") else 20
AT_ONCE = 3
DIALERS = 3


async def kill_one(number: int, folder: Path, chance: Random) -> int:
    """Run a proxy and kill it. Return how many bytes of its file were compared."""
    room = Room(rest=0)
    out = folder / f"tap-{number}.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    async with Child("tcp://127.0.0.1:0", upstream, "-o", str(out)) as tap:
        for dialer in range(DIALERS):
            await room.dial(number * DIALERS + dialer, tap.port)
        if number % 4:  # the others also before anything was forwarded
            async with asyncio.timeout(60):
                while not any(peer.received for peer in room.acceptors.values()):
                    await asyncio.sleep(0.002)
        await asyncio.sleep(chance.choice([0.002, 0.02, 0.1, 0.3]) * chance.random())
        tap.kill()
        await tap.ended()
    await room.close()
    part = f"{out}.part"
    assert index_file(part).summary.status in ("whole", "truncated")
    assert recover(part) == str(out)
    assert index_file(str(out)).summary.status == "whole"
    assert not os.path.exists(part)
    return compare(room, out)


def compare(room: Room, out: Path) -> int:
    """Sent is at least recorded is at least received, byte for byte, in every direction."""
    recorded = by_number(out)
    for who, dialer in room.dialers.items():
        acceptor = room.acceptors.get(who)
        if who not in recorded:
            assert acceptor is None, "a peer heard of a connection that is not in the file"
            continue
        forth, back = recorded[who].raw_bytes
        assert recorded[who].gaps == (0, 0)
        assert dialer.sent.startswith(forth), "the file has bytes nobody sent"
        assert back.startswith(dialer.received), "the dialer received what is not in the file"
        if acceptor is not None:
            assert acceptor.sent.startswith(back), "the file has bytes nobody sent"
            assert forth.startswith(acceptor.received), "the acceptor received what is not there"
    return sum(len(data) for talk in recorded.values() for data in talk.raw_bytes)


@pytest.mark.timeout(700)
async def test_everything_a_peer_received_is_in_the_file_of_a_proxy_killed_at_any_moment(
    tmp_path: Path,
) -> None:
    chance = Random(2024)
    rooms = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> int:
        async with rooms:
            return await kill_one(number, tmp_path, chance)

    async with asyncio.TaskGroup() as tasks:
        lives = [tasks.create_task(one(number)) for number in range(KILLS)]
    compared = [life.result() for life in lives]
    assert len(compared) == KILLS
    assert sum(size > 0 for size in compared) > KILLS / 2, "the taps died before they had anything"
