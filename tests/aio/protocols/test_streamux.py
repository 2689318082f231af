"""Requests and replies over live Streamux sessions."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import AsyncIterator

import pytest
from tests.aio.session_helpers import settled
from tests.aio.streamux_helpers import SMALL, all_free, answering, echo, held, pair

import polymux
from polymux import Call, Session, StreamuxSession


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


@pytest.mark.parametrize("size", [1, 1023, 1024, 65_535, 65_536, 200_000])
async def test_a_request_is_answered(size: int) -> None:
    for protocol in ("streamux", SMALL):
        async with answering(protocol) as session:
            data = bytes(range(256)) * (size // 256) + bytes(size % 256)
            assert await session.request(data) == data
            await settled()
            assert not any(held(session).values())


async def test_connect_and_serve_speak_streamux_over_tcp() -> None:
    async def handle(session: Session) -> None:
        assert isinstance(session, StreamuxSession)
        await session.serve_calls(echo)

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=SMALL)
    async with server, polymux.connect(server.url, protocol=SMALL) as session:
        assert isinstance(session, StreamuxSession)
        async with asyncio.TaskGroup() as tasks:
            replies = [tasks.create_task(session.request(b"%d" % n * 999)) for n in range(50)]
        assert [reply.result() for reply in replies] == [b"%d" % n * 999 for n in range(50)]


async def test_request_and_reply_can_be_streamed() -> None:
    async with pair() as (near, far):

        async def upper() -> None:
            async for call in far.calls:
                async with call:
                    async for chunk in call:
                        await call.send(chunk.upper())

        task = asyncio.create_task(upper())
        assert await near.request(pieces(b"ab", b"", b"cd", b"e")) == b"ABCDE"
        got = []
        async with near.exchange() as exchange:
            await exchange.send(b"one")
            await exchange.send(b"two")
            await exchange.end()
            async for chunk in exchange:
                got.append(chunk)
        assert b"".join(got) == b"ONETWO"
        await near.close()
        await task


async def test_a_reply_may_come_in_chunks_or_be_empty() -> None:
    async with pair() as (near, far):
        first = asyncio.create_task(near.request(b"chunks"))
        second = asyncio.create_task(near.request(b"nothing"))
        third = asyncio.create_task(near.request(b"left"))
        call = await far.accept()
        await call.reply(pieces(b"x" * 70_000, b"y"))
        await (await far.accept()).reply()
        async with await far.accept():
            pass  # no answer is an empty answer
        assert await first == b"x" * 70_000 + b"y"
        assert await second == await third == b""
        await settled()
        assert not any(held(near).values())
        assert not any(held(far).values())


async def test_a_reply_before_the_request_is_complete_waits_for_it() -> None:
    async with pair() as (near, far):
        async with near.exchange() as exchange:
            await exchange.send(b"first")
            await exchange.send(b"rest")  # only now the first piece can be sent
            call = await far.accept()
            await call.reply(b"early")
            await settled()
            assert not exchange.buffers.received
            await exchange.end()
            assert await exchange.read() == b"early"
        assert not near.endpoint.counters.hits


async def test_both_sides_ask_with_splits_of_their_own() -> None:
    other = "streamux:length_bits=7,id_bits=7"
    async with pair(SMALL, other=other) as (near, far):
        answers = [asyncio.create_task(side.serve_calls(echo)) for side in (near, far)]
        assert near.protocol.dialect() == "10/4, 7/7"
        data = bytes(range(256)) * 20
        async with asyncio.TaskGroup() as tasks:
            replies = [tasks.create_task(s.request(data)) for s in [near, far] * 40]
        assert all(reply.result() == data for reply in replies)
        await settled()
        print(held(near), held(far))
        assert not any(held(near).values())
        assert not any(held(far).values())
        await near.close()
        await asyncio.gather(*answers)


async def test_an_empty_request_is_refused_and_takes_no_id() -> None:
    async with answering(SMALL) as session:
        with pytest.raises(polymux.LocalProtocolError, match="at least one byte"):
            await session.request(b"")
        with pytest.raises(polymux.Unsupported, match="no names"):
            await session.open("logs")
        await all_free(session, 16)


async def test_a_request_waits_for_a_free_id() -> None:
    async with pair(SMALL) as (near, far):
        waiting = [asyncio.create_task(near.request(b"%d" % n, timeout=9)) for n in range(17)]
        calls = [await far.accept() for _ in range(16)]
        await settled()
        assert len(near._id_waiters) == 1
        with pytest.raises(TimeoutError, match=r"within 0\.05 s.*timeout="):
            await near.request(b"late", timeout=0.05)
        await calls.pop(3).reply(b"first free")
        last = await far.accept()
        assert await last.read() == b"16"
        for call in [*calls, last]:
            await call.reply(b"done")
        replies = await asyncio.gather(*waiting)
        assert replies.count(b"first free") == 1
        await settled()
        await all_free(near, 16)


async def test_a_cancelled_task_cancels_its_request_and_the_work_on_it() -> None:
    began, stopped = asyncio.Event(), asyncio.Event()

    async def forever(call: Call) -> None:
        began.set()
        try:
            await asyncio.sleep(1000)
        finally:
            stopped.set()

    async with pair() as (near, far):
        task = asyncio.create_task(far.serve_calls(forever))
        request = asyncio.create_task(near.request(b"x"))
        await began.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        async with asyncio.timeout(30):
            await stopped.wait()
        await settled()
        assert not any(held(near).values())
        assert not any(held(far).values())
        await near.close()
        await task


async def test_a_request_may_be_cancelled_at_any_moment_and_leaves_nothing() -> None:
    async with pair(SMALL) as (near, far):
        task = asyncio.create_task(far.serve_calls(echo))
        finished = 0
        for steps in range(40):
            request = asyncio.create_task(near.request(bytes(3000)))
            await settled(steps)
            finished += request.done()
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                assert await request == bytes(3000)
            await settled(40)
            assert not any(held(near).values()), steps
            assert not any(held(far).values()), steps
        assert 0 < finished < 40
        assert not near.endpoint.counters.hits
        await near.close()
        await task


async def test_a_reply_that_crosses_the_cancel_is_dropped_and_the_id_comes_back() -> None:
    async with pair(SMALL) as (near, far):
        for _ in range(40):
            exchange = await near.open()
            await exchange.send(b"x")
            await exchange.end()
            call = await far.accept()
            await call.reply(b"crosses")
            await exchange.close()
        await settled()
        assert not any(held(near).values())
        assert not any(held(far).values())
        await all_free(near, 16)
        assert not near.endpoint.counters.hits
        assert not far.endpoint.counters.hits


async def test_many_cancels_at_once_are_no_fault_of_the_peer_that_acknowledges_them() -> None:
    async with pair() as (near, far):
        for _ in range(3):
            exchanges = [await near.open() for _ in range(1000)]
            for exchange in exchanges:
                await exchange.send(b"x")
                await exchange.end()
            await settled()
            for exchange in exchanges:
                await exchange.close()
            await settled()
        assert near.failure is None
        assert far.failure is None
        assert not any(held(near).values())
        assert not any(held(far).values())
        assert (
            near.endpoint.flood_guard.empty_frame_bucket.burst
            == near.endpoint.limits.empty_frame_burst
        )


async def test_a_handler_that_fails_leaves_the_call_unanswered_and_the_rest_unharmed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(call: Call) -> None:
        data = await call.read()
        if data == b"bad":
            raise ValueError("no such thing")
        await call.reply(data)

    async with pair() as (near, far):
        task = asyncio.create_task(far.serve_calls(fail))
        with pytest.raises(TimeoutError):
            await near.request(b"bad", timeout=1)
        assert await near.request(b"good") == b"good"
        await settled()
        assert not any(held(near).values())
        assert not any(held(far).values())
        await near.close()
        await task
    assert "the handler of call d0 failed" in caplog.text


async def test_closing_cancels_what_is_in_flight_and_tells_everybody() -> None:
    async with pair() as (near, far):
        request = asyncio.create_task(near.request(b"x", timeout=0))
        call = await far.accept()
        reading = asyncio.create_task(call.session.accept())
        async with asyncio.timeout(30):
            await near.close()
            await far.wait_closed()
        for waiting in (request, reading):
            with pytest.raises(polymux.SessionClosed):
                await waiting
        with pytest.raises((polymux.StreamAborted, polymux.SessionClosed)):
            await call.reply(b"y")
        with pytest.raises(polymux.SessionClosed), contextlib.suppress(TimeoutError):
            await near.request(b"z")


async def test_closing_does_not_wait_for_an_answer_that_was_never_ended() -> None:
    async with pair() as (near, far):
        request = asyncio.create_task(near.request(b"x"))
        await (await far.accept()).send(b"held back")
        async with asyncio.timeout(30):
            await far.close()
        with pytest.raises(polymux.SessionClosed):
            await request


async def test_a_request_that_waits_for_an_id_is_not_overtaken_by_later_ones() -> None:
    async with answering("streamux:length_bits=29,id_bits=1") as session:
        requests = 0

        async def ask_again_and_again() -> None:
            nonlocal requests
            while True:
                await session.request(b"x")
                requests += 1

        busy = [asyncio.create_task(ask_again_and_again()) for _ in range(2)]
        while requests < 10:
            await asyncio.sleep(0)
        before = requests
        assert await asyncio.wait_for(session.request(b"y"), 10) == b"y"
        assert requests - before < 10
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await all_free(session, 2)


async def test_callers_that_queue_behind_one_that_was_woken_take_the_ids_that_are_free() -> None:
    async with answering(SMALL) as session:
        exchanges = [await session.open() for _ in range(16)]
        first = asyncio.create_task(session.open())
        await settled()
        for exchange in exchanges:
            exchange.release()
        others = [asyncio.create_task(session.open()) for _ in range(15)]
        async with asyncio.timeout(10):
            opened = await asyncio.gather(first, *others)
        assert len({exchange.stream_id for exchange in opened}) == 16
        for exchange in opened:
            exchange.release()
        await all_free(session, 16)


async def test_the_limit_of_a_read_may_be_any_number() -> None:
    async with answering() as session:
        for limit in (1, (1 << 63) - 1, 1 << 63, 10**30):
            async with session.exchange() as exchange:
                await exchange.send_message(b"x")
                assert await exchange.read(limit) == b"x"


async def test_a_call_that_is_over_keeps_no_task() -> None:
    async with pair() as (near, far):
        tasks: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()

        async def answer(call: Call) -> None:
            call.task = asyncio.current_task()
            await echo(call)

        async def answer_all() -> None:
            async for call in far.calls:
                tasks.add(asyncio.create_task(answer(call)))
                del call

        answering_all = asyncio.create_task(answer_all())
        for _ in range(20):
            await near.request(b"x")
        await settled()
        gc.collect()
        assert not tasks
        answering_all.cancel()


async def test_calls_that_wait_for_room_are_answered_after_the_peer_has_ended() -> None:
    async def answer(call: Call) -> None:
        await call.read()
        await call.reply(bytes(12 << 20))  # more than fits between the two

    async def handle(session: Session) -> None:
        assert isinstance(session, StreamuxSession)
        await session.serve_calls(answer)

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="streamux") as server:
        address = f"tcp://127.0.0.1:{server.port}"
        async with polymux.streamux.connect(address) as session:
            transport = session.transport
            assert transport is not None
            transport.pause_reading()
            requests = []
            for _ in range(3):  # the first fills the buffers, the others find them full
                requests.append(asyncio.create_task(session.request(b"x")))
                await asyncio.sleep(0.2)
            transport.write_eof()
            await asyncio.sleep(0.2)
            transport.resume_reading()
            replies = await asyncio.wait_for(asyncio.gather(*requests), 20)
            assert list(map(len, replies)) == [12 << 20] * 3
