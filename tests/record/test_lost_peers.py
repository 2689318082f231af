"""On a full disk nothing is read, and peers that are gone give their places back all the same."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.record.collector.test_collector import collecting, until
from tests.record.collector.test_limits import Room

import polymux
from polymux.aio import StreamuxSession
from polymux.capture import PcapngWriter
from polymux.record import CollectorLimits, RecordingProxy
from polymux.record.held_sessions import HeldSessions

OPEN_STREAM = bytes.fromhex("00 01 61")
HELLO = bytes.fromhex("02 05") + b"hello"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def dial(port: int, data: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", port))
    peer.sendall(data)
    return peer


def reset(peer: socket.socket) -> None:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


@pytest.mark.parametrize("ending", ["reset", "closed"])
async def test_sessions_whose_peers_are_gone_leave_room_for_others_on_a_full_disk(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset is noticed within a second; a peer that has closed gives way when one is needed."""
    room = Room(monkeypatch)
    limits = CollectorLimits(clients=3)
    async with collecting(tmp_path, "mplex", limits=limits) as collector:
        port = int(collector.urls[0].rpartition(":")[2])
        peers = [dial(port, OPEN_STREAM) for _ in range(3)]
        await until(lambda: collector.stats.open_streams == 3)
        room.full = True
        for peer in peers:
            peer.sendall(HELLO)
        await until(lambda: room.refused > 0)
        for peer in peers:
            reset(peer) if ending == "reset" else peer.close()
        if ending == "reset":
            await until(lambda: collector.stats.open == 0)
        async with polymux.connect(collector.urls[0], protocol="mplex") as session:
            stream = await session.open("new")
            await stream.send(b"data")
            await until(lambda: collector.stats.sessions == 4)
            assert collector.stats.rejected == 0
            room.full = False
            await stream.end()
            assert await stream.receive() == b""
    print(f"D15 collector, {ending}: {len(peers)} lost peers, a new one was served")


async def test_a_session_that_ended_on_a_full_disk_makes_room_for_one_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    limits = CollectorLimits(clients=2, per_host=0)
    async with collecting(tmp_path, "mplex", limits=limits) as collector:
        port = int(collector.urls[0].rpartition(":")[2])
        peers = [dial(port, OPEN_STREAM) for _ in range(2)]
        await until(lambda: collector.stats.open_streams == 2)
        room.full = True
        for peer in peers:
            peer.sendall(HELLO)
        await until(lambda: room.refused > 0)
        peers[0].close()
        newcomers = [dial(port, OPEN_STREAM) for _ in range(6)]
        await until(lambda: collector.stats.rejected >= 5)
        assert collector.stats.rejected == 5
        room.full = False
        for peer in (peers[1], *newcomers):
            peer.close()


async def test_on_a_full_disk_only_so_many_packets_wait_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.record.collector.MAX_WAITING_BURSTS", 100)
    room = Room(monkeypatch)
    async with collecting(tmp_path, "mplex") as collector:
        port = int(collector.urls[0].rpartition(":")[2])
        held = dial(port, OPEN_STREAM)
        await until(lambda: collector.stats.open_streams == 1)
        room.full = True
        held.sendall(HELLO)
        await until(lambda: room.refused > 0)
        for _ in range(150):
            reset(dial(port))
        await until(lambda: collector.stats.rejected > 50)
        assert collector.durable_log.disk_full_queue.waiting_count < 200
        room.full = False
        await until(lambda: not collector.durable_log.disk_full_queue.full)
        async with polymux.connect(collector.urls[0], protocol="mplex") as session:
            stream = await session.open("new")
            await stream.send(b"data")
            await stream.end()
            assert await stream.receive() == b""
        held.close()


async def test_keep_alives_that_wait_on_a_full_disk_end_the_sessions_that_ask_for_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.record.collector.MAX_WAITING_BURSTS", 40)
    room = Room(monkeypatch)
    async with collecting(tmp_path, "streamux") as collector:
        url = collector.urls[0]
        hasty = [await polymux.connect(url, protocol="streamux:timeout=0.1") for _ in range(16)]
        async with polymux.connect(url, protocol="streamux:timeout=25") as patient:
            assert isinstance(patient, StreamuxSession)  # as the protocol says
            await until(lambda: collector.stats.open == 17)
            room.full = True
            waiting = asyncio.create_task(patient.request(b"kept", timeout=25))
            await until(lambda: collector.stats.open == 1)
            assert collector.durable_log.disk_full_queue.waiting_count < 80
            room.full = False
            await waiting
        for session in hasty:
            session.abort()


def test_a_session_has_to_end_when_it_has_written_more_than_its_share() -> None:
    class Written:
        bytes_sent = 0

    often, seldom = Written(), Written()
    sessions = [often, seldom]
    held: Any = HeldSessions(12)  # of a session it reads only `bytes_sent`
    assert held.overdue(sessions, 2) == []
    for waiting in (3, 4, 5, 6):
        often.bytes_sent += 1
        assert held.overdue(sessions, waiting) == ([often] if waiting == 6 else [])
    seldom.bytes_sent += 1
    assert held.overdue(sessions, 7) == []
    seldom.bytes_sent += 1
    assert held.overdue(sessions, 12) == [seldom]
    assert held.overdue(sessions, 12) == []
    assert held.overdue([], 12) == []


async def test_a_peer_that_waits_for_its_answer_on_a_full_disk_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended its direction and is still there: with room for all, it keeps its place."""
    room = Room(monkeypatch)
    async with collecting(tmp_path, "mplex") as collector:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(collector.urls[0].rpartition(":")[2])
        )
        writer.write(OPEN_STREAM)
        await until(lambda: collector.stats.open_streams == 1)
        room.full = True
        writer.write(HELLO + bytes.fromhex("04 00"))
        writer.write_eof()
        await until(lambda: room.refused > 2)
        await asyncio.sleep(1.2)
        assert collector.stats.open == 1
        room.full = False
        assert await reader.readexactly(2) == bytes.fromhex("03 00")
        writer.close()


async def test_a_blocked_recorder_closes_the_descriptors_of_connections_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = Room(monkeypatch)
    accepted: list[asyncio.StreamWriter] = []
    upstream = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    target = f"tcp://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    with PcapngWriter(str(tmp_path / "talk.pcapng"), sync="none", on_full="block") as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", target, sink, on_full="block") as proxy:
            port = proxy.address.port
            first = [dial(port, b"hello") for _ in range(3)]
            await until(lambda: proxy.stats.bytes_dialer == 15)
            room.full = True
            for peer in first:
                peer.sendall(b"more")
            await until(lambda: room.refused > 0)
            before = descriptors()
            for ending in (reset, socket.socket.close):
                for _ in range(20):
                    ending(dial(port))
            reset(dial(port, b"data that is never read"))
            await until(lambda: proxy.stats.connections == 44)
            await until(lambda: proxy.stats.open == 3)
            await until(lambda: descriptors() <= before)
            for peer in first:
                reset(peer)
            # Their connections to the upstream are reset when that is recorded, and not before.
            await until(lambda: descriptors() <= before - 6)
            assert proxy.stats.open == 3
            late = dial(port, b"late")
            forwarded = proxy.stats.bytes_dialer
            room.full = False
            await until(lambda: proxy.stats.open == 1)
            await until(lambda: proxy.stats.bytes_dialer == forwarded + 4)
            late.close()
    upstream.close()
    for writer in accepted:
        writer.close()
        with contextlib.suppress(OSError):  # reset by a peer that was lost
            await writer.wait_closed()
    print("D15 recorder: 44 lost peers, a new one was served")
