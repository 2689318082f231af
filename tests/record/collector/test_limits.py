"""A collector on a slow, full or broken disk: memory is bounded, confirmed data is durable."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from tests.record.collector.test_collector import Disk, collecting, landed, until

import polymux
from polymux import PolymuxError, Timeouts
from polymux.capture import RotatingWriter
from polymux.record import CollectorLimits
from polymux.record.collector import fitting_rotation
from polymux.record.durable_log import DurableLog, NotDurable

KIB = 1024
READ = 256 * KIB  # bytes that the system hands over at once


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Room:
    """A disk without room until there is some."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        self.refused = 0
        self._write = os.pwritev
        patch.setattr("polymux.capture.pcapng.writer.os.pwritev", self.pwritev)

    def pwritev(self, number: int, parts: list[bytes], offset: int) -> int:
        if self.full:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._write(number, parts, offset)


async def push(url: str, size: int) -> None:
    async with polymux.connect(url, protocol="mplex") as session:
        stream = await session.open("bulk")
        for _ in range(0, size, 50_000):
            await stream.send(bytes(50_000))
        await stream.end()
        assert await stream.receive() == b""


async def test_sessions_without_credit_share_one_budget_while_the_disk_is_slow(
    tmp_path: Path, disk: Disk
) -> None:
    limits = CollectorLimits(buffer_bytes=1024 * KIB, session_buffer_bytes=512 * KIB)
    async with collecting(tmp_path, "mplex", limits=limits) as collector:
        disk.open.clear()
        work = [asyncio.create_task(push(collector.urls[0], 3_000_000)) for _ in range(4)]
        await until(lambda: collector.stats.open == 4)
        most = looked = 0
        while looked < 100 or not most:
            held = [session.endpoint.receive_queue.unread_bytes for session in collector._sessions]
            most, looked = max(most, sum(held)), looked + 1
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in work)
        assert most <= limits.buffer_bytes + 4 * READ
        disk.open.set()
        await asyncio.gather(*work)
    assert [session.payload_bytes_dialer for session in landed(tmp_path)] == [3_000_000] * 4


async def test_a_pause_for_the_disk_has_an_end(tmp_path: Path, disk: Disk) -> None:
    limits = CollectorLimits(session_buffer_bytes=128 * KIB)
    timeouts = Timeouts(slow_reader=0.3)
    async with collecting(tmp_path, "mplex", limits=limits, timeouts=timeouts) as collector:
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
            own = stream.state.half(0)
            await stream.send(b"before")
            await until(lambda: own.credit_granted == own.window + 6)
            room.full = True
            sending = asyncio.create_task(stream.send(bytes(900_000)))
            await until(lambda: room.refused > 2)
            await asyncio.sleep(0.2)
            assert own.credit_granted == own.window + 6, "told of what is not written"
            room.full = False
            await sending
            await stream.end()
            assert await stream.receive() == b""
            assert own.credit_granted >= own.window + 6
    [session_row] = landed(tmp_path)
    assert session_row.payload_bytes_dialer == 900_006
    assert (session_row.ending, session_row.missing_bytes_dialer) == ("clean", 0)


async def test_a_pause_that_ends_does_not_read_on_while_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that goes on sending after its stream was reset must wait for the disk too."""
    room = Room(monkeypatch)
    limits = CollectorLimits(session_buffer_bytes=128 * KIB)
    timeouts = Timeouts(slow_reader=0.1)
    async with collecting(tmp_path, "mplex", limits=limits, timeouts=timeouts) as collector:
        address = collector.urls[0].removeprefix("tcp://").rsplit(":", 1)
        _, writer = await asyncio.open_connection(address[0], int(address[1]))
        writer.write(bytes.fromhex("00 01 61"))
        await until(lambda: collector.stats.open_streams == 1)
        room.full = True
        frame = bytes.fromhex("02 e0 d4 03") + bytes(60_000)

        async def flood() -> None:
            while True:
                writer.write(frame)
                await writer.drain()

        sending = asyncio.create_task(flood())
        await until(lambda: room.refused > 2)
        await asyncio.sleep(0.5)
        waiting = collector.durable_log.disk_full_queue.waiting_bytes
        assert waiting <= limits.session_buffer_bytes + 2 * READ
        sending.cancel()
        writer.transport.abort()
        room.full = False


async def test_a_peer_that_is_not_read_is_not_blamed_for_its_unfinished_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    timeouts = Timeouts(frame=0.3, keepalive_interval=0.3)
    async with collecting(tmp_path, "omnistreams", timeouts=timeouts) as collector:
        async with polymux.connect(collector.urls[0], protocol="omnistreams") as session:
            sender = await session.open("x")

            async def send() -> None:
                for _ in range(40):
                    await sender.send(bytes(900_000))
                await sender.end()

            sending = asyncio.create_task(send())
            await until(lambda: collector.durable_log.bytes_written > 2_000_000)
            [taken] = collector._sessions
            room.full = True
            await until(lambda: room.refused > 2)
            await asyncio.sleep(1.0)
            room.full = False
            await sending
            await until(lambda: collector.stats.open_streams == 0)
            assert taken.failure is None
    assert collector.stats.open == 0
    [row] = landed(tmp_path)
    assert row.payload_bytes_dialer == 40 * 900_000


async def test_streams_that_their_sender_aborts_are_forgotten(tmp_path: Path) -> None:
    async with collecting(
        tmp_path, "nerdbank:version=1", limits=CollectorLimits(streams=5)
    ) as collector:
        url = collector.urls[0]
        async with polymux.connect(url, protocol="nerdbank:version=1") as session:
            await until(lambda: collector.stats.open == 1)
            [taken] = collector._sessions
            for _ in range(12):
                stream = await session.open("x")
                await stream.send(bytes(1000))
                session.flush()
                stream.abort()
                await until(lambda: taken.open_streams == 0)
            assert taken.endpoint.receive_queue.unread_bytes == 0


async def test_a_journal_closed_during_a_sync_begins_no_other(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    writer = RotatingWriter(
        str(tmp_path / "c.pcapng"), max_bytes=1 << 20, max_seconds=10, sync="none", background=True
    )
    journal = DurableLog(writer, "always", lambda _: None, lambda: None)
    writer.packet(1, [bytes(100)])
    disk.open.clear()
    waiting = []
    for _ in range(2):
        waiting.append(asyncio.create_task(journal.wait_durable()))
        await asyncio.sleep(0.05)
    asyncio.get_running_loop().call_later(0.2, disk.open.set)
    assert len(await journal.close()) == 1
    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(each, NotDurable) for each in told)
    await asyncio.sleep(0.05)
    assert not caplog.records


async def test_at_the_limit_of_disk_space_senders_wait_and_no_file_is_removed(
    tmp_path: Path,
) -> None:
    tmp_path = tmp_path / "captures"
    limits = CollectorLimits(max_disk=600_000)
    async with collecting(tmp_path, "streamux", limits=limits) as collector:
        (tmp_path / "old.pcapng").write_bytes(bytes(550_000))
        async with polymux.connect(collector.urls[0], protocol="streamux") as session:
            await session.request(bytes(10_000), timeout=25)
            waiting = asyncio.create_task(session.request(bytes(60_000), timeout=25))
            await until(lambda: collector.durable_log.disk_full_queue.full)
            await asyncio.sleep(0.3)
            assert not waiting.done()
            assert (tmp_path / "old.pcapng").exists()
            (tmp_path / "old.pcapng").unlink()
            await waiting


async def test_at_the_limit_the_current_file_is_published_so_that_there_is_one_to_remove(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "captures"
    limits = CollectorLimits(max_disk=600_000)
    async with collecting(folder, "streamux", limits=limits, rotate_seconds=0) as collector:
        (folder / "other").write_bytes(bytes(500_000))
        async with polymux.connect(collector.urls[0], protocol="streamux") as session:
            await session.request(bytes(50_000), timeout=25)
            assert not list(folder.glob("*.pcapng")), "it is in the file that is being written"
            waiting = asyncio.create_task(session.request(bytes(60_000), timeout=25))
            await until(lambda: len(list(folder.glob("*.pcapng"))) == 1)
            assert not waiting.done()
            for path in folder.glob("*.pcapng*"):
                if path.suffix != ".part":
                    path.unlink()
            await waiting


def test_files_that_are_being_written_take_half_of_the_limit_of_disk_space() -> None:
    assert fitting_rotation(64 << 20, 0, 8) == 64 << 20
    assert fitting_rotation(64 << 20, 512 << 20, 8) == 32 << 20
    assert fitting_rotation(20_000, 512 << 20, 8) == 20_000
    assert fitting_rotation(0, 600_000, 1) == 300_000
    with pytest.raises(ValueError, match="max_disk=1000000 is below 1048576"):
        fitting_rotation(0, 1_000_000, 2)


async def test_bytes_that_are_not_durable_at_the_end_are_reported_with_the_reason(
    tmp_path: Path, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = Timeouts(close=0.1)
    async with collecting(tmp_path, "mplex", timeouts=hasty) as collector:
        url = collector.urls[0]
        async with polymux.connect(url, protocol="mplex", timeouts=hasty) as session:
            stream = await session.open("x")
            disk.open.clear()
            await stream.send(b"too late")
            await until(lambda: collector.durable_log.lag > 0)
            closing = asyncio.create_task(collector.close(0))
            await until(lambda: "not durable" in caplog.text)
            disk.open.set()
            await closing
    assert "the last bytes are not durable: the disk did not sync them within 1 s" in caplog.text
