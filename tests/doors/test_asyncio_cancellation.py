"""`polymux.anyio` in programs that cancel as asyncio does: `Task.cancel`, `asyncio.timeout`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from tests.doors.test_scopes import READS, check_works, opened, settled

import polymux
import polymux.anyio

pytestmark = pytest.mark.anyio

TURNS = range(12)  # more than any call here takes


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


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
