"""polymux interoperates over yamux with Go's hashicorp/yamux, npm `@libp2p/yamux`, npm `yamux-js`
and PyPI `libp2p`, in both roles.

Each connection is recorded, and what the analysis says of the recording is compared with what the
peer counted. What a peer is known to do wrong is expected of it, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.analysis.recorded_conversation import analyse
from tests.interop.node_peer import GO_YAMUX, PY_YAMUX, Peer, PeerFailed, digest, raw_bytes
from tests.interop.npm_session import Talk, echoed, echoing, same

import polymux
from polymux import Limits, Timeouts, YamuxSession
from polymux.capture import PcapngWriter
from polymux.record import Recorder

pytestmark = pytest.mark.usefixtures("node_peers", "go_peers", "python_peers")

SOAK = "POLYMUX_SOAK" in os.environ
MEBIBYTE = 1024 * 1024
BULK = 64 * MEBIBYTE if SOAK else 3 * MEBIBYTE
MANY = 1000 if SOAK else 300
JS = "libp2p-yamux"
YAMUX_JS = "yamux-js"
DIALECTS = {GO_YAMUX: "hashicorp", YAMUX_JS: "hashicorp", JS: "libp2p", PY_YAMUX: "libp2p"}
WIDE = Limits(max_streams=2000, accept_backlog=2000)
ROLES = ("dialer", "acceptor")
CELLS = [(script, role) for script in (GO_YAMUX, JS, PY_YAMUX) for role in ROLES]
# Arguments that make a peer ping soon; PyPI libp2p does so half a second after its start.
KEEPALIVE = {
    GO_YAMUX: ("--keepalive", "200"),
    JS: ("--options", '{"keepAliveInterval": 200}'),
    YAMUX_JS: ("--options", '{"enableKeepAlive": true, "keepAliveInterval": 0.2}'),
    PY_YAMUX: (),
}


@dataclass
class Cell:
    """One connection to a peer, recorded."""

    script: str
    role: str
    talk: Talk
    path: Path
    counted: dict[int, int] = field(default_factory=dict)  # by id: bytes the peer got and returned

    @property
    def session(self) -> YamuxSession:
        assert isinstance(self.talk.session, YamuxSession)
        return self.talk.session

    @property
    def peer(self) -> Peer:
        return self.talk.peer

    def note(self, status: dict[str, Any]) -> None:
        self.counted[int(status["id"])] = int(status["received"])


@contextlib.asynccontextmanager
async def connected(
    script: str,
    role: str,
    path: Path,
    arguments: tuple[str, ...] = (),
    timeouts: Timeouts | None = None,
) -> AsyncIterator[Cell]:
    protocol = f"yamux:dialect={DIALECTS[script]}"
    with PcapngWriter(str(path)) as sink:
        recorder = Recorder(sink)
        if role == "dialer":
            async with (
                Peer.listen(script, *arguments) as peer,
                polymux.connect(
                    f"tcp://127.0.0.1:{peer.port}",
                    protocol=protocol,
                    limits=WIDE,
                    timeouts=timeouts,
                    recorder=recorder,
                ) as session,
            ):
                await peer.event("session")
                yield Cell(script, role, Talk(session, peer), path)
            return
        arrived: asyncio.Future[polymux.Session] = asyncio.get_running_loop().create_future()

        async def keep(session: polymux.Session) -> None:
            arrived.set_result(session)
            await session.wait_closed()

        async with (
            polymux.serve(
                keep,
                "tcp://127.0.0.1:0",
                protocol=protocol,
                limits=WIDE,
                timeouts=timeouts,
                recorder=recorder,
            ) as server,
            Peer.connect(script, server.port, *arguments) as peer,
        ):
            session = await arrived
            await peer.event("session")
            yield Cell(script, role, Talk(session, peer), path)


@pytest.fixture(scope="module", params=CELLS, ids="-".join)
def shared(
    request: pytest.FixtureRequest,
    runner: asyncio.Runner,
    node_peers: None,
    go_peers: None,
    python_peers: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cell]:
    """One connection for all tests of a peer and role; its recording is checked at the end."""
    script, role = request.param
    path = tmp_path_factory.mktemp("yamux") / "talk.pcapng"
    stack = contextlib.AsyncExitStack()
    cell = runner.run(stack.enter_async_context(connected(script, role, path)))
    yield cell
    runner.run(stack.aclose())
    check_recording(cell)


@pytest.fixture
def cell(shared: Cell, runner: asyncio.Runner) -> Cell:
    async def afresh() -> None:
        await shared.peer.call("mode", incoming="echo")
        shared.peer.forget()

    runner.run(afresh())
    return shared


def check_recording(cell: Cell) -> None:
    """The recording: detected, no violation, and the peer's own counts."""
    found = analyse(str(cell.path))
    (summary,) = found.sessions
    assert summary.protocol == "yamux"
    findings = [row for row in found.rows("violations") if row["severity"] != "note"]
    assert findings == []
    streams = {row["stream_id"]: row for row in found.rows("streams")}
    assert cell.counted
    for side in ROLES:  # every stream that was noted is an echo: as much each way
        sent = {number: streams[number][f"bytes_{side}"] for number in cell.counted}
        assert sent == cell.counted, side
    assert summary.balanced


async def echoed_digest(session: YamuxSession, data: bytes) -> str:
    """Send on a fresh stream, and return the digest of what comes back."""
    stream = await session.open()

    async def send() -> None:
        for start in range(0, len(data), 500_000):
            await stream.send(data[start : start + 500_000])
        await stream.end()

    sending = asyncio.create_task(send())
    found = hashlib.sha256()
    async for chunk in stream:
        found.update(chunk)
    await sending
    return found.hexdigest()


async def test_megabytes_come_back_from_the_peer(cell: Cell) -> None:
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(echoed_digest(cell.session, raw_bytes(seed, BULK))) for seed in (1, 2)
        ]
    assert [job.result() for job in jobs] == [digest(raw_bytes(seed, BULK)) for seed in (1, 2)]
    for _ in jobs:
        cell.note(await cell.peer.event("end"))


async def test_megabytes_go_back_to_the_peer(cell: Cell) -> None:
    async with echoing(cell.session):
        reply = await cell.peer.call("exchange", count=2, size=BULK, seed=3, timeout=60)
    assert same(reply["results"], BULK, 3)
    for status in reply["results"]:
        cell.note(status)


async def test_hundreds_of_streams_of_both_sides(cell: Cell) -> None:
    await cell.peer.call("mode", incoming="echo", quiet=True)
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(echoed(cell.session, "", raw_bytes(number, 500)))
            for number in range(MANY)
        ]
    assert all(job.result() == raw_bytes(number, 500) for number, job in enumerate(jobs))
    async with echoing(cell.session):
        reply = await cell.peer.call("exchange", count=MANY, size=500, timeout=30)
    assert same(reply["results"], 500)
    for status in reply["results"]:
        cell.note(status)


async def test_the_peers_answer_comes_after_our_half_close(cell: Cell) -> None:
    await cell.peer.call("mode", incoming="late", size=700_000, seed=9)
    stream = await cell.session.open()
    await stream.send(b"what?")
    await stream.end()
    assert digest(await stream.receive_all()) == digest(raw_bytes(9, 700_000))


async def test_our_answer_reaches_a_peer_that_has_half_closed(cell: Cell) -> None:
    opening = cell.peer.begin("open", names=[""])
    theirs = (await cell.peer.result(opening))["streams"][0]
    await cell.peer.call("send", stream=theirs["stream"], text="a question")
    await cell.peer.call("end", stream=theirs["stream"])
    stream = await cell.session.accept()
    assert await stream.receive_all() == b"a question"
    sending = asyncio.create_task(stream.send(raw_bytes(4, 600_000)))
    if cell.script == GO_YAMUX:
        # Debian's version reads no more once it has closed its own half (fixed in 2024).
        status = await cell.peer.call("wait", stream=theirs["stream"])
        assert status["received"] < 600_000
        stream.abort()
        await asyncio.wait([sending])
        return
    await sending
    await stream.end()
    status = await cell.peer.call("wait", stream=theirs["stream"], until="end")
    assert (status["received"], status["sha256"]) == (600_000, digest(raw_bytes(4, 600_000)))


async def test_our_reset_reaches_the_peer_and_harms_no_other_stream(cell: Cell) -> None:
    await cell.peer.call("mode", incoming="hold")
    stream = await cell.session.open()
    await stream.send(b"last words")
    theirs = await cell.peer.event("stream")
    await cell.peer.call("wait", stream=theirs["stream"], bytes=10)
    cell.session.reset(stream, 7)
    over = "end" if cell.script == GO_YAMUX else "close"  # what the peer calls its last event
    status = await cell.peer.event(over, stream=theirs["stream"])
    assert not status["ended"]
    assert "reset" in status["error"]
    await cell.peer.call("mode", incoming="echo")
    assert await echoed(cell.session, "", b"still there") == b"still there"


async def test_the_peers_reset_is_an_error_here(cell: Cell) -> None:
    if cell.script == GO_YAMUX:
        opening = (await cell.peer.call("open"))["streams"][0]
        with pytest.raises(PeerFailed, match="no command"):  # the library resets no stream
            await cell.peer.call("reset", stream=opening["stream"])
        return
    await cell.peer.call("mode", incoming="hold")
    stream = await cell.session.open()
    await stream.send(b"x")
    theirs = await cell.peer.event("stream")
    await cell.peer.call("reset", stream=theirs["stream"])
    with pytest.raises(polymux.StreamAborted):
        await stream.receive_all()
    await cell.peer.call("mode", incoming="echo")
    assert await echoed(cell.session, "", b"still there") == b"still there"


async def test_pings_are_answered_both_ways(cell: Cell) -> None:
    assert 0 < await cell.session.ping() < 5
    assert 0 <= (await cell.peer.call("rtt"))["ms"] < 5000


@pytest.mark.parametrize("script", [GO_YAMUX, JS, PY_YAMUX])
async def test_the_peers_go_away_ends_openings_here(script: str, tmp_path: Path) -> None:
    async with connected(script, "dialer", tmp_path / "talk.pcapng") as cell:
        stream = await cell.session.open()
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        if script != GO_YAMUX:
            await stream.end()  # it closes the connection when it goes away
            await stream.receive()
        await cell.peer.call("goaway")
        if script == GO_YAMUX:
            await cell.session.ping()
            await stream.send(b"y")
            assert await stream.receive() == b"y"
            with pytest.raises(polymux.LocalProtocolError, match="Go Away with code 0"):
                await cell.session.open()
        else:
            async with asyncio.timeout(60):
                while cell.session.peer_go_away is None:
                    await asyncio.sleep(0.01)


async def test_our_go_away_ends_openings_of_go(tmp_path: Path) -> None:
    async with connected(GO_YAMUX, "acceptor", tmp_path / "talk.pcapng") as cell:
        opened = (await cell.peer.call("open"))["streams"][0]
        stream = await cell.session.accept()
        cell.session.go_away()
        await cell.session.ping()
        with pytest.raises(PeerFailed, match="remote end is not accepting connections"):
            await cell.peer.call("open")
        await cell.peer.call("send", stream=opened["stream"], text="old ones live")
        assert await stream.receive() == b"old ones live"


async def test_our_go_away_ends_openings_of_npm_libp2p(tmp_path: Path) -> None:
    async with connected(JS, "dialer", tmp_path / "talk.pcapng") as cell:
        assert await echoed(cell.session, "", b"before") == b"before"
        cell.session.go_away()
        with pytest.raises(PeerFailed, match="closed"):
            await open_again_and_again(cell.peer)
        cell.session.abort()


async def open_again_and_again(peer: Peer) -> None:
    """The first openings may come before the peer has read our frame."""
    for _ in range(500):
        await peer.call("open", names=[""])


async def test_our_go_away_ends_the_connection_of_pypi_libp2p(tmp_path: Path) -> None:
    async with connected(PY_YAMUX, "dialer", tmp_path / "talk.pcapng") as cell:
        assert await echoed(cell.session, "", b"before") == b"before"
        cell.session.go_away()
        async with asyncio.timeout(30):
            await cell.session.wait_closed()


@pytest.mark.parametrize("pinger", ["polymux", "peer"])
@pytest.mark.parametrize("script", [GO_YAMUX, JS, YAMUX_JS, PY_YAMUX])
async def test_the_keepalive_of_either_side_is_answered(
    script: str, pinger: str, tmp_path: Path
) -> None:
    """A side that hears nothing pings."""
    path = tmp_path / "talk.pcapng"
    ours = pinger == "polymux"
    timeouts = Timeouts(keepalive_interval=0.2) if ours else None
    arguments = () if ours else KEEPALIVE[script]
    async with connected(script, "dialer", path, arguments, timeouts) as cell:
        pings = cell.session.protocol.pings
        async with asyncio.timeout(30):
            while pings.shortest[0 if ours else 1] < 0:  # its ping, and then the answer
                await asyncio.sleep(0.02)
        await cell.session.ping()  # the session lives, and what was answered is written
        cell.session.abort()
    found = analyse(str(path))
    assert [row for row in found.rows("violations") if row["severity"] != "note"] == []
    asking, answering = ROLES if ours else tuple(reversed(ROLES))
    kinds = [(row["sender"], row["kind"]) for row in found.rows("frames")]
    assert (asking, "Ping") in kinds
    assert (answering, "Pong") in kinds


async def test_go_is_not_overrun_by_openings_that_it_does_not_accept_at_once(
    tmp_path: Path,
) -> None:
    """Its backlog has 256 places, and it resets what is beyond."""
    async with connected(GO_YAMUX, "dialer", tmp_path / "talk.pcapng") as cell:
        await cell.peer.call("mode", incoming="sink", quiet=True)
        streams = await asyncio.gather(*(opened(cell.session) for _ in range(600)))
        await asyncio.gather(*(stream.end() for stream in streams))
        assert all([await stream.receive() == b"" for stream in streams])


async def opened(session: YamuxSession) -> polymux.Stream:
    return await session.open()


@pytest.mark.parametrize("role", ["dialer", "acceptor"])
async def test_small_messages_pass_to_and_from_yamux_js(role: str, tmp_path: Path) -> None:
    """It drops a frame that arrives in two parts, and reads SYN where it means FIN.

    So nothing larger is sent here, and it does not notice our end.
    """
    path = tmp_path / "talk.pcapng"
    async with connected(YAMUX_JS, role, path) as cell:
        stream = await cell.session.open()
        for _ in range(5):
            await stream.send(b"a message")
            assert await stream.receive() == b"a message"
        await stream.end()
        await cell.session.ping()
        assert not cell.peer.seen("end")
        theirs = (await cell.peer.call("open", names=[""]))["streams"][0]
        await cell.peer.call("send", stream=theirs["stream"], text="from the peer")
        assert await (await cell.session.accept()).receive() == b"from the peer"
        counted = (await cell.peer.call("streams"))["streams"]
        cell.session.abort()
    found = analyse(str(path))
    assert [row for row in found.rows("violations") if row["severity"] != "note"] == []
    theirs = "acceptor" if role == "dialer" else "dialer"
    for status in counted:  # what it got, and what it has sent
        (row,) = [row for row in found.rows("streams") if row["stream_id"] == status["id"]]
        assert row[f"bytes_{role}"] == status["received"]
        assert row[f"bytes_{theirs}"] == status["sent"]
    assert sorted(status["received"] for status in counted) == [0, 45]


@pytest.mark.parametrize("role", ROLES)
async def test_yamux_js_loses_a_frame_that_it_reads_in_two_parts(role: str, tmp_path: Path) -> None:
    """So no amount of data that is larger than one read of Node comes back complete."""
    async with connected(YAMUX_JS, role, tmp_path / "talk.pcapng") as cell:
        stream = await cell.session.open()
        # One write, in which no frame ends where a read of 64 KiB does:
        stream.send_nowait(raw_bytes(1, 100))
        stream.send_nowait(raw_bytes(1, 80_000))
        with pytest.raises((TimeoutError, polymux.PolymuxError)):
            await asyncio.wait_for(stream.readexactly(80_100), 1)
        (status,) = (await cell.peer.call("streams"))["streams"]
        assert status["received"] < 80_100
        cell.session.abort()
