"""`serve_streams`: concurrent handlers, within bounds, and no stream forgotten."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.aio.cancellation_points import everywhere
from tests.aio.session_helpers import PROTOCOLS, exchange, joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session, Stream, StreamAborted
from polymux.live.session.wakeups import WAITING

every = pytest.mark.parametrize("protocol", PROTOCOLS)


async def echo(stream: Stream) -> None:
    async for chunk in stream:
        await stream.send(chunk)


class Bounded:
    """A handler that waits for the test, and counts how many run at the same time."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.at_it = self.most = 0
        self.go_on = asyncio.Event()

    async def __call__(self, stream: Stream) -> None:
        self.names.append(stream.name)
        self.at_it += 1
        self.most = max(self.most, self.at_it)
        await self.go_on.wait()
        self.at_it -= 1


@every
@virtual
async def test_streams_are_handled_concurrently(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        held = await near.open("held")
        await held.send(b"not yet")
        for number in range(20):
            assert await exchange(near, f"n{number}", b"x" * 1000) == b"x" * 1000
        await held.end()
        assert await held.receive_all() == b"not yet"
        await near.close()
        await working
        assert far.failure is None
        assert not far.streams


@every
@virtual
async def test_at_most_max_concurrent_handlers_run_and_every_stream_is_handled(
    protocol: str,
) -> None:
    async with joined(protocol) as (near, far):
        handler = Bounded()
        working = asyncio.create_task(far.serve_streams(handler, max_concurrent=3))
        names = [f"n{number}" for number in range(10)]
        opening = [asyncio.create_task(near.open(name)) for name in names]
        await settled()
        assert (len(handler.names), len(far.accept_queue)) == (3, 7)
        handler.go_on.set()
        for task in opening:
            assert await (await task).receive_all() == b""
        assert handler.names == names
        assert handler.most <= 3
        await near.close()
        await working


@every
@virtual
async def test_streams_opened_before_are_handled_too(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        opening = [asyncio.create_task(near.open(f"n{number}")) for number in range(3)]
        await settled()
        assert len(far.accept_queue) == 3
        working = asyncio.create_task(far.serve_streams(echo))
        for task in opening:
            stream = await task
            await stream.send(b"early")
            await stream.end()
            assert await stream.receive_all() == b"early"
        await near.close()
        await working


@every
@virtual
async def test_a_failing_handler_aborts_its_stream_and_no_other(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(stream: Stream) -> None:
        if stream.name == "bad":
            raise ValueError("of the handler")
        await echo(stream)

    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(handler))
        with caplog.at_level(logging.ERROR, "polymux.aio"):
            bad = await near.open("bad")
            with pytest.raises(polymux.PolymuxError):
                await bad.receive()
        assert "of the handler" in caplog.text
        assert await exchange(near, "good", b"data") == b"data"
        await near.close()
        await working


@virtual
async def test_an_error_while_aborting_is_logged_like_a_handlers_own(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def handler(stream: Stream) -> None:
        raise ValueError("of the handler")

    def abort(stream: Stream) -> None:
        raise OSError("of giving up")

    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(handler))
        with caplog.at_level(logging.ERROR, "polymux.aio"), monkeypatch.context() as patched:
            patched.setattr(Stream, "abort", abort)
            await near.open("bad")
            await settled()
        assert "of the handler" in caplog.text
        assert "of giving up" in caplog.text
        await near.close()
        await working


@every
@virtual
async def test_a_stream_aborted_by_the_peer_at_once_is_no_error(
    protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        opening = asyncio.create_task(near.open("gone"))
        await asyncio.sleep(0)
        if protocol == "mplex":
            (await opening).abort()
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        assert await exchange(near, "next", b"data") == b"data"
        await near.close()
        await working
        assert not caplog.records


@every
@virtual
async def test_serve_streams_raises_if_the_session_fails(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        stream = await near.open("cut")
        await settled()
        far.abort("for a reason")
        with pytest.raises(polymux.SessionClosed, match="for a reason"):
            await working
        with pytest.raises(polymux.PolymuxError):
            await stream.receive()


@every
@virtual
async def test_serve_streams_can_be_cancelled_anywhere_and_started_again(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            first = asyncio.create_task(near.open("first"))
            finished, _ = await cut(ending_after(far, near))
            await settled()
            assert far.stream_task_runner is None, cut
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            if not finished and far.close_reason is None:
                working = asyncio.create_task(far.serve_streams(echo))
                assert await exchange(near, "second", b"data") == b"data"
                await near.close()
                await working


@every
@virtual
async def test_queued_streams_are_handled_though_the_peer_is_gone(protocol: str) -> None:
    begun: list[str] = []
    done: list[str] = []

    async def handler(stream: Stream) -> None:
        begun.append(stream.name)
        await asyncio.sleep(1)
        done.append(stream.name)

    async with joined(protocol) as (near, far):
        taken = [asyncio.create_task(near.open(f"n{number}")) for number in range(10)]
        await settled()
        working = asyncio.create_task(far.serve_streams(handler, max_concurrent=2))
        await settled()
        await near.close()
        await working
        await asyncio.gather(*taken, return_exceptions=True)
        # A channel that was not accepted is withdrawn when its peer goes: there is no handler.
        assert begun == [f"n{number}" for number in range(10 if protocol == "mplex" else 2)]
        assert sorted(done) == begun  # two run at the same time: either may finish first


@virtual
async def test_a_stream_whose_handler_was_cancelled_before_it_started_stays_queued() -> None:
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        await settled()
        assert far.stream_task_runner is not None
        start = far.stream_task_runner.start

        def start_and_cancel(stream: Stream) -> bool:
            working.cancel()
            return start(stream)

        far.stream_task_runner.start = start_and_cancel  # type: ignore[method-assign]
        # Without idle tasks, which have made their first step before they can be cancelled.
        far.stream_task_runner._dismiss_idle_tasks()
        asking = asyncio.create_task(exchange(near, "early", b"data"))
        await asyncio.wait([working])
        assert working.cancelled()
        assert len(far.accept_queue) == 1
        working = asyncio.create_task(far.serve_streams(echo))
        assert await asking == b"data"
        await near.close()
        await working


@virtual
async def test_a_handler_cancelled_by_the_application_before_it_started_aborts_its_stream() -> None:
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        stream = await near.open("early")
        while far.stream_task_runner is None or not far.stream_task_runner._tasks:
            await asyncio.sleep(0)
        [task] = far.stream_task_runner._tasks.values()
        task.cancel()
        await near.close()
        await working
        with pytest.raises(polymux.PolymuxError):
            await stream.receive()


@virtual
async def test_streamux_serves_calls_and_minmux_says_what_to_use() -> None:
    async def handler(call: polymux.Call) -> None:
        await call.reply(await call.read())

    async with joined("streamux") as (near, far):
        assert isinstance(near, polymux.StreamuxSession)
        working = asyncio.create_task(far.serve_streams(handler))
        assert await near.request(b"x") == b"x"
        await near.close()
        await working
    async with joined("minmux") as (_, far):
        with pytest.raises(polymux.Unsupported, match=r"session\.receiver"):
            await far.serve_streams(echo)


async def ending_after(far: Session, near: Session) -> None:
    """Serve the streams of a session that its peer closes in a moment."""
    assert near.transport is not None
    asyncio.get_running_loop().call_later(1.0, near.transport.close)
    await far.serve_streams(echo)


@virtual
async def test_only_one_serve_streams_may_run_on_a_session() -> None:
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another serve_streams"):
            await far.serve_streams(echo)
        await near.close()
        await working


@virtual
async def test_receivers_of_omnistreams_get_their_window() -> None:
    got: list[list[bytes]] = []

    async def handler(receiver: polymux.MessageReceiver) -> None:
        got.append([message async for message in receiver])

    async with joined("omnistreams") as (near, far):
        working = asyncio.create_task(far.serve_streams(handler))
        sender = await near.open("messages")
        for number in range(100):
            await sender.send(b"%d" % number)
        await sender.end()
        await settled(200)
        assert got == [[b"%d" % number for number in range(100)]]
        await near.close()
        await working


@pytest.mark.parametrize("stands_by", [True, False])
@virtual
async def test_a_handler_cancelled_before_it_started_frees_its_stream_and_its_slot(
    stands_by: bool,
) -> None:
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo, max_concurrent=1))
        await settled()
        assert far.stream_task_runner is not None
        runner, start = far.stream_task_runner, far.stream_task_runner.start

        def start_and_cancel(stream: Stream) -> bool:
            begun = start(stream)
            runner._tasks[stream].cancel()
            return begun

        runner.start = start_and_cancel  # type: ignore[method-assign]
        if not stands_by:
            runner._dismiss_idle_tasks()
        given_up = await near.open("given up")
        await given_up.send(b"1")
        with pytest.raises(StreamAborted):
            await given_up.receive()
        runner.start = start  # type: ignore[method-assign]
        assert await exchange(near, "next", b"data") == b"data"
        await near.close()
        await working


@virtual
async def test_a_cancelled_idle_task_is_replaced_with_the_next_stream() -> None:
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        await settled()
        assert far.stream_task_runner is not None
        (spare,) = far.stream_task_runner._idle_tasks
        assert spare.task is not None
        spare.task.cancel()
        assert await exchange(near, "one", b"data") == b"data"
        await settled()
        assert spare not in far.stream_task_runner._idle_tasks
        assert all(runner.waiter.state == WAITING for runner in far.stream_task_runner._idle_tasks)
        assert far.stream_task_runner._idle_tasks
        await near.close()
        await working


@virtual
async def test_idle_tasks_double_when_they_run_out_and_none_is_left() -> None:
    before = asyncio.all_tasks()
    async with joined("mplex") as (near, far):
        working = asyncio.create_task(far.serve_streams(echo))
        await settled()
        assert far.stream_task_runner is not None
        stood_by = []
        for _ in range(20):
            stood_by.append(len(far.stream_task_runner._idle_tasks))
            assert await exchange(near, "one", b"data") == b"data"
            await settled()
        assert stood_by[:5] == [1, 2, 1, 4, 3]
        assert max(stood_by) == 8
        await near.close()
        await working
    await settled()
    assert asyncio.all_tasks() == before
