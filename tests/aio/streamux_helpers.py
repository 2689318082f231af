"""What the tests of live Streamux sessions say over and over."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import cast

import polymux
from polymux import Call, StreamuxSession

SMALL = "streamux:length_bits=10,id_bits=4"


async def echo(call: Call) -> None:
    await call.reply(await call.read())


@contextlib.asynccontextmanager
async def pair(
    protocol: str = "streamux",
    *,
    other: str | None = None,
    limits: polymux.Limits | None = None,
    policy: polymux.Policy | None = None,
) -> AsyncIterator[tuple[StreamuxSession, StreamuxSession]]:
    """Two Streamux sessions joined in memory, ended at the end."""
    near, far = await polymux.pipe(protocol, other=other, limits=limits, policy=policy)
    try:
        yield cast(StreamuxSession, near), cast(StreamuxSession, far)
    finally:
        for session in (near, far):
            session.abort("the test is over")
            await session.wait_closed()


@contextlib.asynccontextmanager
async def answering(
    protocol: str = "streamux", *, other: str | None = None, limits: polymux.Limits | None = None
) -> AsyncIterator[StreamuxSession]:
    """A session whose peer sends back what it is asked."""
    async with pair(protocol, other=other, limits=limits) as (near, far):
        task = asyncio.create_task(far.answer(echo))
        yield near
        near.abort("the test is over")
        with contextlib.suppress(polymux.SessionClosed):
            await task


def held(session: StreamuxSession) -> dict[str, int]:
    """What a session still keeps for exchanges: all of it is 0 once everything is over."""
    protocol = session.protocol
    return {
        "exchanges": len(session._live),
        "unborn": len(session._unborn),
        "askers": len(session._askers),
        "calls": session._theirs + session._asked,
        "locked": len(protocol.locked),
        "reserved": sum(len(protocol.ids(side).reserved) for side in (0, 1)),
        "owed": len(protocol.owed) + len(protocol.duties),
        "unread": session.endpoint.inbox.unread,
        "queued": session.endpoint.outbox.queued,
    }


async def all_free(session: StreamuxSession, ids: int) -> None:
    """Every id can be drawn at once, and one more must wait."""
    assert session.endpoint.limits.own_streams > ids
    async with asyncio.timeout(5):
        drawn = [await session.open() for _ in range(ids)]
    assert sorted(exchange.number for exchange in drawn) == list(range(ids))
    waiting = asyncio.create_task(session.open())
    await asyncio.sleep(0)
    assert not waiting.done()
    await drawn[0].close()
    await (await waiting).close()
    for exchange in drawn[1:]:
        await exchange.close()
