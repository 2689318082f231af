"""Programs that cancel as asyncio does, by `Task.cancel`: `polymux.anyio` and `polymux` itself."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from tests.aio.cancellation_points import everywhere
from tests.doors.test_scopes import (
    CALLS,
    OTHER_CALLS,
    READS,
    check_works,
    leaving_nothing,
    opened,
    settled,
)

import polymux
import polymux.anyio

pytestmark = pytest.mark.anyio

TURNS = range(12)  # more than any call here takes


@pytest.fixture(params=["asyncio", ("asyncio", {"use_uvloop": True})], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


async def cancelled_after(turns: int, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
    """Make a call in a task that is cancelled after some turns of the event loop.

    Return whether it returned all the same, and its result.
    """

    async def make() -> Any:
        return await call()

    task = asyncio.create_task(make())
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return True, await task
    except asyncio.CancelledError:
        return False, None


@pytest.mark.parametrize("verb", READS)
async def test_a_read_that_asyncio_cancels_takes_nothing(verb: str) -> None:
    for turns in TURNS:
        async with polymux.anyio.pipe("mplex") as (near, far):
            mine, theirs = await opened(near, far)
            await mine.send(b"abcd\ne")
            await settled()
            returned, data = await cancelled_after(turns, partial(READS[verb], theirs))
            await mine.end()
            assert (data if returned else b"") + await theirs.receive_all() == b"abcd\ne", turns


async def test_an_accept_that_asyncio_cancels_loses_no_stream() -> None:
    for turns in TURNS:
        async with polymux.anyio.pipe("mplex") as (near, far):
            await near.open("x")
            await settled()
            returned, stream = await cancelled_after(turns, far.accept)
            if not returned:
                with anyio.fail_after(20):
                    stream = await far.accept()
            stream.abort()
            await settled()
            await check_works(near, far)


async def test_an_open_that_asyncio_cancels_leaves_no_stream() -> None:
    for turns in TURNS:
        async with polymux.anyio.pipe("mplex") as (near, _):
            returned, stream = await cancelled_after(turns, partial(near.open, "x"))
            await settled()
            assert near.open_streams == returned, turns
            if returned:
                stream.abort()


async def test_a_send_that_asyncio_cancels_sends_all_or_nothing() -> None:
    for turns in TURNS:
        async with polymux.anyio.pipe("mplex") as (near, far):
            mine, theirs = await opened(near, far)
            returned, _ = await cancelled_after(turns, partial(mine.send, b"x"))
            await mine.end()
            assert await theirs.receive_all() == (b"x" if returned else b""), turns


# `polymux` itself


async def pair_of(near: Any, far: Any) -> tuple[Any, Any]:
    """Both ends of a stream."""
    accepting = asyncio.create_task(far.accept())
    return await near.open("s"), await accepting


async def said_soon(stream: Any) -> None:
    await asyncio.sleep(0.005)
    await stream.send(b"ab")
    await asyncio.sleep(0.005)
    await stream.send(b"cd\n")
    await stream.end()


async def offered_soon(session: Any) -> Any:
    await asyncio.sleep(0.005)
    return await session.offer("y")


POLYMUX_READS: dict[str, Callable[[Any], Any]] = READS | {
    "receive": lambda stream: stream.receive()
}


@pytest.mark.parametrize("verb", POLYMUX_READS)
async def test_a_read_cancelled_at_any_suspension_takes_nothing(verb: str) -> None:
    async for cut in everywhere(steps=False):
        near, far = await polymux.pipe("nerdbank")
        async with near, far:
            mine, theirs = await pair_of(near, far)
            sending = asyncio.create_task(said_soon(mine))
            returned, data = await cut(POLYMUX_READS[verb](theirs))
            await sending
            assert (data if returned else b"") + await theirs.receive_all() == b"abcd\n", cut


async def test_an_open_or_accept_cancelled_at_any_suspension_leaves_the_session_in_order() -> None:
    async for cut in everywhere(steps=False):
        near, far = await polymux.pipe("nerdbank")
        async with near, far:
            accepting = asyncio.create_task(far.accept())
            returned, stream = await cut(near.open("x"))
            accepting.cancel()
            await asyncio.wait([accepting])
            for left in ([stream] if returned else []) + (
                [] if accepting.cancelled() else [accepting.result()]
            ):
                left.abort()
            await settled()
            assert (near.open_streams, far.open_streams) == (0, 0), cut
            offering = asyncio.create_task(offered_soon(near))
            returned, stream = await cut(far.accept())
            if not returned:
                stream = await far.accept()
            mine = await offering
            await mine.send(b"works")
            assert await stream.receive() == b"works"
            mine.abort()


async def test_a_send_cancelled_at_any_suspension_sends_all_or_nothing() -> None:
    limits = polymux.Limits(receive_window=1000)
    async for cut in everywhere(steps=False):
        near, far = await polymux.pipe("nerdbank", limits=limits)
        async with near, far:
            mine, theirs = await pair_of(near, far)
            await mine.send(bytes(5000))
            reading = asyncio.create_task(theirs.receive_all())
            returned, _ = await cut(mine.send(b"x"))
            await mine.end()
            assert (await reading).endswith(b"x") == returned, cut


@pytest.mark.parametrize("verb", CALLS)
async def test_a_thousand_cancelled_calls_leave_nothing(verb: str) -> None:
    limits = polymux.Limits(open_reset_burst=10_000, receive_window=1000)
    near, far = await polymux.pipe("nerdbank", limits=limits)
    async with near, far:
        mine, theirs = await pair_of(near, far)
        if verb in ("send", "drain"):
            mine.send_nowait(bytes(1_000_000))
        async with leaving_nothing():
            for _ in range(1000):
                await cancelled_after(2, partial(CALLS[verb], near, far, mine))
        assert near.open_streams == 1
        await theirs.send(b"x")
        assert await mine.receive() == b"x"
        mine.abort()


@pytest.mark.parametrize("verb", OTHER_CALLS)
async def test_a_thousand_cancelled_calls_of_single_protocols_leave_nothing(verb: str) -> None:
    protocol, call = OTHER_CALLS[verb]
    limits = polymux.Limits(open_reset_burst=10_000, empty_frame_burst=10_000)
    near, far = await polymux.pipe(protocol, limits=limits)
    async with near, far:
        await settled()
        async with leaving_nothing():
            for _ in range(1000):
                await cancelled_after(1, partial(call, near))
        assert near.open_streams == 0
        assert near.failure is far.failure is None


async def test_a_thousand_cancelled_connections_leave_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(2000)
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"

        async def connect() -> None:
            await polymux.connect(url, protocol="nerdbank:version=2")

        async with leaving_nothing():
            for number in range(1000):
                returned, _ = await cancelled_after(1 + number % 4, connect)
                assert not returned
