"""Helpers for the tests of live Streamux sessions."""

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
    timeouts: polymux.Timeouts | None = None,
) -> AsyncIterator[tuple[StreamuxSession, StreamuxSession]]:
    """Two Streamux sessions connected in memory, aborted at the end."""
    near, far = await polymux.pipe(protocol, other=other, limits=limits, timeouts=timeouts)
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
    """A session whose peer echoes every request."""
    async with pair(protocol, other=other, limits=limits) as (near, far):
        task = asyncio.create_task(far.serve_calls(echo))
        yield near
        near.abort("the test is over")
        with contextlib.suppress(polymux.SessionClosed):
            await task


def held(session: StreamuxSession) -> dict[str, int]:
    """What a session still holds for exchanges: all counts are 0 once everything is closed."""
    protocol = session.protocol
    return {
        "exchanges": len(session.streams),
        "timers": len(session._reply_timers),
        "askers": len(session._id_waiters),
        "calls": session.peer_stream_count + protocol.ids_in_use(1 - session.endpoint.side),
        "locked": len(protocol.locked_keys),
        "reserved": sum(len(protocol.ids_of(side).reserved) for side in (0, 1)),
        "owed": len(protocol.unacknowledged_cancels) + len(protocol.pending_replies),
        "unread": session.endpoint.receive_queue.unread_bytes,
        "queued": session.endpoint.scheduler.ready_bytes,
    }


async def all_free(session: StreamuxSession, ids: int) -> None:
    """Check that all ids can be taken without waiting, and that one more has to wait."""
    assert session.endpoint.limits.max_own_streams > ids
    async with asyncio.timeout(30):
        drawn = [await session.open() for _ in range(ids)]
    assert sorted(exchange.stream_id for exchange in drawn) == list(range(ids))
    waiting = asyncio.create_task(session.open())
    await asyncio.sleep(0)
    assert not waiting.done()
    await drawn[0].close()
    await (await waiting).close()
    for exchange in drawn[1:]:
        await exchange.close()
