"""A collector that is killed at any moment, on any disk: confirmed data is in the captures."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from random import Random

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from tests.ports import free_ports
from tests.record.collector.command_process import Command
from tests.record.collector.logging_senders import Sender
from tests.record.collector.test_collector import landed
from tests.record.record_process import strace

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions

UNFINISHED_INDEX = r"\.collect-\d+\.pcapng\.idx\.[0-9a-f]{8}\.part"
KILLS = 40 if os.environ.get("POLYMUX_SOAK") else 6
MIB = 1024 * 1024


def collector(folder: Path, port: int, protocol: str, *more: str, **how: list[str]) -> Command:
    url = f"tcp://127.0.0.1:{port}"
    return Command(
        "collect", "--listen", url, "--protocol", protocol, "--out", str(folder), *more,
        ready=f"listening at {url}", **how,
    )  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    """What the dialers sent, by the names of their streams."""
    found: dict[str, bytes] = {}
    with read_sessions([str(folder)]) as reading:
        assert all(file.status == "whole" for file in reading.files)
        for session in reading:
            names: dict[str, str] = {}
            parts: dict[str, list[bytes]] = {}

            def emit(table: str, batch: object) -> None:
                for row in batch.to_pylist():  # type: ignore[attr-defined] # an Arrow batch
                    if table == "streams":
                        names[row["stream"]] = row["name"]  # noqa: B023 # used at once
                    elif row["sender"] == "dialer":
                        parts.setdefault(row["stream"], []).append(row["data"])  # noqa: B023

            analyze_session(
                session, AnalysisOptions(tables=frozenset({"streams", "content"})), emit
            )
            for stream, name in names.items():
                assert name not in found
                found[name] = b"".join(parts.get(stream, []))
    return found


@pytest.mark.parametrize("protocol", ["nerdbank", "mplex"])
async def test_confirmed_data_survives_kills_at_any_moment(protocol: str, tmp_path: Path) -> None:
    [port] = free_ports(1)
    chance = Random(protocol)
    async with collector(tmp_path, port, protocol, "--rotate-size", "1M") as child:
        senders = [
            Sender(number, f"tcp://127.0.0.1:{port}", protocol, 3, 400_000, rest=0.005)
            for number in range(3)
        ]
        work = [asyncio.create_task(sender.run()) for sender in senders]
        for _ in range(KILLS // 2):
            await asyncio.sleep(chance.random() * 0.4)
            await child.restart()
        await asyncio.gather(*work)
        assert await child.stop() == 0, child.text
    # Unfinished indexes of killed collectors are removed when they are an hour old.
    left = {path.name for path in tmp_path.glob("*.part")}
    assert {name for name in left if not re.fullmatch(UNFINISHED_INDEX, name)} == set()
    found = contents(tmp_path)
    for sender in senders:
        assert sum(attempt.done for attempt in sender.log) == 3
        for attempt in sender.log:
            data = found.get(attempt.name, b"")
            assert attempt.data.startswith(data), "there are bytes nobody sent"
            assert len(data) >= attempt.told, f"{attempt.name}: told of more than is there"


async def test_a_session_that_was_cut_in_a_frame_is_reported_truncated(tmp_path: Path) -> None:
    [port] = free_ports(1)
    async with collector(tmp_path, port, "mplex") as child:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes.fromhex("00 03 626967 02 e807") + b"half of it")  # 1000 bytes follow
        part = tmp_path / "collect-00001.pcapng.part"
        async with asyncio.timeout(60):
            while b"half of it" not in part.read_bytes():
                await asyncio.sleep(0.01)
        await child.restart()
        assert "published what an earlier collector left" in child.text
        assert await child.stop() == 0
        writer.close()
    [session] = landed(tmp_path)
    assert session.ending == "truncated"
    assert session.undecoded_bytes_dialer > 0


async def test_a_slow_disk_slows_senders_with_credit_and_memory_stays_bounded(
    tmp_path: Path,
) -> None:
    """Every sync takes 0.3 s: a sender gets no more than a window through in that time."""
    ports = free_ports(2)
    slow = strace("fsync:delay_enter=300000")
    urls = [f"tcp://127.0.0.1:{port}" for port in ports]
    child = Command(
        "collect", "--listen", urls[0], "--protocol", "nerdbank", "--listen", urls[1],
        "--protocol", "mplex", "--out", str(tmp_path), "--buffer", "32M",
        "--session-buffer", "4M", ready=f"listening at {urls[1]}", before=slow,
    )  # fmt: skip
    async with child:
        traced = psutil.Process(child.process.pid).children()[0]
        before = traced.memory_info().rss
        peak = before
        async with polymux.connect(urls[0], protocol="nerdbank") as session:
            stream = await session.open("bulk")
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while True:
                    await stream.send(bytes(65_536))
                    sent += 65_536

            flooding = asyncio.create_task(flood())
            loop = asyncio.get_running_loop()
            begun = loop.time()
            others = 0
            async with polymux.connect(urls[1], protocol="mplex") as other:
                while loop.time() - begun < 3 or others < 3:
                    quick = await other.open("other")
                    await quick.send(bytes(100_000))
                    await quick.end()
                    async with asyncio.timeout(60):  # the other session goes on
                        assert await quick.receive() == b""
                    others += 1
                    peak = max(peak, traced.memory_info().rss)
            took = loop.time() - begun
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
            window = stream.state.half(0).window  # it may have grown meanwhile
            session.abort("enough")
        child.kill()
    assert sent <= (took / 0.3 + 2) * window, "leave came back before the syncs"
    assert peak - before < 32 * MIB
