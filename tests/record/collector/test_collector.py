"""A collector stores received data in captures, and confirms it only when it is durable."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.record.certificate_authority import Authority

import polymux
from polymux import PolymuxError, SessionClosed, Timeouts
from polymux.aio.connect import Unreachable
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import SessionSummary, analyze_session
from polymux.capture import read_sessions
from polymux.record import Collector, CollectorLimits, NotDurable, collect
from polymux.record import tls_contexts as tls

TCP = "tcp://127.0.0.1:0"
BYTES = 300_000


def landed(folder: Path) -> list[SessionSummary]:
    """The sessions in the captures of a folder, none of which may be torn."""
    with read_sessions([str(folder)]) as reading:
        assert all(file.status == "whole" for file in reading.files)
        return [
            analyze_session(session, AnalysisOptions(), lambda table, batch: None)
            for session in reading
        ]


class Disk:
    """Syncs that wait until they are let go, and can be made to fail."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.broken = False
        self.syncs = 0
        self._sync = os.fsync
        patch.setattr("polymux.capture.pcapng.writer.os.fsync", self.fsync)

    def fsync(self, number: int) -> None:
        self.open.wait(60)
        self.syncs += 1
        if self.broken:
            raise OSError(5, "Input/output error")
        self._sync(number)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


async def until(truth: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not truth():
            await asyncio.sleep(0.005)


async def push_duplex(url: str, protocol: str) -> None:
    async with polymux.connect(url, protocol=protocol) as session:
        stream = await session.open("bulk")
        await stream.send(bytes(BYTES))
        await stream.end()
        assert await stream.receive() == b""


async def push_messages(url: str, protocol: str) -> None:
    async with polymux.connect(url, protocol=protocol) as session:
        assert isinstance(session, polymux.OmnistreamsSession)
        await session.control(b"hello")
        async with await session.open("bulk") as sender:
            await sender.send_all(bytes(BYTES), 1000)


async def push_requests(url: str, protocol: str) -> None:
    async with polymux.connect(url, protocol=protocol) as session:
        assert isinstance(session, polymux.StreamuxSession)
        assert await session.request(bytes(BYTES)) == b""


async def push_items(url: str, protocol: str) -> None:
    async with polymux.connect(url, protocol=protocol) as session:
        assert isinstance(session, polymux.MinmuxSession)
        sender = session.sender(7)
        sender.promise(1)
        for _ in range(BYTES // 1000):
            await sender.send(bytes(1000))
        await sender.stop()
        await sender.wait_over()


@pytest.mark.parametrize(
    ("url", "protocol", "push"),
    [
        (TCP, "mplex", push_duplex),
        (TCP, "nerdbank:version=1", push_duplex),
        (TCP, "nerdbank:version=2", push_duplex),
        (TCP, "nerdbank:version=3", push_duplex),
        (TCP, "omnistreams:carrier=length", push_messages),
        ("ws://127.0.0.1:0", "omnistreams", push_messages),
        (TCP, "streamux", push_requests),
        (TCP, "minmux", push_items),
    ],
)
async def test_sessions_of_every_protocol_are_stored_completely(
    url: str, protocol: str, push: Callable[[str, str], asyncio.Future[None]], tmp_path: Path
) -> None:
    collector = await collect(url, protocol=protocol, out=str(tmp_path))
    await push(collector.urls[0], protocol)
    published = await collector.close()
    assert published == [str(tmp_path / "collect-00001.pcapng")]
    assert os.path.exists(f"{published[0]}.idx")
    [session] = landed(tmp_path)
    assert session.ending == "clean"
    assert session.payload_bytes_dialer == BYTES
    assert session.vantage == "acceptor"
    assert session.violations == 0
    assert session.balanced


async def test_configured_minmux_streams_get_credit_before_they_are_used(
    tmp_path: Path,
) -> None:
    async with Collector(str(tmp_path), minmux_streams=[5]) as collector:
        url = await collector.listen(TCP, "minmux")
        async with polymux.connect(url, protocol="minmux") as session:
            assert isinstance(session, polymux.MinmuxSession)
            async with asyncio.timeout(60):
                await session.sender(5).send(b"waits for credit")
            await session.sender(5).stop()
    assert landed(tmp_path)[0].payload_bytes_dialer == 16


@asynccontextmanager
async def collecting(folder: Path, protocol: str, **more: object) -> AsyncIterator[Collector]:
    collector = await collect(TCP, protocol=protocol, out=str(folder), **more)  # type: ignore[arg-type] # as collect has it
    try:
        yield collector
    finally:
        await collector.close(0)


@pytest.mark.parametrize("protocol", ["nerdbank:version=2", "nerdbank:version=3"])
async def test_no_window_is_given_back_before_its_bytes_are_durable(
    protocol: str, tmp_path: Path, disk: Disk
) -> None:
    async with collecting(tmp_path, protocol) as collector:
        async with polymux.connect(collector.urls[0], protocol=protocol) as session:
            stream = await session.open("held")
            own = stream.state.half(0)
            disk.open.clear()
            await stream.send(bytes(800_000))
            await until(lambda: collector.durable_log.bytes_written > 800_000)
            await asyncio.sleep(0.1)
            assert own.credit_granted == own.window, "told of what may be lost"
            disk.open.set()
            await until(lambda: own.credit_granted == own.window + 800_000)
            await stream.end()
            assert await stream.receive() == b""


async def test_no_message_is_asked_for_before_the_last_are_durable(
    tmp_path: Path, disk: Disk
) -> None:
    protocol = "omnistreams:carrier=length"
    async with collecting(tmp_path, protocol) as collector:
        async with polymux.connect(collector.urls[0], protocol=protocol) as session:
            sender = await session.open("held")
            own = sender.state.half(0)
            await sender.drain()
            first = own.credit_granted
            disk.open.clear()
            for _ in range(50):
                await sender.send(b"message")
            await asyncio.sleep(0.2)
            assert own.credit_granted == first
            disk.open.set()
            await until(lambda: own.credit_granted == first + 50)
            await sender.end()


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=3", "streamux"])
async def test_an_end_is_answered_only_when_everything_before_it_is_durable(
    protocol: str, tmp_path: Path, disk: Disk
) -> None:
    async with collecting(tmp_path, protocol) as collector:
        async with polymux.connect(collector.urls[0], protocol=protocol) as session:
            stream = await session.open("held") if protocol != "streamux" else await session.open()
            disk.open.clear()
            await stream.send(b"the last word")
            await stream.end()
            answer = asyncio.create_task(stream.receive())
            await asyncio.sleep(0.2)
            assert not answer.done(), "answered before it was safe"
            disk.open.set()
            async with asyncio.timeout(60):
                assert await answer == b""


async def test_waiting_callers_share_syncs(tmp_path: Path, disk: Disk) -> None:
    async with collecting(tmp_path, "mplex") as collector:
        async with polymux.connect(collector.urls[0], protocol="mplex") as session:

            async def one(number: int) -> None:
                stream = await session.open(str(number))
                await stream.send(b"x")
                await stream.end()
                assert await stream.receive() == b""

            disk.open.clear()
            asking = asyncio.gather(*(one(number) for number in range(100)))
            await until(lambda: collector.stats.streams == 100)
            disk.open.set()
            await asking
        assert collector.durable_log.syncs < 20


async def test_an_interval_lets_senders_wait_for_the_next_sync(tmp_path: Path, disk: Disk) -> None:
    begun = time.monotonic()
    async with collecting(tmp_path, "mplex", sync=0.3) as collector:
        for _ in range(2):
            await push_duplex(collector.urls[0], "mplex")
        assert 1 < collector.durable_log.syncs <= 1 + (time.monotonic() - begun) / 0.3
    assert len(landed(tmp_path)) == 2


async def test_a_sync_that_fails_cuts_everybody_and_promises_nothing(
    tmp_path: Path, disk: Disk
) -> None:
    collector = await collect(TCP, protocol="nerdbank", out=str(tmp_path))
    async with polymux.connect(collector.urls[0], protocol="nerdbank") as session:
        stream = await session.open("held")
        own = stream.state.half(0)
        disk.broken = True
        await stream.send(bytes(100_000))
        await stream.end()
        with pytest.raises(PolymuxError):
            await stream.receive()
        assert own.credit_granted == own.window
        with pytest.raises(NotDurable, match="Input/output error"):
            await collector.wait_failed()
        with pytest.raises(PolymuxError):  # no session is accepted any more
            async with polymux.connect(collector.urls[0], protocol="nerdbank") as other:
                await other.open("late")
    with pytest.raises(polymux.CaptureError, match="recover"):
        await collector.close(0)


async def test_clients_beyond_the_limits_are_rejected(tmp_path: Path) -> None:
    limits = CollectorLimits(clients=3, per_host=2)
    async with collecting(tmp_path, "mplex", limits=limits) as collector:
        url = collector.urls[0]
        sessions = [await polymux.connect(url, protocol="mplex") for _ in range(2)]
        for session in sessions:  # one that sends nothing would make room for the third
            await (await session.open()).send(b"here")
        await until(lambda: collector.stats.open_streams == 2)
        third = await polymux.connect(url, protocol="mplex")
        await third.wait_closed()
        assert collector.stats.rejected == 1
        for session in sessions:
            await session.close()
        await until(lambda: collector.stats.open == 0)
        await push_duplex(url, "mplex")


async def test_streams_beyond_the_limit_of_a_session_are_rejected(tmp_path: Path) -> None:
    async with collecting(tmp_path, "mplex", limits=CollectorLimits(streams=4)) as collector:
        async with polymux.connect(collector.urls[0], protocol="mplex") as session:
            kept = [await session.open(str(n)) for n in range(4)]
            await until(lambda: collector.stats.open_streams == 4)
            over = await session.open("one too many")
            with pytest.raises(PolymuxError):
                await over.receive()
            for stream in kept:
                await stream.end()
                assert await stream.receive() == b""


async def speak(url: str, context: ssl.SSLContext) -> None:
    async with polymux.connect(url, protocol="mplex", tls=context) as session:
        stream = await session.open("somebody")
        await stream.send(b"hello")
        await stream.end()
        assert await stream.receive() == b""


async def test_senders_must_show_a_certificate_if_they_are_asked_for_one(
    tmp_path: Path, authority: Authority
) -> None:
    cert, key = authority.cert, authority.key
    context = tls.server_context(cert, key, authority.ca)
    collector = await collect("tls://localhost:0", protocol="mplex", out=str(tmp_path), tls=context)
    url = collector.urls[0]
    with pytest.raises((Unreachable, SessionClosed)):
        await speak(url, tls.client_context(authority.ca))
    await speak(url, tls.client_context(authority.ca, cert=cert, key=key))
    await collector.close()
    assert [session.payload_bytes_dialer for session in landed(tmp_path)] == [5]


async def test_a_stop_lets_streams_under_way_finish(tmp_path: Path) -> None:
    collector = await collect(TCP, protocol="mplex", out=str(tmp_path))
    async with polymux.connect(collector.urls[0], protocol="mplex") as session:
        stream = await session.open("under way")
        await stream.send(b"first half, ")
        await until(lambda: collector.stats.open_streams == 1)
        closing = asyncio.create_task(collector.close(5))
        await asyncio.sleep(0.1)
        with pytest.raises(Unreachable):
            await polymux.connect(collector.urls[0], protocol="mplex")
        await stream.send(b"second half")
        await stream.end()
        assert await stream.receive() == b""
        await closing
    [session_row] = landed(tmp_path)
    assert session_row.payload_bytes_dialer == 23
    assert session_row.ending == "clean"


async def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
    collector = await collect(
        TCP, protocol="mplex", out=str(tmp_path), timeouts=Timeouts(close=0.5)
    )
    session = await polymux.connect(collector.urls[0], protocol="mplex")
    stream = await session.open("never ends")
    await stream.send(b"so far")
    await until(lambda: collector.durable_log.bytes_written > 6)
    async with asyncio.timeout(60):
        await collector.close(0.2)
    await session.close()
    assert landed(tmp_path)[0].payload_bytes_dialer == 6


async def test_a_collector_that_received_nothing_leaves_no_file(tmp_path: Path) -> None:
    collector = await collect(TCP, protocol="mplex", out=str(tmp_path))
    assert await collector.close() == []
    assert os.listdir(tmp_path) == []


async def test_an_index_that_a_killed_collector_could_not_write_is_written_by_the_next(
    tmp_path: Path,
) -> None:
    collector = await collect(TCP, protocol="mplex", out=str(tmp_path))
    await push_duplex(collector.urls[0], "mplex")
    [name] = await collector.close()
    part = tmp_path / ".collect-00001.pcapng.idx.0123abcd.part"
    os.rename(f"{name}.idx", part)
    os.utime(part, (0, 0))  # long ago: no other process still writes it
    collector = await collect(TCP, protocol="mplex", out=str(tmp_path))
    await collector.close()
    assert sorted(os.listdir(tmp_path)) == ["collect-00001.pcapng", "collect-00001.pcapng.idx"]
