"""Senders that wait for room are woken by everything that makes room."""

import asyncio

import pytest
from tests.aio.session_helpers import joined

import polymux
from polymux.core.send_scheduler import SESSION_SEND_BUFFER_BYTES, STREAM_SEND_BUFFER_BYTES
from polymux.core.streams import FIRST_QUEUE_GRANT


async def test_a_sender_does_not_wait_for_queued_data_that_has_no_credit() -> None:
    near, far = await polymux.nerdbank.pipe(version=3, window=65536)
    streams = []
    for name in ("full", "free"):
        opening = asyncio.create_task(near.open(name))
        await far.accept(name)
        streams.append(await opening)
    full, free = streams
    await full.send(bytes(65536))  # all its credit
    await asyncio.sleep(0)
    full.send_nowait(bytes(1 << 20))  # fills the session's buffer until a flush finds no credit
    assert free.send_would_block()
    await asyncio.wait_for(free.drain(), 10)
    full.send_nowait(bytes(1 << 20))
    assert free.send_would_block()
    called = asyncio.Event()
    near.socket_writer.flush_for_sender()
    free.call_when_writable(called.set)
    await asyncio.wait_for(called.wait(), 10)
    near.abort()
    await near.wait_closed()
    await far.wait_closed()


@pytest.mark.parametrize("by_callback", [False, True])
async def test_room_that_a_woken_caller_does_not_use_wakes_the_next(by_callback: bool) -> None:
    async with joined("mplex") as (near, far):
        streams = [await near.open(str(n)) for n in range(100)]
        for stream in streams:
            assert (await far.accept()).name == stream.name
        streams[0].send_nowait(bytes(1 << 20))
        assert all(stream.send_would_block() for stream in streams)
        async with asyncio.timeout(10), asyncio.TaskGroup() as waiting:
            for stream in streams:
                if by_callback:
                    called = asyncio.Event()
                    stream.call_when_writable(called.set)
                    waiting.create_task(called.wait())
                else:
                    waiting.create_task(stream.drain())


async def test_a_stream_that_owes_more_than_a_grant_is_granted_the_next_one_too() -> None:
    async with joined("mplex") as (near, _):
        owing, full, waiting = [await near.open(name) for name in ("owing", "full", "waiting")]
        near.pause_writing()
        owing.send_nowait(bytes(STREAM_SEND_BUFFER_BYTES - FIRST_QUEUE_GRANT - 1))
        full.send_nowait(bytes(SESSION_SEND_BUFFER_BYTES))
        tasks = [asyncio.create_task(waiting.drain())]  # from here on room is granted
        await asyncio.sleep(0)
        owing.send_nowait(bytes(FIRST_QUEUE_GRANT))
        tasks.append(asyncio.create_task(owing.drain()))
        await asyncio.sleep(0)
        owing.send_nowait(bytes(STREAM_SEND_BUFFER_BYTES))  # as much as the next grant
        tasks[0].cancel()
        await asyncio.wait(tasks[:1])
        full.abort()
        near.send_waiters.wake()
        assert owing.send_would_block()
        near.resume_writing()
        await asyncio.wait_for(tasks[1], 10)


async def test_a_send_on_an_ended_stream_raises_though_there_is_no_room() -> None:
    async with joined("mplex") as (near, _):
        ended, full = await near.open("ended"), await near.open("full")
        await ended.end()
        near.flush()
        near.pause_writing()
        full.send_nowait(bytes(SESSION_SEND_BUFFER_BYTES))
        with pytest.raises(polymux.StreamEnded):
            await asyncio.wait_for(ended.send(b"late"), 10)
        near.resume_writing()


async def without_credit(protocol: str) -> tuple[list[polymux.Session], polymux.Stream]:
    """A session pair, and a stream that waits for credit to send."""
    near, far = await polymux.pipe(protocol)
    if isinstance(near, polymux.MinmuxSession) and isinstance(far, polymux.MinmuxSession):
        far.receiver(1, window=2)
        stream: polymux.Stream = near.sender(1)
        await stream.send(b"ab")
        return [near, far], stream
    opening = asyncio.create_task(near.open() if protocol == "yamux" else near.open("x"))
    accepting = asyncio.create_task(far.accept())
    stream = await opening
    await accepting
    while True:
        try:
            await asyncio.wait_for(stream.send(bytes(65536)), 0.05)
        except TimeoutError:
            return [near, far], stream


@pytest.mark.parametrize("protocol", ["nerdbank", "yamux", "omnistreams", "minmux"])
async def test_a_sender_that_waits_on_a_stream_that_is_ended_raises_at_once(protocol: str) -> None:
    sessions, stream = await without_credit(protocol)
    sending = asyncio.create_task(stream.send(b"z"))
    await asyncio.sleep(0.01)
    assert not sending.done()
    await stream.end()
    for late in (sending, stream.send(b"z")):
        with pytest.raises(polymux.StreamEnded):
            await asyncio.wait_for(late, 10)
    await asyncio.wait_for(stream.drain(), 10)
    for session in sessions:
        session.abort()
        await session.wait_closed()
