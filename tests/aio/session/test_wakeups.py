"""Who waits for the peer goes on as soon as the peer's bytes have been dealt with."""

from __future__ import annotations

import asyncio
import contextvars

import pytest
from tests.aio.session_helpers import joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session, Stream
from polymux.aio.session.wakeups import IDLE, WAITING, WOKEN, Waiter

OPENING = b"\x28\x01s\x2c\x00"  # mplex: stream 5 is opened under the name s, and ended at once

number = contextvars.ContextVar("number", default=0)


async def outside_of_tasks(session: Session, data: bytes) -> None:
    """Have the peer's bytes come as they do from a socket: by the loop, in no task."""
    done = asyncio.Event()

    def come() -> None:
        session.data_received(data)
        done.set()

    asyncio.get_running_loop().call_soon(come)
    await done.wait()


def content(stream: Stream, data: bytes) -> bytes:
    """A frame of the side that has opened the stream (mplex)."""
    assert stream.stream_id < 16
    return bytes([stream.stream_id << 3 | 2, len(data)]) + data


async def waiting(stream: Stream) -> asyncio.Task[bytes]:
    """A task that waits for what comes on the stream."""
    task = asyncio.create_task(stream.receive())
    await settled()
    assert stream.read_waiter is not None
    assert stream.read_waiter.state != IDLE
    return task


@virtual
async def test_a_reader_goes_on_before_the_loop_has_its_next_turn() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        went_on: list[bytes] = []

        async def read() -> None:
            went_on.append(await theirs.receive())

        reading = asyncio.create_task(read())
        await settled()
        seen: list[list[bytes]] = []

        def come() -> None:
            far.data_received(content(theirs, b"hi"))
            seen.append(list(went_on))

        asyncio.get_running_loop().call_soon(come)
        await reading
        assert seen == [[b"hi"]]
        await mine.close()


@virtual
async def test_bytes_that_come_inside_a_task_wake_a_reader_for_the_next_turn() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        reading = await waiting(theirs)
        far.data_received(content(theirs, b"hi"))
        assert not reading.done()
        assert await reading == b"hi"
        await mine.close()


@virtual
async def test_an_answer_leaves_with_the_bytes_it_answers() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)

        async def answer() -> None:
            await theirs.send(await theirs.receive())

        answering = asyncio.create_task(answer())
        await settled()
        before = far.bytes_sent
        left: list[int] = []

        def come() -> None:
            far.data_received(content(theirs, b"hi"))
            left.append(far.bytes_sent - before)

        asyncio.get_running_loop().call_soon(come)
        await answering
        assert left == [len(content(theirs, b"hi"))]
        assert await mine.receive() == b"hi"


@virtual
async def test_a_reader_that_is_cancelled_takes_nothing_and_hears_why() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        reading.cancel("not today")
        with pytest.raises(asyncio.CancelledError, match="not today"):
            await reading
        await outside_of_tasks(far, content(theirs, b"hi"))
        assert await theirs.receive() == b"hi"


@virtual
async def test_a_reader_that_is_cancelled_once_it_was_woken_takes_nothing() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        far.data_received(content(theirs, b"hi"))  # in a task: it is on its way
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await theirs.receive() == b"hi"


@virtual
async def test_a_second_reader_is_told_so_and_the_first_goes_on() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        with pytest.raises(RuntimeError, match="already being read by another task"):
            await theirs.receive()
        await outside_of_tasks(far, content(theirs, b"hi"))
        assert await reading == b"hi"


@virtual
async def test_every_reader_goes_on_in_its_own_context() -> None:
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
async def test_a_reader_may_end_the_session_from_there_and_the_others_hear_of_it() -> None:
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
async def test_bytes_that_come_in_a_readers_own_context_wake_it_for_the_next_turn() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        context = contextvars.copy_context()
        reading = asyncio.create_task(theirs.receive(), context=context)
        await settled()
        loop = asyncio.get_running_loop()
        loop.call_soon(far.data_received, content(theirs, b"hi"), context=context)
        assert await reading == b"hi"
        assert not far.socket_writer.in_receive


@virtual
async def test_bytes_that_come_while_others_are_dealt_with_wake_nobody_before_those() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)

        seen: list[tuple[bool, bool]] = []

        def come() -> None:
            far.wakeup_queue.begin_receive()
            far.data_received(content(theirs, b"hi"))
            seen.append((reading.done(), far.socket_writer.in_receive))
            far.wakeup_queue.end_receive()
            seen.append((reading.done(), far.socket_writer.in_receive))

        asyncio.get_running_loop().call_soon(come)
        assert await reading == b"hi"
        assert seen == [(False, True), (True, False)]


@virtual
async def test_who_waits_for_the_peer_can_be_told_from_the_task() -> None:
    async with joined("mplex") as (near, far):
        _, theirs = await opened(near, far)
        reading = await waiting(theirs)
        assert "waiting: data from the peer" in repr(reading)
        reading.cancel()
        assert repr(theirs.read_waiter) == "<cancelled: data from the peer>"


@virtual
async def test_nobody_is_woken_twice_and_nobody_who_does_not_wait() -> None:
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
async def test_work_on_a_stream_begins_with_the_bytes_that_open_it() -> None:
    async with joined("mplex") as (_, far):
        done: list[str] = []

        async def work(stream: Stream) -> None:
            async for _ in stream:
                pass
            done.append(stream.name)

        working = asyncio.create_task(far.serve_streams(work))
        await settled()
        seen: list[list[str]] = []

        def come() -> None:
            far.data_received(OPENING)
            seen.append(list(done))

        asyncio.get_running_loop().call_soon(come)
        await settled()
        assert seen == [["s"]]
        working.cancel()
        with pytest.raises(asyncio.CancelledError):
            await working


@virtual
async def test_every_work_has_a_copy_of_the_context_in_which_each_was_called() -> None:
    async with joined("mplex") as (near, far):
        found: list[int] = []

        async def work(stream: Stream) -> None:
            found.append(number.get())
            number.set(99)

        async def serve() -> None:
            number.set(7)
            await far.serve_streams(work)

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
