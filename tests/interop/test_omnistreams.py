"""polymux interoperates with npm `omnistreams` 0.9.0 over a WebSocket, in both roles."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import cast

import pytest
from tests.interop.node_peer import EXIT_CRASH, Peer, digest, raw_bytes

import polymux
from polymux import MessageReceiver, OmnistreamsSession, Session
from polymux.core.frames import Frame
from polymux.protocols.omnistreams.rules import END

pytestmark = pytest.mark.usefixtures("node_peers")

PROTOCOL = "omnistreams:numbering=legacy"
FIVE_MEGABYTES = 5_000_000


@dataclass
class Talk:
    """One connection: our session, their process."""

    session: OmnistreamsSession
    peer: Peer

    async def theirs(self, name: str, window: int = 0) -> MessageReceiver:
        """The next stream that the peer opens under this name."""
        while True:
            receiver = await self.session.accept(window=window)
            if receiver.name == name:
                return receiver

    async def alive(self) -> None:
        assert await echoed(self, "alive", [b"still", b"", b"there"]) == [b"still", b"", b"there"]


@contextlib.asynccontextmanager
async def talking(role: str) -> AsyncIterator[Talk]:
    """We dial a peer that listens (`role` dialer), or a peer dials us (acceptor)."""
    if role == "dialer":
        async with (
            Peer.listen("omnistreams") as peer,
            polymux.connect(
                f"ws://127.0.0.1:{peer.port}/omnistreams", protocol=PROTOCOL
            ) as session,
        ):
            await peer.event("session")
            yield Talk(cast(OmnistreamsSession, session), peer)
        return
    arrived: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

    async def keep(session: Session) -> None:
        arrived.set_result(session)
        await session.wait_closed()

    url = "ws://127.0.0.1:0/omnistreams"
    async with (
        await polymux.serve(keep, url, protocol=PROTOCOL) as server,
        Peer.connect("omnistreams", server.port) as peer,
    ):
        await peer.event("session")
        yield Talk(cast(OmnistreamsSession, await arrived), peer)


@pytest.fixture(scope="module", params=["dialer", "acceptor"])
def cell(
    request: pytest.FixtureRequest, runner: asyncio.Runner, node_peers: None
) -> Iterator[Talk]:
    """One connection for all tests of a role."""
    stack = contextlib.AsyncExitStack()
    yield runner.run(stack.enter_async_context(talking(request.param)))
    runner.run(stack.aclose())


@pytest.fixture
def talk(cell: Talk, runner: asyncio.Runner) -> Talk:
    """The connection, with a peer that echoes and has nothing to say yet."""

    async def afresh() -> None:
        await cell.peer.call("mode", incoming="echo")
        await cell.peer.call("echo_control", on=False)
        cell.peer.forget()
        cell.session.window = 64

    runner.run(afresh())
    return cell


async def echoed(talk: Talk, name: str, messages: list[bytes]) -> list[bytes]:
    """Send on a stream of ours; what comes back on the peer's."""
    sender = await talk.session.open(name)
    receiver = await talk.theirs(name)

    async def send() -> None:
        for message in messages:
            await sender.send(message)
        await sender.end()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        return [message async for message in receiver]


async def answer(session: OmnistreamsSession, receiver: MessageReceiver) -> None:
    """Send back what comes, on a stream with the same metadata."""
    async with await session.open(receiver.metadata) as sender:
        async for message in receiver:
            await sender.send(message)


async def test_a_hundred_streams_of_ours_come_back(talk: Talk) -> None:
    session = talk.session
    messages = {f"stream {i}": [raw_bytes(i + k, 1000) for k in range(10)] for i in range(100)}

    async def send(name: str) -> None:
        async with await session.open(name) as sender:
            for message in messages[name]:
                await sender.send(message)

    async def collect(receiver: MessageReceiver) -> tuple[str, list[bytes]]:
        return receiver.name, [message async for message in receiver]

    async with asyncio.TaskGroup() as tasks:
        for name in messages:
            tasks.create_task(send(name))
        jobs = [tasks.create_task(collect(await session.accept())) for _ in messages]
    assert dict(job.result() for job in jobs) == messages
    assert session.endpoint.counters.hits == {}


async def test_a_hundred_streams_of_the_peer_go_back(talk: Talk) -> None:
    asking = talk.peer.begin("exchange", streams=100, count=10, size=1000, seed=3)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(100):
            tasks.create_task(answer(talk.session, await talk.session.accept()))
    results = (await talk.peer.result(asking, timeout=30))["results"]
    assert [r["sha256"] for r in results] == [digest(raw_bytes(3 + i, 10_000)) for i in range(100)]
    assert {r["messages"] for r in results} == {10}


async def test_our_window_of_ten_is_what_the_peer_may_send(talk: Talk) -> None:
    talk.session.window = 10
    opened = await talk.peer.call("open", metadata="windowed")
    sending = talk.peer.begin("send", stream=opened["stream"], count=100, size=7, end=True)
    receiver = await talk.theirs("windowed")
    await talk.peer.call("wait", stream=opened["stream"], credit=10)
    await talk.peer.call("control", text="all that could be sent was sent")
    await talk.session.receive_control()
    status = await talk.peer.call("status", stream=opened["stream"])
    assert (status["granted"], status["messages"]) == (10, 10)
    assert len(receiver.buffers.received) == 10
    first = [await receiver.receive() for _ in range(4)]
    assert (await talk.peer.call("status", stream=opened["stream"]))["granted"] == 10
    first.append(await receiver.receive())  # half the window: it is given back
    await talk.peer.call("wait", stream=opened["stream"], credit=15)
    rest = [message async for message in receiver]
    assert b"".join(first + rest) == raw_bytes(0, 700)
    assert (await talk.peer.result(sending))["granted"] <= 110


async def test_we_send_only_what_the_peer_asked_for(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="hold")
    sender = await talk.session.open("patient")
    theirs = await talk.peer.event("stream", name="patient")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sender.send(b"never"), 0.1)
    await talk.peer.call("request", stream=theirs["stream"], amount=3)
    for text in (b"a", b"", b"c"):
        await sender.send(text)
    got = await talk.peer.call("wait", stream=theirs["stream"], messages=3)
    assert (got["messages"], got["sha256"]) == (3, digest(b"ac"))
    await talk.peer.call("request", stream=theirs["stream"], amount=300, raw=True)  # it wraps
    while sender.credit < 44:
        await asyncio.sleep(0.01)
    assert sender.credit == 44
    await sender.end()
    assert (await talk.peer.event("end", stream=theirs["stream"]))["messages"] == 3


async def test_a_cancel_by_our_reader_stops_the_peer(talk: Talk) -> None:
    opened = await talk.peer.call("open", metadata="unwanted")
    sending = talk.peer.begin("send", stream=opened["stream"], count=1000, size=10)
    receiver = await talk.theirs("unwanted", window=20)
    assert len(await receiver.receive()) == 10
    receiver.cancel()
    with pytest.raises(polymux.StreamAborted, match="cancelled by this side"):
        await receiver.receive()
    await talk.peer.event("terminated", stream=opened["stream"])
    assert (await talk.peer.result(sending))["messages"] <= 20
    await talk.alive()


async def test_a_cancel_by_the_peers_reader_stops_us(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="reject", name="refused")
    sender = await talk.session.open("refused")
    with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
        await sender.send(b"no")
    with pytest.raises(polymux.StreamAborted):
        sender.send_nowait(b"no")
    await talk.alive()


async def test_control_messages_go_both_ways(talk: Talk) -> None:
    await talk.peer.call("echo_control")
    messages = [b"", b"\x00\xff", raw_bytes(5, 300_000)]
    for message in messages:
        await talk.session.control(message)
    await talk.session.control({"jsonrpc": "2.0"})
    assert [await talk.session.receive_control() for _ in messages] == messages
    assert await talk.session.receive_control() == b'{"jsonrpc":"2.0"}'


async def test_six_hundred_streams_in_a_row_each_way(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="sink")
    for number in range(600):
        async with await talk.session.open(str(number)) as sender:
            await sender.send(b"x")
    assert (await talk.peer.call("sink", streams=600))["bytes"] == 600
    doing = talk.peer.begin("openclose", count=600, in_flight=20)
    for _ in range(600):
        assert [message async for message in await talk.session.accept()] == []
    assert (await talk.peer.result(doing, timeout=30))["count"] == 600
    await talk.peer.call("mode", incoming="echo")
    await talk.alive()


async def test_five_megabytes_each_way_by_digest(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="collect", name="big")
    async with await talk.session.open("big") as sender:
        await sender.send_all(raw_bytes(1, FIVE_MEGABYTES))
    end = await talk.peer.event("end", name="big", timeout=30)
    assert (end["received"], end["sha256"]) == (
        FIVE_MEGABYTES, digest(raw_bytes(1, FIVE_MEGABYTES)),
    )  # fmt: skip
    opened = await talk.peer.call("open", metadata="back")
    sending = talk.peer.begin(
        "send", stream=opened["stream"], count=100, size=50_000, seed=2, end=True
    )
    data = await (await talk.theirs("back")).receive_all()
    assert digest(data) == digest(raw_bytes(2, FIVE_MEGABYTES))
    await talk.peer.result(sending, timeout=30)


async def test_data_beyond_what_we_asked_for_costs_the_peer_that_stream(talk: Talk) -> None:
    talk.session.window = 1
    opened = await talk.peer.call("open", metadata="greedy")
    receiver = await talk.theirs("greedy")
    await talk.peer.call("wait", stream=opened["stream"], credit=1)
    await talk.peer.call("send", stream=opened["stream"], text="one", force=True)
    await talk.peer.call("send", stream=opened["stream"], text="two", force=True)
    await talk.peer.event("terminated", stream=opened["stream"])
    with pytest.raises(polymux.StreamAborted, match=r"omnistreams\.credit-exceeded"):
        await receiver.receive_all()
    assert talk.session.endpoint.counters.hits.pop("omnistreams.credit-exceeded") == 1
    await talk.alive()


async def test_an_id_that_the_peer_gave_up_in_silence_is_used_again(talk: Talk) -> None:
    doomed = await talk.peer.call("open", metadata="doomed")
    receiver = await talk.theirs("doomed")
    await talk.peer.call("cancel", stream=doomed["stream"])  # the peer does not notify us
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(receiver.receive(), 0.05)
    for _ in range(257):
        opened = await talk.peer.call("open", metadata="next")
        again = await talk.theirs("next")
        if opened["id"] == doomed["id"]:
            break
        await talk.peer.call("end", stream=opened["stream"])
    assert opened["id"] == doomed["id"]
    with pytest.raises(polymux.StreamAborted):
        await receiver.receive()
    await talk.peer.call("send", stream=opened["stream"], text="mine", end=True)
    assert [message async for message in again] == [b"mine"]
    assert receiver.state not in talk.session.streams
    hits = talk.session.endpoint.counters.hits
    assert hits.pop("omnistreams.create-on-open-id") == 1


async def test_our_silent_cancel_frees_nothing_that_the_peer_still_holds(talk: Talk) -> None:
    await talk.peer.call("mode", incoming="collect", name="withdrawn")
    sender = await talk.session.open("withdrawn")
    await sender.send(b"first")
    theirs = await talk.peer.event("stream", name="withdrawn")
    await talk.peer.call("wait", stream=theirs["stream"], messages=1)
    sender.cancel()
    with pytest.raises(polymux.StreamAborted, match="cancelled by this side"):
        await sender.send(b"second")
    await talk.alive()
    await talk.peer.call("cancel", stream=theirs["stream"])
    await talk.alive()


async def test_a_peer_that_crashes_ends_the_session_in_one_line() -> None:
    async with Peer.listen("omnistreams") as peer:
        connecting = polymux.connect(f"ws://127.0.0.1:{peer.port}/omnistreams", protocol=PROTOCOL)
        session = cast(OmnistreamsSession, await connecting)
        sender = await session.open("s")
        session.endpoint.send_frame(Frame(END, 2 * 77), force=True)  # an id that it does not know
        session.schedule_flush()
        await peer.event("crash")
        assert await peer.exit() == EXIT_CRASH
        await session.wait_closed()
        assert "\n" not in str(session.failure)
        with pytest.raises(polymux.SessionClosed):
            await sender.send(b"x" * 100)


async def test_the_bare_websocket_of_npm_dials_us() -> None:
    failures: list[str] = []

    async def handle(session: Session) -> None:
        ours = cast(OmnistreamsSession, session)
        with contextlib.suppress(polymux.SessionClosed):
            receiver = await ours.accept(window=10)
            async for message in receiver:
                await ours.control(message)
            await session.wait_closed()
        failures.append(str(session.failure))

    url = "ws://127.0.0.1:0/omnistreams"
    async with (
        await polymux.serve(handle, url, protocol="omnistreams") as server,
        Peer.connect("ws", server.port, "--path", "/omnistreams") as peer,
    ):
        await peer.call("mode", incoming="hold")
        await peer.call("send", hex="01057b7d")
        assert (await peer.event("message"))["hex"] == "05050a"
        await peer.call("fragments", hex="0205aabbccdd", parts=3)
        assert (await peer.event("message"))["hex"] == "00aabbccdd"
        await peer.call("send", hex="0205" + "77" * 70_000)
        assert (await peer.event("message"))["bytes"] == 70_001
        await peer.call("ping", text="ab")
        assert (await peer.event("pong"))["hex"] == "6162"
        await peer.call("send", text="a text message")
        gone = await peer.event("disconnected")
        assert gone["code"] == 1003
    assert len(failures) == 1
    assert "websocket." in failures[0]


async def test_we_dial_the_bare_websocket_of_npm() -> None:
    async with (
        Peer.listen("ws") as peer,
        polymux.connect(f"ws://127.0.0.1:{peer.port}/", protocol="omnistreams") as session,
    ):
        sender = await session.open("mirrored")  # the peer echoes: it opens the same stream to us
        receiver = await session.accept(window=5)
        async with sender:
            for message in (b"", b"x", raw_bytes(1, 300_000)):
                await sender.send(message)
        assert [message async for message in receiver] == [b"", b"x", raw_bytes(1, 300_000)]
        await peer.call("disconnect", code=4002, reason="enough")
        await session.wait_closed()
        assert "closed the WebSocket with code 4002" in str(session.failure)
        assert (await peer.event("disconnected"))["code"] == 4002
