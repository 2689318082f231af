"""The tables of a recorded omnistreams connection match what was sent."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import polymux
from polymux import OmnistreamsSession, Session
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import PcapngWriter, read_sessions
from polymux.record import RecordingProxy

MESSAGES = [b"", b"one", bytes(70_000), b"x" * 126, b"last"]
URLS = {"websocket": ("ws", "/omnistreams"), "length": ("tcp", "")}


async def swallow(session: Session) -> None:
    assert isinstance(session, OmnistreamsSession)
    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(read_all(stream))


async def read_all(stream: Any) -> None:
    async for _ in stream:
        pass


async def converse(url: str) -> None:
    async with polymux.connect(url, protocol="omnistreams") as session:
        assert isinstance(session, OmnistreamsSession)
        await session.control(b"hello")
        for number in range(3):
            sender = await session.open(f"stream {number}")
            for message in MESSAGES:
                await sender.send(message)
            await sender.end()


async def recorded_by_the_tap(carrier: str, out: Path) -> None:
    scheme, path = URLS[carrier]
    async with await polymux.serve(
        swallow, f"{scheme}://127.0.0.1:0{path}", protocol="omnistreams"
    ) as server:
        with PcapngWriter(str(out)) as sink:
            async with RecordingProxy(f"{scheme}://127.0.0.1:0{path}", server.url, sink) as tap:
                await converse(tap.url)
                async with asyncio.timeout(60):
                    while tap.stats.open:
                        await asyncio.sleep(0.01)


async def recorded_by_tcpdump(carrier: str, out: Path) -> None:
    scheme, path = URLS[carrier]
    async with await polymux.serve(
        swallow, f"{scheme}://127.0.0.1:0{path}", protocol="omnistreams"
    ) as server:
        command = ["tcpdump", "-i", "lo", "-U", "-s", "0", "-w", str(out)]
        with subprocess.Popen(
            [*command, f"tcp port {server.port}"], stderr=subprocess.PIPE, text=True
        ) as dump:
            assert dump.stderr is not None
            first = await asyncio.to_thread(dump.stderr.readline)
            assert "listening" in first, first
            await converse(server.url)
            await asyncio.sleep(1)
            dump.terminate()


def tables_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    with read_sessions([str(path)]) as reading:
        for session in reading:
            summary = analyze_session(
                session, AnalysisOptions("auto", {}),
                lambda table, batch: found.setdefault(table, []).extend(batch.to_pylist()),
            )  # fmt: skip
            assert summary.balanced
    return found


def check(tables: dict[str, list[dict[str, Any]]], carrier: str) -> None:
    (session,) = tables["sessions"]
    assert session["protocol"] == "omnistreams"
    assert session["ending"] == "clean"
    assert session["violations"] == 0
    streams = sorted(tables["streams"], key=lambda row: row["name"])
    assert [row["name"] for row in streams] == ["stream 0", "stream 1", "stream 2"]
    for row in streams:
        assert row["ending"] == "clean"
        assert row["units_dialer"] == len(MESSAGES)
        assert row["bytes_dialer"] == sum(map(len, MESSAGES))
        assert row["credit_granted_dialer"] >= len(MESSAGES)
    for side in ("dialer", "acceptor"):
        framed = sum(row["size"] for row in tables["frames"] if row["sender"] == side)
        carried = session[f"overhead_bytes_{side}"]
        assert session[f"bytes_{side}"] == framed + carried
        assert session[f"missing_bytes_{side}"] == session[f"undecoded_bytes_{side}"] == 0
        # The upgrade and the close are only carrier; a length prefix belongs to its frame.
        assert (carried > 100) == (carrier == "websocket")
    kinds = {row["kind"] for row in tables["frames"]}
    assert kinds == {
        "CONTROL_MESSAGE", "CREATE_RECEIVE_STREAM", "STREAM_DATA", "STREAM_END",
        "STREAM_REQUEST_DATA",
    }  # fmt: skip


@pytest.mark.parametrize("carrier", URLS)
def test_what_the_tap_recorded_gives_the_right_tables(carrier: str, tmp_path: Path) -> None:
    out = tmp_path / "tap.pcapng"
    asyncio.run(recorded_by_the_tap(carrier, out))
    check(tables_of(out), carrier)


@pytest.mark.parametrize("carrier", URLS)
def test_what_tcpdump_recorded_gives_the_right_tables(carrier: str, tmp_path: Path) -> None:
    if "POLYMUX_SOAK" not in os.environ:
        pytest.skip("only in the soak: listening on an interface takes privileges")
    out = tmp_path / "tcpdump.pcap"
    asyncio.run(recorded_by_tcpdump(carrier, out))
    check(tables_of(out), carrier)
