"""A reader task is resumed as soon as the received chunk has been processed."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from tests.aio.session_helpers import joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session, Stream
from polymux.live.session.wakeups import IDLE, WAITING, WOKEN, Waiter

OPENING = b"\x28\x01s\x2c\x00"  # mplex: stream 5 is opened under the name s, and ended at once

number = contextvars.ContextVar("number", default=0)


async def outside_of_tasks(session: Session, data: bytes) -> None:
    """Deliver data as a socket does: in a loop callback, outside of any task."""
    done = asyncio.Event()

    def deliver() -> None:
        session.data_received(data)
        done.set()

    asyncio.get_running_loop().call_soon(deliver)
    await done.wait()


def content(stream: Stream, data: bytes) -> bytes:
    """An mplex message frame of the side that opened the stream."""
    assert stream.stream_id < 16
    return bytes([stream.stream_id << 3 | 2, len(data)]) + data


async def waiting(stream: Stream) -> asyncio.Task[bytes]:
    """A task that waits to receive on the stream."""
    task = asyncio.create_task(stream.receive())
    await settled()
    assert stream.read_waiter is not None
    assert stream.read_waiter.state != IDLE
    return task


@virtual
async def test_a_reader_is_resumed_before_the_next_loop_iteration() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        went_on: list[bytes] = []

        async def read() -> None:
            went_on.append(await theirs.receive())

        reading = asyncio.create_task(read())
        await settled()
        seen: list[list[bytes]] = []

        def deliver() -> None:
            far.data_received(content(theirs, b"hi"))
            seen.append(list(went_on))

        asyncio.get_running_loop().call_soon(deliver)
        await reading
        assert seen == [[b"hi"]]
        await mine.close()


@virtual
async def test_data_received_inside_a_task_resumes_a_reader_in_the_next_iteration() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        reading = await waiting(theirs)
        far.data_received(content(theirs, b"hi"))
        assert not reading.done()
        assert await reading == b"hi"
        await mine.close()


@virtual
async def test_a_reply_is_written_in_the_same_data_received_call() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)

        async def answer() -> None:
            await theirs.send(await theirs.receive())

        answering = asyncio.create_task(answer())
        await settled()
        before = far.bytes_sent
        left: list[int] = []

        def deliver() -> None:
            far.data_received(content(theirs, b"hi"))
            left.append(far.bytes_sent - before)

        asyncio.get_running_loop().call_soon(deliver)
        await answering
        assert left == [len(content(theirs, b"hi"))]
        assert await mine.receive() == b"hi"


@virtual
async def test_a_cancelled_reader_takes_nothing_and_gets_the_message() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        reading.cancel("not today")
        with pytest.raises(asyncio.CancelledError, match="not today"):
            await reading
        await outside_of_tasks(far, content(theirs, b"hi"))
        assert await theirs.receive() == b"hi"


@virtual
async def test_a_reader_cancelled_after_it_was_woken_takes_nothing() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        far.data_received(
            content(theirs, b"hi")
        )  # inside a task: the reader is resumed in the next iteration
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await theirs.receive() == b"hi"


@virtual
async def test_a_second_reader_raises_and_the_first_continues() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        with pytest.raises(RuntimeError, match="already being read by another task"):
            await theirs.receive()
        await outside_of_tasks(far, content(theirs, b"hi"))
        assert await reading == b"hi"


@virtual
async def test_every_reader_is_resumed_in_its_own_context() -> None:
    async with joined("mplex") as (near, far):
        _, first = await opened(near, far)
        _, second = await opened(near, far)
        found: list[tuple[int, bytes]] = []

        async def read(stream: Stream, mine: int) -> None:
            number.set(mine)
            data = await stream.receive()
            found.append((number.get(), data))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read(first, 1))
            tasks.create_task(read(second, 2))
            await settled()
            number.set(3)
            await outside_of_tasks(far, content(first, b"hi") + content(second, b"lo"))
        assert found == [(1, b"hi"), (2, b"lo")]


@virtual
async def test_a_resumed_reader_may_end_the_session_and_the_others_raise() -> None:
    async with joined("mplex") as (near, far):
        _, first = await opened(near, far)
        _, second = await opened(near, far)

        async def give_up() -> None:
            await first.receive()
            far.abort("enough")

        giving_up = asyncio.create_task(give_up())
        reading = await waiting(second)
        await outside_of_tasks(far, content(first, b"hi"))
        await giving_up
        with pytest.raises(polymux.SessionClosed, match="enough"):
            await reading


@virtual
async def test_data_received_in_a_readers_own_context_resumes_it_in_the_next_iteration() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        context = contextvars.copy_context()
        reading = asyncio.create_task(theirs.receive(), context=context)
        await settled()
        loop = asyncio.get_running_loop()
        loop.call_soon(far.data_received, content(theirs, b"hi"), context=context)
        assert await reading == b"hi"
        assert not far.socket_writer.flush_follows


@virtual
async def test_nested_data_received_resumes_readers_after_the_outer_call() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)

        seen: list[tuple[bool, bool]] = []

        def deliver() -> None:
            far.wakeup_queue.begin()  # as in a call of `data_received`
            far.data_received(content(theirs, b"hi"))
            seen.append((reading.done(), far.socket_writer.flush_follows))
            far.wakeup_queue.settle()
            seen.append((reading.done(), far.socket_writer.flush_follows))

        asyncio.get_running_loop().call_soon(deliver)
        assert await reading == b"hi"
        assert seen == [(False, True), (True, False)]


@virtual
async def test_the_repr_of_a_waiting_task_says_what_it_waits_for() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        assert "waiting: data from the peer" in repr(reading)
        reading.cancel()
        assert repr(theirs.read_waiter) == "<cancelled: data from the peer>"


@virtual
async def test_a_task_is_resumed_once_for_each_wait() -> None:
    async with joined("mplex") as (near, _):
        waiter = Waiter(near.wakeup_queue)
        waiter.wake()
        assert not waiter.cancel()
        turns = 0

        async def wait() -> None:
            nonlocal turns
            for _ in range(2):
                await waiter
                turns += 1

        task = asyncio.create_task(wait())
        await settled()
        assert waiter.state == WAITING
        waiter.wake()
        waiter.wake()
        assert waiter.state == WOKEN
        await settled()
        assert turns == 1
        waiter.wake()
        await task
        assert turns == 2
        assert waiter.state == IDLE


@virtual
async def test_a_handler_starts_in_the_data_received_call_that_opens_its_stream() -> None:
    async with joined("mplex") as (_, far):
        done: list[str] = []

        async def handler(stream: Stream) -> None:
            async for _ in stream:
                pass
            done.append(stream.name)

        working = asyncio.create_task(far.serve_streams(handler))
        await settled()
        seen: list[list[str]] = []

        def deliver() -> None:
            far.data_received(OPENING)
            seen.append(list(done))

        asyncio.get_running_loop().call_soon(deliver)
        await settled()
        assert seen == [["s"]]
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


@virtual
async def test_every_handler_has_a_copy_of_the_context_of_serve_streams() -> None:
    async with joined("mplex") as (near, far):
        found: list[int] = []

        async def handler(stream: Stream) -> None:
            found.append(number.get())
            number.set(99)

        async def serve() -> None:
            number.set(7)
            await far.serve_streams(handler)

        working = asyncio.create_task(serve())
        await settled()
        for _ in range(3):
            stream = await near.open()
            assert await stream.receive_all() == b""
        opening = [asyncio.create_task(near.open()) for _ in range(3)]
        for task in opening:
            assert await (await task).receive_all() == b""
        assert found == [7] * 6
        await near.close()
        await working
