"""Senders, a collector, and watched tables, killed at any moment: no confirmed data is lost."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.interop.node_peer import Peer, PeerFailed, raw_bytes, require
from tests.ports import free_ports
from tests.record.collector.command_process import Command
from tests.record.collector.logging_senders import CHUNK, Attempt, Sender

from polymux.analysis.options import DEFAULT_TABLES, AnalysisOptions
from polymux.analysis.output.parquet import TableWriter, read_batches, read_table
from polymux.analysis.output.table_digest import digest_rows
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import read_sessions

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
BYTES = 200_000_000 if SOAK else 60_000_000
KILLS = 5 if SOAK else 1
SENDERS, STREAMS = 12, 10
NPM_WRITE = 16_384
REST = 10 / (BYTES / SENDERS / STREAMS / CHUNK)  # traffic for ten seconds without kills


class NpmSender:
    """The npm package `multiplex` pushing as much as the others."""

    def __init__(self, port: int, bytes_each: int) -> None:
        self._port = port
        self._each = bytes_each
        self.log: list[Attempt] = []

    async def run(self) -> None:
        tries = 0
        while not self.log or not self.log[-1].done:
            tries += 1
            message = raw_bytes(tries, NPM_WRITE)
            data = (message * (self._each // NPM_WRITE + 1))[: self._each]
            attempts = [Attempt(f"blast-{i}", data) for i in range(STREAMS)]
            self.log += attempts
            try:
                async with Peer.connect("multiplex", self._port) as peer:
                    await peer.call(
                        "blast", bytes=self._each * STREAMS, size=NPM_WRITE, streams=STREAMS,
                        seed=tries, timeout=10,
                    )  # fmt: skip
            except (PeerFailed, TimeoutError, OSError):
                await asyncio.sleep(0.2)
                continue
            for attempt in attempts:  # the other side has ended: it has everything
                attempt.told, attempt.done = len(data), True


Scene = tuple[Command, Command, "asyncio.Task[None]", dict[str, str]]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Scene]:
    """A collector, and an analysis that follows it."""
    ports = free_ports(3)
    urls = {
        "mplex": f"tcp://127.0.0.1:{ports[0]}",
        "nerdbank": f"tcp://127.0.0.1:{ports[1]}",
        "omnistreams": f"ws://127.0.0.1:{ports[2]}",
    }
    listens = [word for p, url in urls.items() for word in ("--listen", url, "--protocol", p)]
    captures = str(folder / "captures")
    collector = Command(
        "collect", *listens, "--out", captures, "--rotate-time", "1", "--rotate-size", "8M",
        ready=f"listening at {urls['omnistreams']}",
    )  # fmt: skip
    tables = Command(
        "analyze",
        captures,
        "--watch",
        "--out",
        str(folder / "tables"),
        "--content",
        "--master",
        "local[2]",
        "--interval",
        "0.2",
        "--session-grace",
        "0.5",
        "--session-timeout",
        "3",
        "--idle-timeout",
        "6",
        ready="watching",
    )
    async with collector:
        starting = asyncio.create_task(tables.start())  # traffic need not wait for Spark
        try:
            yield collector, tables, starting, urls
        finally:
            if not starting.done():
                await starting
            await tables.__aexit__(None, None, None)


@pytest.mark.timeout(600)
async def test_nothing_confirmed_is_lost_when_collector_and_driver_are_killed(
    tmp_path: Path,
) -> None:
    require()
    each = BYTES // (SENDERS * STREAMS)
    protocols = ["mplex", "nerdbank", "omnistreams"]
    async with running(tmp_path) as (collector, tables, starting, urls):
        ours = [
            Sender(number, urls[protocol], protocol, STREAMS, each, rest=REST)
            for number in range(SENDERS - 1)
            for protocol in [protocols[number % 3]]
        ]
        npm = NpmSender(int(urls["mplex"].rpartition(":")[2]), each)
        work = [asyncio.create_task(sender.run()) for sender in ours]
        work.append(asyncio.create_task(npm.run()))
        for _ in range(KILLS):
            await until_sent(ours, BYTES // 8)
            await collector.restart()
            await starting
            await tables.said(r"batch \d+")
            await tables.restart()
        await asyncio.gather(*work)
        assert await collector.stop() == 0, collector.text
        await all_over(tmp_path / "tables", tables)
        assert await tables.stop() == 0, tables.text
    compare(tmp_path / "tables", ours, npm)
    same_as_at_once(tmp_path)


async def until_sent(senders: list[Sender], bytes_more: int) -> None:
    """Wait until so much more was sent, or all are done."""
    begun = sum(sender.sent for sender in senders)
    while sum(sender.sent for sender in senders) < begun + bytes_more:
        await asyncio.sleep(0.01)
        if all(sender.log and sender.log[-1].done for sender in senders):
            return


async def all_over(out: Path, tables: Command) -> None:
    """Wait until nothing is open any more and the rows of all captures are there."""
    published = {str(path) for path in (out.parent / "captures").glob("*.pcapng")}
    async with asyncio.timeout(250):
        while True:
            assert tables.process.returncode is None, tables.text
            told = set(read_table(out, "captures")["file"].to_pylist())
            opened = pq.read_table(out / "open_sessions").num_rows
            if told == published and not opened:
                return
            await asyncio.sleep(0.3)


def compare(out: Path, ours: list[Sender], npm: NpmSender) -> None:
    """Every stream in the tables is a prefix of one that was sent, and has what was confirmed."""
    content: dict[tuple[str, str], list[bytes]] = {}
    keys: Counter[tuple[str, str, int]] = Counter()
    for batch in read_batches(out, "content"):
        for row in batch.to_pylist():
            keys[row["session_id"], row["sender"], row["frame_index"]] += 1
            if row["sender"] == "dialer":
                content.setdefault((row["session_id"], row["stream"]), []).append(row["data"])
    assert max(keys.values()) == 1, "a row is there twice"
    found: dict[str, list[bytes]] = {}
    for row in read_table(out, "streams").to_pylist():
        data = b"".join(content.get((row["session_id"], row["stream"]), []))
        found.setdefault(row["name"], []).append(data)
    for sender in ours:
        for attempt in sender.log:
            [data] = found.get(attempt.name, [b""]) or [b""]
            assert attempt.data.startswith(data), "the tables have bytes nobody sent"
            assert len(data) >= attempt.told, f"{attempt.name}: told of more than is there"
    for attempt in npm.log:  # each try used the same names
        prefixes = [data for data in found.get(attempt.name, []) if attempt.data.startswith(data)]
        assert max(map(len, prefixes), default=0) >= attempt.told
    sessions = read_table(out, "sessions").to_pylist()
    assert sum(row["ending"] == "clean" for row in sessions) == SENDERS
    cut = [row for row in sessions if row["ending"] != "clean"]
    assert cut, "nobody was cut off"
    for row in cut:  # in the middle of a frame, or between two
        assert row["ending"] == ("truncated" if row["undecoded_bytes_dialer"] else "unknown")


def same_as_at_once(folder: Path) -> None:
    """The tables equal those of one walk over all captures."""
    with read_sessions([str(folder / "captures")]) as reading:
        with TableWriter(folder / "once") as writer:
            for session in reading:
                analyze_session(
                    session, AnalysisOptions(tables=DEFAULT_TABLES | {"content"}), writer.emit
                )
    for table in (*DEFAULT_TABLES, "content"):
        once = digest_rows(table, read_batches(folder / "once", table))
        assert digest_rows(table, read_batches(folder / "tables", table)) == once, table
