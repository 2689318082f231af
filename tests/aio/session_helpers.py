"""Helpers for the tests of live sessions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

import polymux
from polymux import NerdbankSession, Session, Stream

PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3"]

Handler = Callable[[Session], Awaitable[None]]


async def answer(stream: Stream) -> None:
    """Echo a stream, and end when the peer has ended."""
    async with stream:
        async for chunk in stream:
            await stream.send(chunk)


async def echo(session: Session) -> None:
    """Echo every stream of a session."""
    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(answer(stream))


async def exchange(session: Session, name: str, data: bytes) -> bytes:
    """Send `data` on a new stream, end it, and return the complete reply."""
    stream = await session.open(name)
    async with asyncio.TaskGroup() as tasks:
        reply = tasks.create_task(stream.receive_all())
        for start in range(0, len(data), 50_000):
            await stream.send(data[start : start + 50_000])
        await stream.end()
    return reply.result()


@contextlib.asynccontextmanager
async def joined(
    protocol: str,
    *,
    limits: polymux.Limits | None = None,
    timeouts: polymux.Timeouts | None = None,
) -> AsyncIterator[tuple[Session, Session]]:
    """Two sessions connected in memory, closed at the end."""
    near, far = await polymux.pipe(protocol, limits=limits, timeouts=timeouts)
    try:
        yield near, far
    finally:
        near.abort("the test is over")
        far.abort("the test is over")
        await near.wait_closed()
        await far.wait_closed()


async def opened(near: Session, far: Session, name: str = "s") -> tuple[Stream, Stream]:
    """Open a stream from `near` to `far`. Return both ends of it."""
    async with asyncio.TaskGroup() as tasks:
        mine = tasks.create_task(near.open(name))
        theirs = tasks.create_task(far.accept())
    return mine.result(), theirs.result()


def channels(*sessions: Session) -> tuple[NerdbankSession, ...]:
    """The same sessions, typed as NerdbankSession."""
    return tuple(cast(NerdbankSession, session) for session in sessions)


async def settled(times: int = 20) -> None:
    """Run a few event-loop iterations, so that everything that is ready has run."""
    for _ in range(times):
        await asyncio.sleep(0)
