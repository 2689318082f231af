"""polymux interoperates over Nerdbank v1, v2 and v3 with npm `nerdbank-streams`, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from tests.interop.node_peer import PeerFailed, digest, raw_bytes
from tests.interop.npm_session import QUICK, SMALL, Talk, echoed, echoing, same, talking

import polymux
from polymux import NerdbankSession

pytestmark = pytest.mark.usefixtures("node_peers")

MEBIBYTE = 1024 * 1024
CELLS = [
    pytest.param((version, role), id=f"v{version}-{role}")
    for version in (1, 2, 3)
    for role in ("dialer", "acceptor")
]


@dataclass
class Cell:
    version: int
    talk: Talk

    @property
    def session(self) -> NerdbankSession:
        return cast(NerdbankSession, self.talk.session)


@pytest.fixture(scope="module", params=CELLS)
def standing(
    request: pytest.FixtureRequest, runner: asyncio.Runner, node_peers: None
) -> Iterator[Cell]:
    """One connection for all tests of a version and role."""
    version, role = request.param
    stack = contextlib.AsyncExitStack()
    arguments = ("--version", str(version))
    talk = talking("nerdbank", arguments, f"nerdbank:version={version}", role, SMALL, QUICK)
    yield Cell(version, runner.run(stack.enter_async_context(talk)))
    runner.run(stack.aclose())


@pytest.fixture
def cell(standing: Cell, runner: asyncio.Runner) -> Cell:
    """The connection, with a peer that echoes and has nothing to say yet."""

    async def afresh() -> None:
        await standing.talk.peer.call("mode", incoming="echo")
        standing.talk.peer.forget()

    runner.run(afresh())
    return standing


@pytest.fixture
def talk(cell: Cell) -> Talk:
    return cell.talk


async def test_ten_channels_of_a_mebibyte_come_back_from_the_peer(talk: Talk) -> None:
    async with asyncio.TaskGroup() as tasks:
        jobs = [
            tasks.create_task(echoed(talk.session, f"channel {i}", raw_bytes(i, MEBIBYTE)))
            for i in range(10)
        ]
    for i, job in enumerate(jobs):
        assert digest(job.result()) == digest(raw_bytes(i, MEBIBYTE))


async def test_ten_channels_of_a_mebibyte_go_back_to_the_peer(talk: Talk) -> None:
    async with echoing(talk.session):
        reply = await talk.peer.call("exchange", count=10, size=MEBIBYTE, seed=3, timeout=30)
    assert same(reply["results"], MEBIBYTE, 3)
    assert not any(result["error"] for result in reply["results"])


async def test_a_hundred_channels_at_once_both_ways(talk: Talk) -> None:
    async with echoing(talk.session), asyncio.TaskGroup() as tasks:
        theirs = talk.peer.begin("exchange", count=100, size=3_000)
        jobs = [
            tasks.create_task(echoed(talk.session, str(i), raw_bytes(i, 3_000))) for i in range(100)
        ]
        assert same((await talk.peer.result(theirs, timeout=30))["results"], 3_000)
    assert [job.result() for job in jobs] == [raw_bytes(i, 3_000) for i in range(100)]


async def test_late_answers_after_a_half_close_both_ways(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="late", size=70_000, seed=9)
    stream = await talk.session.open("question")
    await stream.send(b"what?")
    await stream.end()
    assert digest(await stream.receive_all()) == digest(raw_bytes(9, 70_000))
    asking = talk.peer.begin("exchange", names=["theirs"], size=5_000, seed=4)
    stream = await talk.session.accept()
    assert digest(await stream.receive_all()) == digest(raw_bytes(4, 5_000))
    await stream.send(raw_bytes(8, 60_000))
    await stream.end()
    result = (await talk.peer.result(asking))["results"][0]
    assert (result["sha256"], result["error"]) == (digest(raw_bytes(8, 60_000)), None)


async def test_names_arrive_as_they_were_given(talk: Talk) -> None:
    for name in ("", "ascii", "Grüße/✓/𝔐", 'a b\n"c"', "x" * 4000):
        assert await echoed(talk.session, name, b"named") == b"named"
        assert (await talk.peer.event("stream"))["name"] == name
        asking = talk.peer.begin("exchange", names=[name], size=3)
        stream = await talk.session.accept()
        assert stream.name == name
        await stream.receive_all()
        await stream.close()
        await talk.peer.result(asking)


@pytest.mark.parametrize("opener", ["ours", "theirs"])
@pytest.mark.parametrize("ender", ["ours", "theirs"])
async def test_a_termination_and_its_text_reach_the_other_side(
    cell: Cell, opener: str, ender: str
) -> None:
    talk = cell.talk
    await talk.peer.call("mode", incoming="hold")
    if opener == "ours":
        stream = await cell.session.open("doomed")
        theirs = await talk.peer.event("stream", name="doomed")
    else:
        offering = talk.peer.begin("offer", name="doomed")
        stream = await cell.session.accept("doomed")
        theirs = await talk.peer.result(offering)
    if ender == "ours":
        stream.abort("Ärger")
        close = await talk.peer.event("close", stream=theirs["stream"])
        assert close["error"] == (
            None if cell.version == 1 else "Received error from remote side: Ärger"
        )
    else:
        await talk.peer.call("reset", stream=theirs["stream"], text="Ärger")
        with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
            await stream.receive()
        assert stream.error == (None if cell.version == 1 else "Error: Ärger")
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


async def test_our_offer_is_rejected_or_withdrawn(cell: Cell) -> None:
    talk = cell.talk
    await talk.peer.call("mode", incoming="reject", name="never")
    with pytest.raises(polymux.StreamAborted, match="rejected by the peer"):
        await cell.session.open("never")
    await talk.peer.call("mode", incoming="wait", name="later")
    opening = asyncio.create_task(cell.session.open("later"))
    offered = await talk.peer.event("offered", name="later")
    opening.cancel()
    await asyncio.wait([opening])
    await talk.alive()
    with pytest.raises(PeerFailed, match="No channel with ID"):
        await talk.peer.call("accept", id=offered["id"])
    await talk.alive()


async def test_their_offer_is_rejected_or_withdrawn(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    offer = talk.peer.begin("offer", name="unwanted")
    while not session.offers():
        await asyncio.sleep(0.01)
    session.reject(session.offers()[0])
    with pytest.raises(PeerFailed, match="the offer was not accepted"):
        await talk.peer.result(offer)
    offer = talk.peer.begin("offer", name="regretted")
    while not session.offers():
        await asyncio.sleep(0.01)
    await talk.peer.call("cancel", name="regretted")
    with pytest.raises(PeerFailed, match="the offer was not accepted"):
        await talk.peer.result(offer)
    while session.offers():
        await asyncio.sleep(0.01)
    await talk.alive()


async def test_offers_and_acceptors_of_one_name_meet_first_come_first_served(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    waiting = [asyncio.create_task(session.accept("queue")) for _ in range(2)]
    other = asyncio.create_task(session.accept("other"))
    await asyncio.sleep(0)
    offered = [await talk.peer.call("offer", name="queue") for _ in range(2)]
    late = [talk.peer.begin("offer", name="queue") for _ in range(2)]
    assert [(await task).stream_id for task in waiting] == [o["id"] for o in offered]
    assert not other.done()
    for offer in late:
        assert (await session.accept("queue")).stream_id == (await talk.peer.result(offer))["id"]
    other.cancel()
    await talk.alive()


async def test_anonymous_channels_are_accepted_by_id_both_ways(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    await talk.peer.call("mode", incoming="wait")
    mine = await session.offer()
    mine.send_nowait(raw_bytes(4, 60_000))
    await mine.end()
    offered = await talk.peer.event("offered", name="")
    assert offered["id"] == mine.stream_id
    await talk.peer.call("accept", id=mine.stream_id, incoming="late", size=10)
    await session.accepted(mine)
    assert await mine.receive_all() == raw_bytes(0, 10)
    made = await talk.peer.call("create")
    while not session.offers():
        await asyncio.sleep(0.01)
    stream = await session.accept_id(made["id"])
    sending = talk.peer.begin("send", stream=made["stream"], size=60_000, seed=6, end=True)
    assert await stream.receive_all() == raw_bytes(6, 60_000)
    await talk.peer.result(sending)
    await stream.send(b"answer")
    await stream.end()
    got = await talk.peer.call("wait", stream=made["stream"], until="end")
    assert got["sha256"] == digest(b"answer")
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


async def test_a_window_of_64_bytes_moves_a_hundred_thousand(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    await talk.peer.call("mode", incoming="hold")
    stream = await session.open("tiny", window=0 if cell.version == 1 else 64)
    theirs = await talk.peer.event("stream", name="tiny")
    sending = talk.peer.begin("send", stream=theirs["stream"], size=100_000, seed=5, end=True)
    assert digest(await stream.receive_all()) == digest(raw_bytes(5, 100_000))
    await talk.peer.result(sending)
    if cell.version == 1:
        assert stream.peer_half.credit_granted == -1  # it has no windows
    else:
        assert 0 < stream.peer_half.peak_in_flight <= 64
    await stream.end()
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


async def test_a_slow_reader_holds_at_most_its_window(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    bound = 400_000 if cell.version == 1 else 50_000  # without windows: all that was sent
    await talk.peer.call("mode", incoming="hold")
    stream = await session.open("slow", window=0 if cell.version == 1 else 50_000)
    theirs = await talk.peer.event("stream", name="slow")
    sending = talk.peer.begin("send", stream=theirs["stream"], size=400_000, seed=7, end=True)
    await talk.peer.call("mode", incoming="echo")
    for _ in range(5):
        await talk.alive()
        assert stream.buffers.unread_bytes <= bound
    while stream.buffers.unread_bytes < bound:
        await asyncio.sleep(0.01)
    assert digest(await stream.receive_all()) == digest(raw_bytes(7, 400_000))
    await talk.peer.result(sending)
    await stream.end()


async def test_a_hog_does_not_stop_the_others(cell: Cell) -> None:
    """Without windows it is terminated when its time is up; with them it is bounded and lives."""
    talk, session = cell.talk, cell.session
    offering = talk.peer.begin("offer", name="hog")
    unread = await session.accept("hog")
    hog = await talk.peer.result(offering)
    sending = talk.peer.begin("send", stream=hog["stream"], size=4 * MEBIBYTE, end=True)
    data = await asyncio.wait_for(echoed(session, "other", raw_bytes(1, 300_000)), 60)
    assert digest(data) == digest(raw_bytes(1, 300_000))
    if cell.version == 1:
        while unread.usable:
            await asyncio.sleep(0.05)
        with pytest.raises(
            polymux.StreamAborted, match=r"not read for 0.5 s .* session_buffer_bytes="
        ):
            await unread.receive()
    else:
        await asyncio.sleep(0.6)
        assert unread.usable
        assert unread.buffers.unread_bytes <= MEBIBYTE
        assert digest(await unread.receive_all()) == digest(raw_bytes(0, 4 * MEBIBYTE))
        await unread.end()
    await talk.peer.result(sending)
    await talk.alive()


WAYS_TO_CLOSE = [
    "end", "close", "close while they send", "abort", "abort while they send", "abort with text",
    "abort after end", "withdraw", "terminate an answered one",
]  # fmt: skip


async def test_every_way_of_closing_leaves_a_peer_that_echoes(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    for way in WAYS_TO_CLOSE:
        await talk.peer.call("mode", incoming="wait" if way == "withdraw" else "hold")
        if way == "withdraw":
            stream = await session.offer("x")
            await talk.peer.event("offered")
            await stream.close()
        else:
            stream = await session.open("x")
            theirs = await talk.peer.event("stream")
            await stream.send(b"x" * 1000)
            await talk.peer.call("wait", stream=theirs["stream"], bytes=1000)
            if "they send" in way:
                talk.peer.begin("send", stream=theirs["stream"], size=300_000)
                await stream.receive()
            if way == "end":
                await talk.peer.call("end", stream=theirs["stream"])
                await stream.end()
                assert await stream.receive_all() == b""
            elif way.startswith("close"):
                await stream.close()
            else:
                if way == "abort after end":
                    await stream.end()
                elif way == "terminate an answered one":
                    await talk.peer.call("send", stream=theirs["stream"], text="a", end=True)
                    await stream.receive_all()
                stream.abort("because" if "text" in way else "")
        await talk.peer.call("mode", incoming="echo")
        await talk.alive()
        talk.peer.forget()


async def test_a_channel_that_both_have_finished_is_terminated_once_by_each(cell: Cell) -> None:
    talk, session = cell.talk, cell.session
    stream = await session.open("brief")
    await stream.send(b"x")
    await stream.end()
    assert await stream.receive_all() == b"x"
    theirs = await talk.peer.event("stream", name="brief")
    close = await talk.peer.event("close", stream=theirs["stream"])
    assert (close["ended"], close["finished"], close["error"]) == (True, True, None)
    for _ in range(3000):
        owed = [
            key
            for _, _, key in session.endpoint.protocol.pending_replies
            if key == stream.state.key
        ]
        if not owed:
            break
        await asyncio.sleep(0.02)
    assert not owed
    assert "nerdbank.terminated-twice" not in session.endpoint.counters.hits
    assert stream.state.ending == "clean"
    await talk.alive()


@pytest.mark.parametrize("role", ["dialer", "acceptor"])
async def test_seeded_channels_need_no_offer(role: str) -> None:
    seeds = "102400+500+102400"
    async with talking(
        "nerdbank", ("--seeded", seeds), f"nerdbank:version=3,seeded={seeds}", role
    ) as talk:
        session = cast(NerdbankSession, talk.session)
        for number in range(3):
            await talk.peer.call("accept", id=number, incoming="echo")
            stream = await session.accept_id(number)
            async with asyncio.TaskGroup() as tasks:
                reply = tasks.create_task(stream.receive_all())
                await stream.send(raw_bytes(number, 5_000))
                await stream.end()
            assert reply.result() == raw_bytes(number, 5_000)
        assert not talk.peer.seen("offered")
        await talk.alive()
        assert talk.peer.seen("stream", id=4)
