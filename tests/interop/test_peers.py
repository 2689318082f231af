"""The Node peers do what their README says: each npm package against itself, over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.interop import node_peer as peer_module
from tests.interop.node_peer import Peer, PeerFailed, digest, raw_bytes

pytestmark = pytest.mark.usefixtures("node_peers")

Package = tuple[str, ...]
Sides = tuple[Peer, Peer]


@contextlib.asynccontextmanager
async def pair(package: Package, *more: str) -> AsyncIterator[Sides]:
    """The acceptor and the dialer, connected."""
    script, *arguments = package
    async with (
        Peer.listen(script, *arguments, *more) as acceptor,
        Peer.connect(script, acceptor.port, *arguments, *more) as dialer,
    ):
        await acceptor.event("session")
        await dialer.event("session")
        yield acceptor, dialer


DUPLEX = [
    pytest.param(("multiplex",), id="multiplex"),
    pytest.param(("libp2p-mplex",), id="libp2p-mplex"),
    pytest.param(("nerdbank", "--version", "1"), id="nerdbank-1"),
    pytest.param(("nerdbank", "--version", "2"), id="nerdbank-2"),
    pytest.param(("nerdbank", "--version", "3"), id="nerdbank-3"),
]


@pytest.fixture(scope="module", params=DUPLEX)
def connected(
    request: pytest.FixtureRequest, runner: asyncio.Runner, node_peers: None
) -> Iterator[tuple[Package, Sides]]:
    """One connection for all tests of a package that leave it in order."""
    stack = contextlib.AsyncExitStack()
    yield request.param, runner.run(stack.enter_async_context(pair(request.param)))
    runner.run(stack.aclose())


@pytest.fixture
def package(connected: tuple[Package, Sides]) -> Package:
    return connected[0]


@pytest.fixture
def sides(connected: tuple[Package, Sides], runner: asyncio.Runner) -> Sides:
    """The acceptor and the dialer, both as they were at the start: echoing."""

    async def afresh() -> None:
        for peer in connected[1]:
            await peer.call("mode", incoming="echo")
            peer.forget()

    runner.run(afresh())
    return connected[1]


async def test_both_sides_get_their_own_bytes_back(sides: Sides) -> None:
    for peer in sides:
        reply = await peer.call("exchange", count=3, size=200_000, seed=5)
        assert [r["sent"] for r in reply["results"]] == [200_000] * 3
        assert [r["sha256"] for r in reply["results"]] == [
            digest(raw_bytes(5 + i, 200_000)) for i in range(3)
        ]
        assert not any(r["error"] for r in reply["results"])


async def test_a_hundred_streams_at_once_come_back_whole(sides: Sides) -> None:
    _, dialer = sides
    reply = await dialer.call("exchange", count=100, size=3_000)
    assert [r["sha256"] for r in reply["results"]] == [
        digest(raw_bytes(i, 3_000)) for i in range(100)
    ]


async def test_the_late_answer_comes_after_the_end_of_the_question(sides: Sides) -> None:
    acceptor, dialer = sides
    await acceptor.call("mode", incoming="late", size=70_000, seed=9)
    opened = (await dialer.call("open", names=["late"]))["streams"][0]
    await dialer.call("send", stream=opened["stream"], size=5_000, seed=1)
    theirs = await acceptor.event("stream", name=opened["name"])
    await acceptor.call("wait", stream=theirs["stream"], bytes=5_000)
    before = await dialer.call("status", stream=opened["stream"])
    assert before["received"] == 0
    await dialer.call("end", stream=opened["stream"])
    after = await dialer.call("wait", stream=opened["stream"], until="end")
    assert after["sha256"] == digest(raw_bytes(9, 70_000))
    end = await acceptor.event("end", stream=theirs["stream"])
    assert end["sha256"] == digest(raw_bytes(1, 5_000))


async def test_a_reset_is_told_on_both_sides(package: Package, sides: Sides) -> None:
    acceptor, dialer = sides
    await acceptor.call("mode", incoming="hold")
    opened = (await dialer.call("open", names=["doomed"]))["streams"][0]
    await dialer.call("send", stream=opened["stream"], text="last words")
    theirs = await acceptor.event("stream", name=opened["name"])
    await acceptor.call("wait", stream=theirs["stream"], bytes=10)
    await dialer.call("reset", stream=opened["stream"], text="böse")
    mine = await dialer.event("close", stream=opened["stream"])
    assert (mine["aborted"], mine["ended"]) == (True, False)
    close = await acceptor.event("close", stream=theirs["stream"])
    assert (close["aborted"], close["ended"], close["received"]) == (False, False, 10)
    match package:
        case ("multiplex",):
            assert close["error"] == "böse"
        case ("libp2p-mplex",):
            assert "reset" in close["error"]
        case ("nerdbank", _, "1"):
            assert close["error"] is None
        case _:
            assert close["error"] == "Received error from remote side: Error: böse"


async def test_a_held_stream_answers_late_on_command(sides: Sides) -> None:
    acceptor, dialer = sides
    await dialer.call("mode", incoming="hold")
    opened = (await acceptor.call("open", names=["held"]))["streams"][0]
    await acceptor.call("send", stream=opened["stream"], hex="00ff", end=True)
    theirs = await dialer.event("stream", name=opened["name"])
    answered = await dialer.call("late", stream=theirs["stream"], size=20_000, seed=8)
    assert (answered["received"], answered["sent"]) == (2, 20_000)
    closed = await acceptor.call("wait", stream=opened["stream"], until="close")
    assert (closed["ended"], closed["finished"], closed["error"]) == (True, True, None)
    assert closed["sha256"] == digest(raw_bytes(8, 20_000))
    assert closed["stream"] in [s["stream"] for s in (await acceptor.call("streams"))["streams"]]


async def test_a_paused_stream_reads_nothing_until_it_is_resumed(sides: Sides) -> None:
    _, dialer = sides
    opened = (await dialer.call("open", names=["mine"], pause=True))["streams"][0]
    await dialer.call("send", stream=opened["stream"], text="hello")
    await dialer.call("ping")
    assert (await dialer.call("status", stream=opened["stream"]))["received"] == 0
    await dialer.call("resume", stream=opened["stream"])
    await dialer.call("wait", stream=opened["stream"], bytes=5)
    await dialer.call("pause", stream=opened["stream"])
    await dialer.call("send", stream=opened["stream"], text="again", end=True)
    await dialer.call("ping")
    assert (await dialer.call("status", stream=opened["stream"]))["received"] == 5
    await dialer.call("resume", stream=opened["stream"])
    assert (await dialer.call("wait", stream=opened["stream"], until="end"))["received"] == 10


async def test_a_stalled_stream_delivers_all_once_it_is_resumed(sides: Sides) -> None:
    acceptor, dialer = sides
    await acceptor.call("mode", incoming="stall")
    opened = (await dialer.call("open", names=["slow"]))["streams"][0]
    sending = dialer.begin("send", stream=opened["stream"], size=300_000, seed=2)
    theirs = await acceptor.event("stream", name=opened["name"])
    await asyncio.sleep(0.1)
    assert (await acceptor.call("status", stream=theirs["stream"]))["received"] == 0
    await acceptor.call("resume", stream=theirs["stream"])
    got = await acceptor.call("wait", stream=theirs["stream"], bytes=300_000)
    assert got["sha256"] == digest(raw_bytes(2, 300_000))
    await dialer.result(sending)


async def test_an_echo_can_be_pinged_on_a_fresh_and_on_a_named_stream(sides: Sides) -> None:
    acceptor, dialer = sides
    first = await dialer.call("ping")
    opened = (await dialer.call("open", names=["kept"]))["streams"][0]
    for _ in range(2):
        again = await dialer.call("ping", name=opened["name"], size=4_000)
        assert again["stream"] == opened["stream"] != first["stream"]
    await acceptor.call("mode", incoming="hold")
    with pytest.raises(PeerFailed, match="no answer to the ping in 100 ms"):
        await dialer.call("ping", timeout_ms=100)


@pytest.mark.parametrize("package", DUPLEX)
async def test_a_lost_connection_closes_its_streams_without_an_end(package: Package) -> None:
    async with pair(package) as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        await dialer.call("open", names=["cut"])
        theirs = await acceptor.event("stream")
        assert await dialer.stop() == 0
        close = await acceptor.event("close", stream=theirs["stream"])
        assert (close["ended"], close["finished"]) == (False, False)
        await acceptor.event("disconnected", conn=0)


@pytest.mark.parametrize("package", DUPLEX)
async def test_a_connection_that_breaks_abruptly_closes_its_streams(package: Package) -> None:
    async with pair(package) as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        await dialer.call("open", names=["torn"])
        theirs = await acceptor.event("stream")
        await dialer.call("disconnect", abrupt=True)
        close = await acceptor.event("close", stream=theirs["stream"])
        assert (close["ended"], close["finished"]) == (False, False)
        assert (await acceptor.event("error"))["code"] == "ECONNRESET"
        await acceptor.event("disconnected", conn=0)


@pytest.mark.parametrize("scripts", [("multiplex", "libp2p-mplex"), ("libp2p-mplex", "multiplex")])
async def test_the_two_mplex_packages_understand_each_other(scripts: Package) -> None:
    async with (
        Peer.listen(scripts[0]) as acceptor,
        Peer.connect(scripts[1], acceptor.port) as dialer,
    ):
        await acceptor.event("session")
        await dialer.event("session")
        for peer in (acceptor, dialer):
            reply = await peer.call("exchange", count=10, size=100_000)
            assert [r["sha256"] for r in reply["results"]] == [
                digest(raw_bytes(i, 100_000)) for i in range(10)
            ]


@pytest.mark.parametrize("package", [("multiplex",), ("nerdbank",)])
async def test_connections_are_numbered_and_addressed_by_number(package: Package) -> None:
    script, *arguments = package
    async with (
        pair(package) as (acceptor, first),
        Peer.connect(script, acceptor.port, *arguments) as second,
    ):
        await acceptor.event("session", conn=1)
        for conn, dialer in enumerate((first, second)):
            await dialer.call("mode", incoming="hold")
            reply = await acceptor.call("open", conn=conn, names=["to you"])
            assert reply["streams"][0]["conn"] == conn
            await acceptor.call("send", stream=reply["streams"][0]["stream"], text="hi")
            theirs = await dialer.event("stream")
            await dialer.call("wait", stream=theirs["stream"], bytes=2)
            assert len(dialer.seen("stream")) == 1


async def test_the_benchmark_commands_count_what_was_sent(sides: Sides) -> None:
    acceptor, dialer = sides
    await acceptor.call("mode", incoming="sink")
    sink = acceptor.begin("sink", bytes=1_000_001, streams=3)
    blast = await dialer.call("blast", bytes=1_000_001, size=10_000, streams=3)
    sunk = await acceptor.result(sink)
    assert (blast["bytes"], blast["messages"]) == (1_000_001, 102)
    assert (sunk["bytes"], sunk["streams"]) == (1_000_001, 3)
    assert blast["seconds"] >= blast["seconds_sent"] > 0
    assert sunk["seconds"] > 0
    await acceptor.call("mode", incoming="echo", quiet=True)
    done = await dialer.call("openclose", count=200, in_flight=20)
    assert (done["count"], done["in_flight"]) == (200, 20)
    assert len(acceptor.seen("stream")) < 10  # at most latecomers from before: they are quiet


NAMES = ["Grüße/✓/𝔐", 'a b\n"c"', "x" * 3_000]


@pytest.mark.parametrize("package", [("multiplex",), ("nerdbank", "--version", "1"), ("nerdbank",)])
async def test_names_arrive_as_they_were_given(package: Package) -> None:
    async with pair(package) as (acceptor, dialer):
        await dialer.call("exchange", names=NAMES, size=10)
        assert [(await acceptor.event("stream"))["name"] for _ in NAMES] == NAMES


async def test_an_empty_name_is_the_id_in_multiplex_and_anonymous_in_nerdbank() -> None:
    for package, name in ((("multiplex",), "0"), (("nerdbank",), "")):
        async with pair(package) as (acceptor, dialer):
            await dialer.call("exchange", names=[""], size=10)
            assert (await acceptor.event("stream"))["name"] == name


@pytest.mark.parametrize("script", ["multiplex", "libp2p-mplex"])
async def test_an_unwanted_mplex_stream_is_reset(script: str) -> None:
    async with pair((script,)) as (acceptor, dialer):
        await acceptor.call("mode", incoming="reject", text="no room")
        opened = (await dialer.call("open", names=["unwanted"]))["streams"][0]
        close = await dialer.event("close", stream=opened["stream"])
        assert ("no room" if script == "multiplex" else "reset") in close["error"]


async def test_libp2p_sends_its_own_name() -> None:
    async with pair(("libp2p-mplex",)) as (acceptor, dialer):
        await dialer.call("exchange", names=["ignored"], size=10)
        assert (await acceptor.event("stream"))["name"] == "i0"


async def test_one_stalled_multiplex_stream_stops_the_session() -> None:
    async with pair(("multiplex",)) as (acceptor, dialer):
        await acceptor.call("mode", incoming="stall", name="hog")
        opened = (await dialer.call("open", names=["hog"]))["streams"][0]
        sending = dialer.begin("send", stream=opened["stream"], size=8_000_000)

        async def pings_until_it_stalls() -> None:  # what was sent may be on its way still
            while not sending.done():
                await dialer.call("ping", timeout_ms=300)

        with pytest.raises(PeerFailed, match="no answer"):
            await pings_until_it_stalls()
        await acceptor.call("resume", name="hog")
        await dialer.result(sending)
        await dialer.call("ping")


async def test_multiplex_answers_a_close_at_once_unless_half_open() -> None:
    async with pair(("multiplex",), "--half-open", "false") as (acceptor, dialer):
        await acceptor.call("mode", incoming="hold")
        opened = (await dialer.call("open", names=["a"]))["streams"][0]
        await dialer.call("end", stream=opened["stream"])
        closed = await dialer.call("wait", stream=opened["stream"], until="close")
        assert closed["ended"]


async def test_libp2p_resets_a_stalled_stream_and_no_other() -> None:
    async with pair(("libp2p-mplex",)) as (acceptor, dialer):
        await acceptor.call("mode", incoming="stall", name="i0")
        opened = (await dialer.call("open", count=1))["streams"][0]
        sending = dialer.begin("send", stream=opened["stream"], size=6_000_000)
        close = await dialer.event("close", stream=opened["stream"])
        assert "reset" in close["error"]
        assert "Read buffer length" in (await acceptor.event("error"))["message"]
        await dialer.result(sending)
        await dialer.call("ping")


async def test_options_reach_the_package() -> None:
    async with pair(("libp2p-mplex",), "--options", '{"disconnectThreshold": 5}') as sides:
        acceptor, dialer = sides
        await dialer.call("open", count=6)
        assert (await acceptor.event("fault"))["message"] == "Too many open streams"


async def test_a_refused_command_says_why() -> None:
    async with Peer.listen("multiplex") as peer:
        with pytest.raises(PeerFailed, match='no command "fly"; known: mode open'):
            await peer.call("fly")
        with pytest.raises(PeerFailed, match="no connection -1"):
            await peer.call("open")
        with pytest.raises(PeerFailed, match='no stream named "x"'):
            await peer.call("end", name="x")
        assert peer.process.stdin is not None
        peer.process.stdin.write(b"{oops\n")
        assert "not a JSON line" in (await peer.event("error"))["message"]


@pytest.mark.parametrize("script", ["multiplex", "omnistreams"])
async def test_bad_arguments_and_closed_ports_end_the_peer_with_a_reason(script: str) -> None:
    async def outcome(*arguments: str) -> int:
        peer = await Peer.start(script, *arguments)
        code = await peer.exit()
        assert peer.seen("error")
        assert not peer.seen("crash")
        return code

    outcomes = tuple(
        await asyncio.gather(outcome("--listen", "70000"), outcome(), outcome("--connect", "1"))
    )
    assert outcomes == (2, 2, 4)


async def test_a_peer_that_does_not_go_is_killed() -> None:
    async with Peer.listen("ws") as peer:
        peer.process.send_signal(signal.SIGSTOP)
        assert await peer.stop(grace=0.2) == -signal.SIGKILL
        with pytest.raises(PeerFailed, match="ws is gone"):
            await peer.call("mode", incoming="echo")


def test_without_node_the_tests_are_skipped_or_fail_as_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("POLYMUX_NO_SKIP", raising=False)
    with pytest.raises(pytest.skip.Exception, match="Node is not installed"):
        peer_module.require()
    monkeypatch.setenv("POLYMUX_NO_SKIP", "1")
    with pytest.raises(pytest.fail.Exception, match="Node is not installed"):
        peer_module.require()


def test_versions_are_exact_and_the_lock_file_names_no_registry() -> None:
    wanted = json.loads((peer_module.PEERS / "package.json").read_text())["dependencies"]
    lock = json.loads((peer_module.PEERS / "package-lock.json").read_text())["packages"]
    for name, version in wanted.items():
        assert lock[f"node_modules/{name}"]["version"] == version
    assert all("integrity" in entry for path, entry in lock.items() if path)
    assert not any("resolved" in entry for entry in lock.values())


def test_outdated_packages_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        (tmp_path / name).write_text((peer_module.PEERS / name).read_text())
    monkeypatch.setattr(peer_module, "PEERS", tmp_path)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/false" if name == "node" else None)
    assert "node_modules is missing or outdated" in str(peer_module.missing())
