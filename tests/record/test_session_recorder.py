"""Recorders in both processes and a proxy between them: three captures with equal content."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import SessionSummary, analyze_session
from polymux.capture import PcapngWriter, read_sessions
from polymux.record import Recorder, RecordingProxy

PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"]
SEEN = ("stream", "opener", "name", "ending", "bytes_dialer", "bytes_acceptor")


async def echo(session: polymux.Session) -> None:
    async def answer(stream: polymux.Stream) -> None:
        async for chunk in stream:
            await stream.send(chunk)
        await stream.end()

    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(answer(stream))


async def ask(session: polymux.Session, number: int) -> None:
    stream = await session.open(f"question {number}")
    data = bytes([number]) * (number * 5000 + 1)

    async def say() -> None:
        for start in range(0, len(data), 3000):
            await stream.send(data[start : start + 3000])
        await stream.end()

    saying = asyncio.create_task(say())
    assert await stream.receive_all() == data
    await saying


class Story:
    """What a capture says of its one session."""

    def __init__(self, path: Path) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

        def emit(table: str, batch: Any) -> None:
            self.rows.setdefault(table, []).extend(batch.to_pylist())

        with read_sessions([str(path)]) as reading:
            assert [file.status for file in reading.files] == ["whole"]
            (session,) = reading
            self.summary: SessionSummary = analyze_session(
                session, AnalysisOptions().with_content(), emit
            )

    @property
    def streams(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in SEEN) for row in self.rows["streams"])

    @property
    def content(self) -> dict[tuple[str, str], bytes]:
        joined: dict[tuple[str, str], bytes] = {}
        for row in self.rows.get("content", []):
            key = row["stream"], row["sender"]
            joined[key] = joined.get(key, b"") + row["data"]
        return joined


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_both_peers_and_a_proxy_between_them_record_the_same(
    tmp_path: Path, protocol: str
) -> None:
    paths = [tmp_path / f"{name}.pcapng" for name in ("dialer", "middle", "acceptor")]
    sinks = [PcapngWriter(str(path)) for path in paths]
    async with (
        await polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol=protocol, recorder=Recorder(sinks[2])
        ) as server,
        RecordingProxy("tcp://127.0.0.1:0", server.url, sinks[1], protocol=protocol) as tap,
    ):
        async with polymux.connect(
            tap.url, protocol=protocol, recorder=Recorder(sinks[0])
        ) as session:
            async with asyncio.TaskGroup() as tasks:
                for number in range(8):
                    tasks.create_task(ask(session, number))
            reset = await session.open("given up")
            await reset.send(b"never mind")
            assert await reset.receive() == b"never mind"
            reset.abort()
        async with asyncio.timeout(60):
            while tap.stats.open:
                await asyncio.sleep(0.01)
    for sink in sinks:
        sink.close()
    dialer, middle, acceptor = stories = [Story(path) for path in paths]
    assert [story.summary.vantage for story in stories] == ["dialer", "middle", "acceptor"]
    for story in stories:
        assert story.summary.protocol == protocol.partition(":")[0]
        assert story.summary.balanced
        assert story.summary.ending == "clean"
        assert story.rows.get("violations", []) == []
    assert dialer.streams == middle.streams == acceptor.streams
    assert len(dialer.streams) == 9
    assert dialer.content == middle.content == acceptor.content
    assert sum(map(len, dialer.content.values())) == 2 * sum(n * 5000 + 1 for n in range(8)) + 20


async def test_what_was_formed_before_reading_is_recorded_before_it(tmp_path: Path) -> None:
    path = tmp_path / "dialer.pcapng"
    with PcapngWriter(str(path)) as sink:
        async with await polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", recorder=Recorder(sink)
        ) as server:
            async with polymux.connect(server.url, protocol="mplex") as session:
                await ask(session, 1)
                (theirs,) = server.sessions
                # Formed, and not flushed yet, when bytes come in.
                record = theirs.endpoint.open(b"formed early")
                assert record.name == b"formed early"
                theirs.data_received(b"\x20\x03new")  # the dialer opens stream 4
                await asyncio.sleep(0.05)
                theirs.abort()
    with read_sessions([str(path)]) as reading:
        (recorded,) = reading
        pieces = [(piece.side, piece.data) for piece in recorded.pieces() if piece.data]
    early = next(n for n, (side, data) in enumerate(pieces) if b"formed early" in data)
    late = next(n for n, (side, data) in enumerate(pieces) if data == b"\x20\x03new")
    assert early < late
    assert (pieces[early][0], pieces[late][0]) == (1, 0)
