"""A collector on a disk that is slow, full or broken: memory is bounded, and promises are kept."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.collect.test_collector import Disk, collecting, landed, until

import polymux
from polymux import Policy, PolymuxError
from polymux.record import Bounds

KIB = 1024
READ = 256 * KIB  # octets that the system hands over at once


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Room:
    """A disk without room until there is some."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        self._write = os.pwritev
        patch.setattr("polymux.capture.writer.os.pwritev", self.pwritev)

    def pwritev(self, number: int, parts: list[bytes], offset: int) -> int:
        if self.full:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(number, parts, offset)


async def push(url: str, octets: int) -> None:
    async with polymux.connect(url, protocol="mplex") as session:
        stream = await session.open("bulk")
        for _ in range(0, octets, 50_000):
            await stream.send(bytes(50_000))
        await stream.end()
        assert await stream.receive() == b""


async def test_sessions_without_credit_share_one_budget_while_the_disk_is_slow(
    tmp_path: Path, disk: Disk
) -> None:
    bounds = Bounds(buffer=1024 * KIB, session_buffer=512 * KIB)
    async with collecting(tmp_path, "mplex", bounds=bounds) as collector:
        disk.open.clear()
        work = [asyncio.create_task(push(collector.urls[0], 3_000_000)) for _ in range(4)]
        await until(lambda: collector.counts.open == 4)
        most = 0
        for _ in range(100):
            held = [session.endpoint.inbox.unread for session in collector._sessions]
            most = max(most, sum(held))
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in work)
        assert 0 < most <= bounds.buffer + 4 * READ
        disk.open.set()
        await asyncio.gather(*work)
    assert [session.payload_dialer for session in landed(tmp_path)] == [3_000_000] * 4


async def test_a_pause_for_the_disk_has_an_end(tmp_path: Path, disk: Disk) -> None:
    bounds = Bounds(session_buffer=128 * KIB)
    policy = Policy(pause=0.3)
    async with collecting(tmp_path, "mplex", bounds=bounds, policy=policy) as collector:
        disk.open.clear()
        with pytest.raises(PolymuxError, match=r"aborted|closed"):
            await push(collector.urls[0], 3_000_000)
        disk.open.set()


async def test_nothing_is_promised_or_lost_while_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    async with collecting(tmp_path, "nerdbank") as collector:
        async with polymux.connect(collector.urls[0], protocol="nerdbank") as session:
            stream = await session.open("bulk")
            own = stream.record.half(0)
            await stream.send(b"before")
            await until(lambda: own.granted == own.window + 6)
            room.full = True
            sending = asyncio.create_task(stream.send(bytes(900_000)))
            await until(lambda: room.refused > 2)
            await asyncio.sleep(0.2)
            assert own.granted == own.window + 6, "told of what is not written"
            room.full = False
            await sending
            await stream.end()
            assert await stream.receive() == b""
            assert own.granted >= own.window + 6
    [session_row] = landed(tmp_path)
    assert session_row.payload_dialer == 900_006
    assert (session_row.ending, session_row.gap_dialer) == ("clean", 0)
