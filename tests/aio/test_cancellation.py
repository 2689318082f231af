"""Any call cancelled at any point leaves the session usable or closed, and loses nothing."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.cancellation_points import everywhere
from tests.aio.session_helpers import PROTOCOLS, channels, joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session
from polymux.aio.runtime import current_runtime
from polymux.core.send_scheduler import SESSION_SEND_BUFFER_BYTES
from polymux.live.factory import session_factory
from polymux.live.transports import memory
from polymux.live.transports.memory import join_in_memory

every = pytest.mark.parametrize("protocol", PROTOCOLS)


async def works(near: Session, far: Session) -> None:
    """Check the session: a new stream transfers bytes both ways and leaves nothing."""
    mine, theirs = await opened(near, far, "works")
    await mine.send(b"question")
    await mine.end()
    assert await theirs.receive_all() == b"question"
    await theirs.send(b"answer")
    await theirs.end()
    assert await mine.receive_all() == b"answer"
    await settled()


def idle(*sessions: Session) -> bool:
    """Return whether nothing is open, waiting, queued or pending."""
    return all(
        not s.streams
        and s.peer_stream_count == 0
        and len(s.accept_queue) == 0
        and not s.accept_queue._waiters
        and not s.send_waiters
        and s.endpoint.receive_queue.unread_bytes == 0
        and s.endpoint.scheduler.ready_bytes == 0
        and not s.endpoint.scheduler.control_queue
        and not s.endpoint.protocol.pending_replies
        for s in sessions
    )


@every
@virtual
async def test_a_cancelled_pipe_leaves_no_session(protocol: str) -> None:
    async for cut in everywhere():
        finished, sessions = await cut(polymux.pipe(protocol))
        for session in sessions if finished else ():
            session.abort()
            await session.wait_closed()


@every
@virtual
async def test_a_cancelled_open_leaves_no_stream(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            accepting = asyncio.create_task(far.accept())
            finished, stream = await cut(near.open("x"))
            await settled()
            accepting.cancel()
            if finished:
                stream.abort()
            elif accepting.done() and not accepting.cancelled():
                accepting.result().abort()  # the acceptance had crossed the withdrawal
            await settled()
            assert idle(near, far), cut
            await works(near, far)


@virtual
async def test_a_cancelled_open_withdraws_its_offer() -> None:
    async for cut in everywhere():
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            near.loop.call_later(3, near.abort, "enough")
            try:
                finished, _ = await cut(near.open("never accepted"))
            except polymux.SessionClosed:
                cut.finished = True
                continue
            assert not finished
            await settled()
            assert far.offers() == []
            if not near.closed.done():
                assert idle(near, far), cut
                await works(near, far)


@virtual
async def test_rate_limited_opens_can_be_cancelled() -> None:
    async for cut in everywhere():
        near = session_factory("mplex", 0, None, None, 2.0, runtime=current_runtime)()
        far = session_factory("mplex", 1, None, None, 0.0, runtime=current_runtime)()
        join_in_memory(near, far)
        (await near.open("first")).abort()
        finished, stream = await cut(near.open("second"))
        if finished:
            stream.abort()
        await settled()
        assert idle(near, far), cut
        await works(near, far)
        await near.close()
        await far.close()


@every
@virtual
async def test_a_cancelled_accept_loses_no_stream(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            opening = asyncio.create_task(near.open("kept"))
            finished, stream = await cut(far.accept())
            if not finished:
                stream = await far.accept()
            assert stream.name == "kept"
            stream.abort()
            (await opening).abort()
            await settled()
            await works(near, far)
            assert idle(near, far), cut


@virtual
async def test_a_wakeup_that_comes_too_late_goes_to_the_next_waiter() -> None:
    async for cut in everywhere():
        async with joined("mplex") as (near, far):
            opening = asyncio.create_task(near.open("x"))
            first = asyncio.create_task(cut(far.accept()))
            await asyncio.sleep(0)
            second = asyncio.create_task(far.accept())
            await opening
            finished, stream = await first
            if finished:
                (await near.open("y")).abort()
                second.cancel()
            else:
                stream = await second
            assert stream.name == "x", cut


@every
@virtual
async def test_a_cancelled_step_over_incoming_loses_no_stream(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            opening = asyncio.create_task(near.open("kept"))
            incoming = far.incoming

            async def step(incoming: object = incoming) -> object:
                return await anext(incoming)  # type: ignore[call-overload]

            finished, stream = await cut(step())
            if not finished:
                stream = await anext(incoming)
            assert stream.name == "kept"
            stream.abort()
            (await opening).abort()


@every
@virtual
async def test_a_cancelled_send_has_queued_nothing(protocol: str) -> None:
    async for cut in everywhere():
        limits = polymux.Limits(receive_window=100_000)
        async with joined(protocol, limits=limits) as (near, far):
            mine, theirs = await opened(near, far)
            assert far.transport is not None
            far.transport.pause_reading()
            for _ in range(20):
                mine.send_nowait(bytes(50_000))  # more than there is room or credit for
            asyncio.get_running_loop().call_later(1, far.transport.resume_reading)

            async def slowly(theirs: polymux.Stream = theirs) -> int:
                await asyncio.sleep(2)
                return len(await theirs.receive_all())

            reading = asyncio.create_task(slowly())
            finished, _ = await cut(mine.send(b"x" * 77))
            await mine.end()
            assert await reading == 1_000_000 + (77 if finished else 0), cut
            await theirs.end()
            await settled()
            assert idle(near, far), cut
            await works(near, far)


@virtual
async def test_room_that_was_meant_for_a_cancelled_sender_goes_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        memory, "PIPE_HIGH_WATER_BYTES", 10_000_000
    )  # a transport that accepts everything at once
    async for cut in everywhere():
        async with joined("mplex") as (near, _):
            streams = [await near.open(name) for name in "abcd"]
            await settled()
            near.pause_writing()
            streams[0].send_nowait(bytes(10_000))  # these two are sent later
            streams[1].send_nowait(bytes(SESSION_SEND_BUFFER_BYTES - 5_000))
            sending = asyncio.create_task(
                cut(streams[2].send(bytes(2 * SESSION_SEND_BUFFER_BYTES)))
            )  # wants it all
            await settled()
            waiting = asyncio.create_task(streams[3].send(b"x"))
            await settled()
            assert not waiting.done()
            near.resume_writing()
            await sending
            async with asyncio.timeout(5):
                await waiting


@every
@virtual
async def test_a_cancelled_drain_changes_nothing(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol, limits=polymux.Limits(receive_window=100_000)) as (near, far):
            mine, theirs = await opened(near, far)
            for _ in range(20):
                mine.send_nowait(bytes(50_000))
            reading = asyncio.create_task(theirs.receive_all())
            await cut(mine.drain())
            await mine.end()
            assert len(await reading) == 1_000_000, cut


@every
@pytest.mark.parametrize("verb", ["receive", "receive_parts"])
@virtual
async def test_a_cancelled_receive_has_taken_nothing(protocol: str, verb: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            mine, theirs = await opened(near, far)
            asyncio.get_running_loop().call_later(0.5, mine.send_nowait, b"kept")
            finished, data = await cut(getattr(theirs, verb)())
            got = b"".join(data) if verb == "receive_parts" and finished else data
            if not finished:
                got = await theirs.receive()
            assert got == b"kept"
            mine.abort()


@every
@virtual
async def test_a_cancelled_receive_all_leaves_the_stream_readable(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            mine, theirs = await opened(near, far)

            async def send(mine: polymux.Stream = mine) -> None:
                await mine.send(b"one")
                await asyncio.sleep(0.5)
                await mine.send(b"two")
                await asyncio.sleep(0.5)
                await mine.end()

            sending = asyncio.create_task(send())
            finished, data = await cut(theirs.receive_all())
            rest = b"" if finished else await theirs.receive_all()
            assert (data == b"onetwo") if finished else b"onetwo".endswith(rest), cut
            await sending


@every
@pytest.mark.parametrize("verb", ["end", "close"])
@virtual
async def test_a_cancelled_end_or_close_of_a_stream_is_done_or_not_started(
    protocol: str, verb: str
) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            mine, theirs = await opened(near, far)
            await mine.send(b"x")
            await cut(getattr(mine, verb)())
            await mine.close()
            assert await theirs.receive_all() == b"x"
            await theirs.close()
            await settled()
            assert idle(near, far), cut
            await works(near, far)


@every
@virtual
async def test_a_cancelled_close_of_a_session_closes_it_anyway(protocol: str) -> None:
    async for cut in everywhere():
        async with joined(protocol) as (near, far):
            mine, theirs = await opened(near, far)
            await mine.send(bytes(300_000))
            reading = asyncio.create_task(theirs.receive_all())
            await cut(near.close())
            if cut.way == "after step" and cut.number == 0:
                await near.close()  # it had not started
            async with asyncio.timeout(1):
                await near.wait_closed()
                await far.wait_closed()
            with pytest.raises(polymux.SessionClosed):
                await near.open("x")
            with pytest.raises((polymux.SessionClosed, polymux.StreamAborted)):
                await mine.send(b"x")
            await asyncio.wait([reading])
            reading.exception()


@virtual
async def test_a_cancelled_wait_for_the_end_does_not_end_anything() -> None:
    async for cut in everywhere():
        async with joined("mplex") as (near, far):
            begun = near.loop.time()
            near.loop.call_later(1, far.abort, "enough")
            finished, _ = await cut(near.wait_closed())
            if not finished and near.loop.time() < begun + 0.9:
                await works(near, far)


@virtual
async def test_a_cancelled_acceptor_is_skipped_and_the_offer_stays_first() -> None:
    async for cut in everywhere():
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            first = await near.offer("name")
            await near.offer("name")
            finished, stream = await cut(far.accept("name"))
            if not finished:
                stream = await far.accept("name")
            assert stream.stream_id == first.stream_id, cut
            await settled()
            assert len(far.offers()) == 1


@virtual
async def test_a_cancelled_wait_for_acceptance_leaves_the_offer_standing() -> None:
    async for cut in everywhere():
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            stream = await near.offer("name")

            async def accept(far: polymux.NerdbankSession = far) -> None:
                await asyncio.sleep(0.5)
                await far.accept("name")

            accepting = asyncio.create_task(accept())
            await cut(near.accepted(stream))
            await accepting
            await near.accepted(stream)
            assert stream.state.accepted


@virtual
async def test_cancelled_offers_and_acceptances_by_id_are_done_or_not_started() -> None:
    async for cut in everywhere():
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            finished, stream = await cut(near.offer(""))
            await settled()
            assert len(far.offers()) == (1 if finished else 0), cut
            if finished:
                stream.abort()
                await settled()
            assert idle(near, far)
        async with joined("nerdbank") as sessions:
            near, far = channels(*sessions)
            stream = await near.offer("")
            await settled()
            finished, _ = await cut(far.accept_id(stream.stream_id))
            if not finished:
                await far.accept_id(stream.stream_id)
            await settled()
            assert stream.state.accepted
