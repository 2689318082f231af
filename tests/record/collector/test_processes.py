"""`polymux collect --processes`: one directory, one limit, and confirmed data, also after kills."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

from tests.record.collector.logging_senders import Sender
from tests.record.collector.test_collector import landed
from tests.record.collector.test_kill import contents
from tests.running_command import Running

import polymux

HERE = "tcp://127.0.0.1:0"
TWO = ("--processes", "2")
KILLS = 3
KIB = 1024
PUSHED = 20_000


def collecting(folder: Path, *more: str) -> Running:
    return Running(
        "collect", "--listen", HERE, "--protocol", "mplex", "--out", str(folder), *TWO, *more
    )


async def push(url: str, size: int = 1000) -> None:
    async with polymux.connect(url, protocol="mplex") as session:
        stream = await session.open("bulk")
        await stream.send(bytes(size))
        await stream.end()
        assert await stream.receive() == b""


async def test_confirmed_data_survives_kills_of_single_processes(tmp_path: Path) -> None:
    chance = Random(34)
    with collecting(tmp_path, "--rotate-size", "1M") as running:
        senders = [
            Sender(number, running.url, "mplex", 3, 400_000, rest=0.005) for number in range(4)
        ]
        work = [asyncio.create_task(sender.run()) for sender in senders]
        for _ in range(KILLS):
            await asyncio.sleep(chance.random() * 0.4)
            await asyncio.to_thread(running.kill_worker)
        await asyncio.gather(*work)
        assert await asyncio.to_thread(running.stop) == 0, running.err
    left = [path.name for path in tmp_path.glob("*.part")]
    assert [name for name in left if name.startswith("collect")] == []
    found = contents(tmp_path)
    for sender in senders:
        assert sum(attempt.done for attempt in sender.log) == 3
        for attempt in sender.log:
            data = found.get(attempt.name, b"")
            assert attempt.data.startswith(data), "there are bytes nobody sent"
            assert len(data) >= attempt.told, f"{attempt.name}: told of more than is there"


async def test_the_last_line_adds_up_what_all_processes_have_collected(tmp_path: Path) -> None:
    with collecting(tmp_path) as running:
        await asyncio.gather(*(push(running.url) for _ in range(8)))
        assert await asyncio.to_thread(running.stop) == 0
    assert "8 sessions, 8 streams, 0 rejected" in running.err
    assert running.err.count(" durable in ") == 1
    assert len(landed(tmp_path)) == 8


async def test_the_files_of_all_processes_together_stay_below_the_limit(tmp_path: Path) -> None:
    most = 1024 * KIB
    confirmed = 0

    async def push_again_and_again(url: str) -> None:
        nonlocal confirmed
        while True:
            await push(url, PUSHED)
            confirmed += 1

    with collecting(tmp_path, "--max-disk", str(most), "--rotate-size", "20K") as running:
        pushing = [asyncio.create_task(push_again_and_again(running.url)) for _ in range(8)]
        async with asyncio.timeout(60):
            while "limit max_disk" not in running.err:
                await asyncio.sleep(0.01)
            while len(list(tmp_path.glob("*.pcapng"))) < 8:
                await asyncio.sleep(0.01)
        captures = sum(path.stat().st_size for path in tmp_path.glob("*.pcapng*"))
        assert captures < most + 30 * KIB  # headers, and indexes, which are written afterwards
        before = confirmed
        assert 8 < before * PUSHED < most
        for path in tmp_path.glob("*.pcapng"):  # those that were published
            path.unlink()
        async with asyncio.timeout(60):
            while confirmed < before + 8:
                await asyncio.sleep(0.01)
        for task in pushing:
            task.cancel()
        await asyncio.gather(*pushing, return_exceptions=True)
