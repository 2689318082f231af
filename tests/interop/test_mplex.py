"""polymux interoperates over mplex with npm `multiplex` and `@libp2p/mplex`, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from tests.interop.node_peer import Peer, digest, raw_bytes
from tests.interop.npm_session import QUICK, SMALL, Talk, echoed, echoing, same, talking

import polymux

pytestmark = pytest.mark.usefixtures("node_peers")

MEBIBYTE = 1024 * 1024
CELLS = [
    pytest.param((script, role), id=f"{script}-{role}")
    for script in ("multiplex", "libp2p-mplex")
    for role in ("dialer", "acceptor")
]


@pytest.fixture(scope="module", params=CELLS)
def cell(
    request: pytest.FixtureRequest, runner: asyncio.Runner, node_peers: None
) -> Iterator[tuple[str, Talk]]:
    """One connection for all tests of a package and role."""
    script, role = request.param
    stack = contextlib.AsyncExitStack()
    talk = talking(script, (), "mplex", role, SMALL, QUICK)
    yield script, runner.run(stack.enter_async_context(talk))
    runner.run(stack.aclose())


@pytest.fixture
def script(cell: tuple[str, Talk]) -> str:
    return cell[0]


@pytest.fixture
def talk(cell: tuple[str, Talk], runner: asyncio.Runner) -> Talk:
    """The connection, with a peer that echoes and has nothing to say yet."""

    async def afresh() -> None:
        await cell[1].peer.call("mode", incoming="echo")
        cell[1].peer.forget()

    runner.run(afresh())
    return cell[1]


async def test_ten_streams_of_a_mebibyte_come_back_from_the_peer(talk: Talk) -> None:
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(echoed(talk.session, f"stream {i}", raw_bytes(i, MEBIBYTE)))
            for i in range(10)
        ]
    for i, job in enumerate(jobs):
        assert digest(job.result()) == digest(raw_bytes(i, MEBIBYTE))


async def test_ten_streams_of_a_mebibyte_go_back_to_the_peer(talk: Talk) -> None:
    async with echoing(talk.session):
        reply = await talk.peer.call("exchange", count=10, size=MEBIBYTE, seed=3, timeout=30)
    assert same(reply["results"], MEBIBYTE, 3)
    assert not any(result["error"] for result in reply["results"])


async def test_the_peers_late_answer_comes_after_our_half_close(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="late", size=70_000, seed=9)
    stream = await talk.session.open("question")
    await stream.send(b"what?")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(stream.receive(), 0.1)
    await stream.end()
    assert digest(await stream.receive_all()) == digest(raw_bytes(9, 70_000))
    assert (await talk.peer.event("end"))["received"] == 5


async def test_our_late_answer_reaches_a_peer_that_has_half_closed(talk: Talk) -> None:
    asking = talk.peer.begin("exchange", names=["question"], size=5_000, seed=4)
    stream = await talk.session.accept()
    assert digest(await stream.receive_all()) == digest(raw_bytes(4, 5_000))
    await stream.send(raw_bytes(8, 60_000))
    await stream.end()
    result = (await talk.peer.result(asking))["results"][0]
    assert (result["sha256"], result["error"]) == (digest(raw_bytes(8, 60_000)), None)


@pytest.mark.parametrize("opener", ["ours", "theirs"])
async def test_our_reset_reaches_the_peer_and_harms_no_other_stream(
    talk: Talk, script: str, opener: str
) -> None:
    await talk.peer.call("mode", incoming="hold")
    if opener == "ours":
        stream = await talk.session.open("doomed")
        await stream.send(b"last words")
        theirs = await talk.peer.event("stream")
        await talk.peer.call("wait", stream=theirs["stream"], bytes=10)
    else:
        theirs = (await talk.peer.call("open", names=["doomed"]))["streams"][0]
        await talk.peer.call("send", stream=theirs["stream"], text="last words")
        stream = await talk.session.accept()
        assert await stream.receive() == b"last words"
    stream.abort()
    close = await talk.peer.event("close", stream=theirs["stream"])
    assert not close["ended"]
    if script == "libp2p-mplex":
        assert "reset" in close["error"]
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


@pytest.mark.parametrize("opener", ["ours", "theirs"])
async def test_the_peers_reset_is_an_error_here_and_not_an_end(
    talk: Talk, script: str, opener: str
) -> None:
    await talk.peer.call("mode", incoming="hold")
    if opener == "ours":
        stream = await talk.session.open("doomed")
        await stream.send(b"x")
        theirs = await talk.peer.event("stream")
    else:
        theirs = (await talk.peer.call("open", names=["doomed"]))["streams"][0]
        await talk.peer.call("send", stream=theirs["stream"], text="x")
        stream = await talk.session.accept()
        assert await stream.receive() == b"x"
    await talk.peer.call("reset", stream=theirs["stream"], text="böse")
    with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
        await stream.receive_all()
    if script == "multiplex":
        assert stream.error == "böse"
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


@pytest.mark.parametrize("name", ["", "ascii", "Grüße/✓/𝔐", 'a b\n"c"', "x" * 4000])
async def test_names_arrive_as_they_were_given(talk: Talk, script: str, name: str) -> None:
    assert await echoed(talk.session, name, b"named") == b"named"
    seen = (await talk.peer.event("stream"))["name"]
    if script == "multiplex" and name == "":
        assert seen.isdigit()  # npm calls a nameless stream by its number
    else:
        assert seen == name
    asking = talk.peer.begin("exchange", names=[name], size=3)
    stream = await talk.session.accept()
    if script == "multiplex":
        assert stream.name == name
    else:
        assert stream.name == f"i{stream.stream_id}"  # libp2p names its streams itself
    await stream.receive_all()
    await stream.close()
    await talk.peer.result(asking)


async def test_every_way_of_closing_leaves_a_peer_that_echoes(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="hold")
    for close in ("end", "close", "abort", "close and leave", "abort twice"):
        stream = await talk.session.open(close)
        await stream.send(b"x" * 1000)
        theirs = await talk.peer.event("stream")
        await talk.peer.call("wait", stream=theirs["stream"], bytes=1000)
        if close == "end":
            await stream.end()
            await talk.peer.call("end", stream=theirs["stream"])
            assert await stream.receive_all() == b""
        elif close.startswith("abort"):
            stream.abort()
            stream.abort()
        else:
            await stream.close()
            sent = talk.peer.begin("send", stream=theirs["stream"], size=200_000, end=True)
            if close == "close":
                await talk.peer.result(sent)
        await talk.peer.call("mode", incoming="echo")
        await talk.alive()
        talk.peer.forget()
        await talk.peer.call("mode", incoming="hold")


async def test_a_hog_is_reset_and_the_others_go_on(talk: Talk) -> None:
    reading, echoes = [], []
    hog = (await talk.peer.call("open", names=["hog"]))["streams"][0]
    sending = talk.peer.begin("send", stream=hog["stream"], size=4 * MEBIBYTE)
    unread = await talk.session.accept()
    for i in range(3):
        echoes.append(asyncio.create_task(echoed(talk.session, f"e{i}", raw_bytes(i, 300_000))))
    reading = await asyncio.wait_for(asyncio.gather(*echoes), 60)
    for i, data in enumerate(reading):
        assert digest(data) == digest(raw_bytes(i, 300_000))
    await talk.peer.event("close", stream=hog["stream"])
    with pytest.raises(polymux.StreamAborted, match=r"not read for 0.5 s .* session_buffer_bytes="):
        await unread.receive()
    await talk.peer.result(sending)
    assert talk.session.endpoint.receive_queue.unread_bytes == 0
    await talk.alive()


async def test_ids_that_npm_uses_again_are_new_streams(talk: Talk) -> None:
    async with echoing(talk.session):
        for turn in range(5):
            reply = await talk.peer.call("exchange", count=3, size=2_000, seed=turn)
            assert same(reply["results"], 2_000, turn)


async def test_openings_are_kept_apart_for_a_peer_that_counts_them() -> None:
    limit = ("--options", '{"disconnectThreshold": 5}')  # js-libp2p's own default
    async with Peer.listen("libp2p-mplex", *limit) as peer:
        url = f"tcp://127.0.0.1:{peer.port}"
        async with polymux.connect(url, protocol="mplex", opens_per_second=4) as session:
            for i in range(7):
                assert await echoed(session, str(i), b"paced") == b"paced"
        assert not peer.seen("fault")


async def test_a_lost_peer_ends_every_wait_with_one_clear_line() -> None:
    async with Peer.listen("multiplex") as peer:
        url = f"tcp://127.0.0.1:{peer.port}"
        session = await polymux.connect(url, protocol="mplex")
        await peer.event("session")
        stream = await session.open("x")
        reading = asyncio.create_task(stream.receive())
        accepting = asyncio.create_task(session.accept())
        peer.process.kill()
        for waiting in (reading, accepting):
            with pytest.raises(polymux.SessionClosed, match=r"the (peer|connection)"):
                await asyncio.wait_for(waiting, 60)
        await session.close()
