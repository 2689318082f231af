"""Timeouts, keep-alives and slow readers in Streamux, on a simulated clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.aio.session_helpers import settled
from tests.aio.streamux_helpers import SMALL, echo, held, pair
from tests.aio.virtual_clock import virtual

import polymux


@virtual
async def test_a_request_times_out_as_announced_and_a_late_reply_is_dropped() -> None:
    async with pair("streamux:timeout=1.5") as (near, far):
        begun = near.loop.time()
        request = asyncio.create_task(near.request(b"slow"))
        call = await far.accept()
        with pytest.raises(TimeoutError, match=r"no reply within 1\.5 s.*was cancelled"):
            await request
        assert 1.5 <= near.loop.time() - begun < 1.6
        await settled()
        with pytest.raises(polymux.StreamAborted, match="cancelled by the peer"):
            await call.reply(b"too late")
        assert not any(held(near).values())
        assert not any(held(far).values())


@virtual
async def test_work_the_peer_no_longer_waits_for_is_dropped_only_on_demand() -> None:
    async with pair("streamux:timeout=2") as (near, far):
        for preempts in (False, True):
            far.drops_expired_calls = preempts
            request = asyncio.create_task(near.request(b"x", timeout=10))
            call = await far.accept()
            await asyncio.sleep(3)
            if preempts:
                with pytest.raises(polymux.StreamAborted, match="within the 2 s the peer waits"):
                    await call.reply(b"late")
                with pytest.raises(TimeoutError):
                    await request
            else:
                await call.reply(b"late")
                assert await request == b"late"
            await settled()
        assert not any(held(near).values())
        assert not any(held(far).values())


@virtual
async def test_a_reply_that_has_begun_is_never_preempted() -> None:
    async with pair("streamux:timeout=2") as (near, far):
        far.drops_expired_calls = True
        request = asyncio.create_task(near.request(b"x", timeout=10))
        call = await far.accept()
        await call.send(b"begun, ")
        await asyncio.sleep(3)
        await call.reply(b"done")
        assert await request == b"begun, done"


@virtual
async def test_an_idle_side_sends_keep_alives_as_the_other_announced() -> None:
    async with pair("streamux:timeout=6", other="streamux:timeout=0") as (near, far):
        assert (near.keep_alive, far.keep_alive) == (30.0, 2.0)
        await asyncio.sleep(61)
        assert (near._keepalive.sent_count, far._keepalive.sent_count) == (2, 30)
        assert near.failure is None
        assert far.failure is None
        near.keep_alive = 0
        await asyncio.sleep(61)
        assert near._keepalive.sent_count == 2
        with pytest.raises(polymux.LocalProtocolError, match="0 or more seconds"):
            near.keep_alive = -1


@virtual
async def test_a_side_that_sends_needs_no_keep_alive() -> None:
    async with pair("streamux:timeout=6") as (near, far):
        task = asyncio.create_task(far.serve_calls(echo))
        for _ in range(20):
            await near.request(b"x")
            await asyncio.sleep(1)
        assert (near._keepalive.sent_count, far._keepalive.sent_count) == (0, 0)
        await near.close()
        await task


@virtual
async def test_a_silent_peer_is_noticed() -> None:
    async with pair() as (near, far):
        far.keep_alive = 0
        waiting = asyncio.create_task(near.request(b"x", timeout=0))
        begun = near.loop.time()
        with pytest.raises(polymux.SessionClosed, match=r"sent nothing for 30 s.*session\.silence"):
            await waiting
        assert 30 <= near.loop.time() - begun < 31


@virtual
async def test_a_process_that_was_suspended_itself_does_not_blame_the_peer() -> None:
    async with pair() as (near, far):
        far.keep_alive = 0
        near._keepalive.received_at -= 1000  # as it looks after a long stop of this process
        near._keepalive.update()
        await asyncio.sleep(0.1)
        far.keep_alive = 0.1
        await asyncio.sleep(100)
        assert near.failure is None


@virtual
async def test_a_peer_without_a_free_id_may_be_silent_and_silence_can_be_allowed() -> None:
    async with pair(SMALL) as (near, far):
        near.silence = 8
        requests = [asyncio.create_task(far.request(b"x", timeout=0)) for _ in range(16)]
        calls = [await near.accept() for _ in range(16)]
        await asyncio.sleep(100)
        assert near.failure is None
        for call in calls:
            await call.reply(b"y")
        assert await asyncio.gather(*requests) == [b"y"] * 16
        far.keep_alive = 0
        near.silence = 0
        await asyncio.sleep(100)
        assert near.failure is None


@virtual
async def test_an_unread_call_is_dropped_after_a_bounded_pause() -> None:
    limits = polymux.Limits(session_buffer_bytes=200_000)
    async with pair(limits=limits) as (near, far):
        big = asyncio.create_task(near.request(bytes(1_000_000), timeout=60))
        hog = await far.accept()
        task = asyncio.create_task(far.serve_calls(echo))
        assert await near.request(b"still served", timeout=60) == b"still served"
        assert far.read_backpressure.pause_count == 1
        with pytest.raises(polymux.StreamAborted, match="limit session_buffer_bytes=200000"):
            await hog.read()
        assert await big == b""
        await near.close()
        await task


@virtual
async def test_a_request_whose_data_never_comes_is_bounded_too() -> None:
    async def nothing() -> AsyncIterator[bytes]:
        yield b"a beginning"
        await asyncio.Event().wait()

    async with pair() as (near, _far):
        with pytest.raises(TimeoutError, match=r"no reply within 0\.05 s"):
            await near.request(nothing(), timeout=0.05)
        await settled()
        assert held(near)["exchanges"] == held(near)["reserved"] == 0


@virtual
async def test_waiting_for_a_free_id_counts_against_the_time() -> None:
    async with pair(SMALL) as (near, _far):
        taken = [asyncio.create_task(near.request(b"x", timeout=5)) for _ in range(16)]
        await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError, match=r"no reply within 0\.05 s"):
            await near.request(b"y", timeout=0.05)
        for task in taken:
            task.cancel()
        await asyncio.gather(*taken, return_exceptions=True)


@virtual
async def test_a_request_that_cannot_be_sent_in_time_is_bounded_too() -> None:
    async with pair() as (near, _far):
        near.pause_writing()
        with pytest.raises(TimeoutError, match=r"no reply within 0\.05 s"):
            await near.request(bytes(1_000_000), timeout=0.05)
        near.resume_writing()
