"""Data that will not be read is discarded, and its buffer space and stream slots are freed."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from tests.aio.session_helpers import joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, OmnistreamsSession, StreamuxSession, Timeouts
from polymux.core.frames import Frame
from polymux.live.session.read_backpressure import unread_bytes

CONTENT = 2  # Nerdbank's code


async def request(session: StreamuxSession, data: bytes) -> object:
    try:
        return await session.request(data, timeout=2)
    except TimeoutError:
        return None


@virtual
async def test_calls_beyond_the_limit_leave_nothing_unread() -> None:
    limits = Limits(max_streams=8, session_buffer_bytes=1 << 20)
    async with joined("streamux", limits=limits, timeouts=Timeouts(slow_reader=0.5)) as (near, far):
        assert isinstance(near, StreamuxSession)
        assert isinstance(far, StreamuxSession)
        go_on = asyncio.Event()

        async def work(call: polymux.Call) -> None:
            await call.read()
            await go_on.wait()
            await call.reply(b"ok")

        working = asyncio.create_task(far.serve_calls(work))
        asked = [asyncio.create_task(request(near, bytes(30_000))) for _ in range(60)]
        await asyncio.sleep(1)
        go_on.set()
        answers = await asyncio.gather(*asked)
        assert answers.count(b"ok") >= 8
        assert answers.count(None) >= 8  # there was no room for them in time
        assert answers.count(b"ok") + answers.count(None) == 60
        assert (far.open_streams, far.endpoint.receive_queue.unread_bytes) == (0, 0)
        assert await near.request(b"again", timeout=2) == b"ok"
        await near.close()
        await working


@virtual
async def test_a_call_that_was_answered_and_then_aborted_is_forgotten() -> None:
    async with joined("streamux", limits=Limits(max_streams=5)) as (near, far):
        assert isinstance(near, StreamuxSession)
        assert isinstance(far, StreamuxSession)

        async def work(call: polymux.Call) -> None:
            await call.send(b"no")
            await call.end()
            raise LookupError("after the answer, with the request unread")

        working = asyncio.create_task(far.serve_calls(work))
        for _ in range(12):
            assert await near.request(bytes(1000), timeout=2) == b"no"
            await settled()
        assert (far.open_streams, far.endpoint.receive_queue.unread_bytes) == (0, 0)
        await near.close()
        await working


@virtual
async def test_a_call_waits_for_the_next_to_answer_if_the_first_was_cancelled() -> None:
    async with joined("streamux") as (near, far):
        assert isinstance(near, StreamuxSession)
        assert isinstance(far, StreamuxSession)

        async def slow(call: polymux.Call) -> None:
            await call.read()
            await asyncio.sleep(1)
            await call.reply(b"slow")

        working = asyncio.create_task(far.serve_calls(slow, max_concurrent=1))
        asked = [asyncio.create_task(request(near, b"%d" % number)) for number in range(3)]
        await settled()
        working.cancel()
        await asyncio.wait([working])
        assert len(far.accept_queue) == 2
        working = asyncio.create_task(far.serve_calls(slow))
        assert await asyncio.gather(*asked) == [None, b"slow", b"slow"]
        await near.close()
        await working


@virtual
async def test_a_withdrawn_offer_with_content_leaves_nothing() -> None:
    """Nobody sends on an offer; a peer that does so, and then withdraws it, costs nothing."""
    async with joined("nerdbank:version=1") as (near, far):
        assert isinstance(near, polymux.NerdbankSession)
        for _ in range(3):
            offer = await near.offer("nobody")
            near.flush()
            near.endpoint.send_frame(Frame(CONTENT, offer.state.key, bytes(1000)), force=True)
            near.flush()
            await settled()
            assert far.endpoint.receive_queue.unread_bytes == 1000
            offer.abort()
            await settled()
            assert (
                far.open_streams,
                far.peer_stream_count,
                far.endpoint.receive_queue.unread_bytes,
            ) == (0, 0, 0)


@virtual
async def test_content_for_a_closed_stream_is_shed_also_behind_an_empty_frame() -> None:
    async with joined("mplex") as (near, far):
        assert near.transport is not None
        for _ in range(3):
            mine = await near.open("x")
            await mine.send(b"hello")
            theirs = await far.accept()
            await theirs.close()
            await settled()
            message, close = mine.stream_id << 3 | 2, mine.stream_id << 3 | 4
            near.transport.write(bytes([message, 0, message, 3, 1, 2, 3, close, 0]))
            await settled()
            assert (far.open_streams, far.peer_stream_count, unread_bytes(theirs)) == (0, 0, 0)


@virtual
async def test_many_small_control_messages_are_not_counted_over_and_over() -> None:
    async with joined("omnistreams") as (near, far):
        assert isinstance(near, OmnistreamsSession)
        assert isinstance(far, OmnistreamsSession)
        looks = 0

        class Watched(list[Any]):
            def __iter__(self) -> Any:
                nonlocal looks
                looks += 1
                return super().__iter__()

        near.endpoint.scheduler.control_queue = Watched()
        for number in range(500):
            await near.control(b"%d" % number)
        assert looks == 0
        assert [await far.receive_control() for _ in range(500)] == [
            b"%d" % number for number in range(500)
        ]


@virtual
async def test_an_aborted_stream_is_not_usable_in_either_direction() -> None:
    async with joined("omnistreams") as (near, _):
        sender = await near.open("x")
        assert sender.usable
        sender.abort()
        assert not sender.usable


@pytest.mark.parametrize("protocol", ["mplex", "streamux"])
@virtual
async def test_sessions_without_references_log_nothing(protocol: str) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: complaints.append(told))
    near, far = await polymux.pipe(protocol)
    del near, far
    gc.collect()
    await asyncio.sleep(30)
    assert not complaints
