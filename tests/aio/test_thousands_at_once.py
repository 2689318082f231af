"""Thousands of streams at once under a plain `gather`, with all defaults: every one succeeds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
from tests.aio.session_helpers import PROTOCOLS, answer, joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import (
    Call,
    Limits,
    MessageReceiver,
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
)

COUNT = 5000
EVERY = [*PROTOCOLS, "omnistreams", "streamux", "minmux"]

Handler = Callable[[Session], Coroutine[object, object, None]]


async def reply(call: Call) -> None:
    await call.reply(await call.read())


async def read(receiver: MessageReceiver) -> None:
    assert [message async for message in receiver] == [b"a little"]


async def read_items(session: MinmuxSession, number: int) -> None:
    async with session.receiver(number) as receiver:
        assert b"".join([data async for data in receiver]) == b"a little"


async def serve_all(session: Session) -> None:
    """The acceptor's side: reply to everything, where the protocol has replies."""
    if isinstance(session, StreamuxSession):
        await session.serve_calls(reply)
    elif isinstance(session, OmnistreamsSession):
        await session.serve_streams(read)
    elif isinstance(session, MinmuxSession):
        await asyncio.gather(*(read_items(session, 2 * n + 1) for n in range(COUNT)))
        await session.wait_closed()
    else:
        await session.serve_streams(answer)


async def converse(session: Session, number: int) -> None:
    """The dialer's side: use one stream for a little data and its reply, and end it."""
    text = b"number %d" % number
    if isinstance(session, StreamuxSession):
        assert await session.request(text) == text
    elif isinstance(session, OmnistreamsSession):
        async with await session.open(f"{number}") as sender:
            await sender.send(b"a little")
    elif isinstance(session, MinmuxSession):
        async with session.sender(2 * number + 1) as items:
            await items.send(b"a little")
        await items.wait_over()
    else:
        async with await session.open(f"{number}") as stream:
            await stream.send(text)
            await stream.end()
            assert await stream.receive_all() == text


@contextlib.asynccontextmanager
async def over_tcp(protocol: str, handler: Handler) -> AsyncIterator[tuple[Session, Session]]:
    served: list[Session] = []

    async def handle(session: Session) -> None:
        served.append(session)
        await handler(session)

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol)
    async with server, polymux.connect(server.url, protocol=protocol) as near:
        while not served:
            await asyncio.sleep(0.01)
        yield near, served[0]


@contextlib.asynccontextmanager
async def in_memory(protocol: str, handler: Handler) -> AsyncIterator[tuple[Session, Session]]:
    near, far = await polymux.pipe(protocol)
    handling = asyncio.create_task(handler(far))
    yield near, far
    await near.close()
    await handling


@pytest.mark.parametrize("way", [over_tcp, in_memory])
@pytest.mark.parametrize("protocol", EVERY)
async def test_thousands_of_streams_at_once_all_succeed(
    protocol: str,
    way: Callable[[str, Handler], contextlib.AbstractAsyncContextManager[tuple[Session, Session]]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with way(protocol, serve_all) as (near, far):
        await asyncio.gather(*(converse(near, number) for number in range(COUNT)))
        assert near.failure is far.failure is None
        assert near.endpoint.counters.hits == far.endpoint.counters.hits == {}
    assert [line.message for line in caplog.records if line.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_server_that_accepts_one_stream_after_the_other_loses_none(protocol: str) -> None:
    async def one_by_one(session: Session) -> None:
        async for stream in session.incoming:
            await answer(stream)

    async with over_tcp(protocol, one_by_one) as (near, far):
        await asyncio.gather(*(converse(near, number) for number in range(1200)))
        assert far.endpoint.counters.hits == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_streams_that_the_server_aborts_do_not_count_against_the_peer(
    protocol: str,
) -> None:
    async def abort(stream: Stream) -> None:
        stream.abort()

    async def refuse(session: Session) -> None:
        await session.serve_streams(abort)

    async with over_tcp(protocol, refuse) as (near, far):
        work = [converse(near, number) for number in range(1500)]
        results = await asyncio.gather(*work, return_exceptions=True)
        assert all(isinstance(result, polymux.StreamAborted) for result in results)
        assert near.failure is far.failure is None


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "omnistreams", "streamux"])
async def test_aborting_thousands_at_once_leaves_the_session_usable(protocol: str) -> None:
    async def never(session: Session) -> None:
        await session.wait_closed()

    async with over_tcp(protocol, never) as (near, far):
        waiting = [asyncio.create_task(converse(near, number)) for number in range(COUNT)]
        await asyncio.sleep(0.2)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        async with asyncio.timeout(40):
            while near.open_streams or far.open_streams:
                await asyncio.sleep(0.01)
        assert near.failure is far.failure is None
        await near.close()


@virtual
async def test_opening_waits_for_room_and_is_cancelled_timed_out_or_closed() -> None:
    async with joined("mplex", limits=Limits(max_own_streams=2)) as (near, far):
        streams = [await near.open(), await near.open()]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await near.open()
        cancelled = asyncio.create_task(near.open("cancelled"))
        first, second = (asyncio.create_task(near.open(name)) for name in ("first", "second"))
        await settled()
        cancelled.cancel()
        streams[0].abort()
        assert (await first).name == "first"
        assert not second.done()
        assert near.open_streams == 2
        closing = asyncio.create_task(near.close())
        with pytest.raises(polymux.SessionClosed, match="is closed"):
            await second
        await closing
        assert far.failure is None


@virtual
async def test_a_caller_cancelled_as_it_is_woken_passes_the_room_on() -> None:
    async with joined("mplex", limits=Limits(max_own_streams=1)) as (near, _):
        only = await near.open()
        first, second = (asyncio.create_task(near.open(name)) for name in ("first", "second"))
        await settled()
        only.abort()
        while near.open_streams:  # its reset was sent, and the first waiter was woken
            await asyncio.sleep(0)
        first.cancel()
        assert (await second).name == "second"


@virtual
async def test_opens_without_progress_are_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with joined("nerdbank", limits=Limits(max_own_streams=1)) as (near, _):
        waiting = [asyncio.create_task(near.open(f"{number}")) for number in range(4)]
        await asyncio.sleep(60)
        assert [line.message for line in caplog.records] == [
            "nerdbank session with memory: 3 streams wait to be opened until one of the 1 that "
            "this side has open is over: limit max_own_streams=1; "
            "raise it with Limits(max_own_streams=...)"
        ]
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


@virtual
async def test_the_timeout_of_a_request_starts_when_it_is_sent() -> None:
    async with joined("streamux:timeout=1", limits=Limits(max_own_streams=1)) as (near, far):
        assert isinstance(near, StreamuxSession)
        assert isinstance(far, StreamuxSession)

        async def slowly(call: Call) -> None:
            await asyncio.sleep(0.6)
            await call.reply(b"done")

        answering = asyncio.create_task(far.serve_calls(slowly))
        assert await asyncio.gather(*(near.request(b"x") for _ in range(5))) == [b"done"] * 5
        asked = [near.request(b"x", timeout=1) for _ in range(3)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(result) for result in results] == [bytes, TimeoutError, TimeoutError]
        await near.close()
        await answering


@virtual
async def test_aborted_streams_are_refilled_at_the_rate_that_a_peer_allows() -> None:
    async with joined("mplex") as (near, far):
        began = near.loop.time()
        for _ in range(1200):
            (await near.open()).abort()
        assert 8 < near.loop.time() - began < 20
        await settled()
        assert near.failure is far.failure is None


@virtual
async def test_credit_for_thousands_of_minmux_streams_does_not_wait_for_the_idle_ones() -> None:
    async with joined("minmux", limits=Limits(max_own_streams=10)) as (near, far):
        assert isinstance(near, MinmuxSession)
        assert isinstance(far, MinmuxSession)
        receivers = [far.receiver(2 * number + 1) for number in range(30)]
        await settled()
        for number in range(30):
            sender = near.sender(2 * number + 1)
            await sender.send(b"x")
            assert await receivers[number].receive() == b"x"
        assert far.open_streams == 30


@virtual
async def test_a_limit_that_ends_a_session_is_a_warning_and_the_peer_gets_a_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = Limits(unknown_stream_burst=5)
    async with joined("nerdbank", limits=limits) as (near, far):
        assert isinstance(far, polymux.NerdbankSession)
        opening = asyncio.create_task(near.open("x"))
        await far.accept()
        stream = await opening
        far.data_received(
            bytes.fromhex("94 02 63 01 c4 01 78") * 50
        )  # content for an unknown stream
        with pytest.raises(polymux.StreamAborted, match="limit unknown_stream_burst=5"):
            await stream.receive()
        await far.wait_closed()
    warnings = [line.message for line in caplog.records if line.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert (
        "limit unknown_stream_burst=5; raise it with Limits(unknown_stream_burst=...)"
        in warnings[0]
    )


@virtual
async def test_a_rule_that_enforces_a_limit_is_a_warning_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with joined("mplex", limits=Limits(max_frame_bytes=10)) as (near, _):
        near.data_received(bytes.fromhex("0000 020b") + bytes(11))
        await near.wait_closed()
    warnings = [line.message for line in caplog.records if line.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "mplex.frame-too-long" in warnings[0]
