"""polymux at one end, an npm peer at the other, in either role, kept up for a module of tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.interop.node_peer import Peer, digest, raw_bytes

import polymux
from polymux import Limits, Session, Stream, Timeouts

QUICK = Timeouts(slow_reader=0.5)
SMALL = Limits(session_buffer_bytes=1024 * 1024)


@dataclass
class Talk:
    """One connection: our session, their process."""

    session: Session
    peer: Peer
    conn: int = 0
    echoes: list[asyncio.Task[None]] = field(default_factory=list)

    async def theirs(self, name: str) -> Stream:
        """The next stream that the peer opens under this name."""
        while True:
            stream = await self.session.accept()
            if stream.name == name:
                return stream

    async def alive(self) -> None:
        """The peer is no zombie: it still echoes on a fresh stream."""
        assert await echoed(self.session, "alive", b"still there") == b"still there"
        assert not self.peer.seen("fault")


async def echoed(session: Session, name: str, data: bytes, chunk: int = 50_000) -> bytes:
    """Send on a fresh stream, end it, and return all that comes back."""
    stream = await session.open(name)
    async with asyncio.TaskGroup() as tasks:
        reply = tasks.create_task(stream.receive_all())
        for start in range(0, len(data), chunk):
            await stream.send(data[start : start + chunk])
        await stream.end()
    await stream.close()
    return reply.result()


async def answer(stream: Stream) -> None:
    async with stream:
        async for chunk in stream:
            await stream.send(chunk)


async def serve_echoes(session: Session) -> None:
    """Echo on every stream until cancelled; a stream that fails harms no other."""

    async def one(stream: Stream) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            await answer(stream)

    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(one(stream))


@contextlib.asynccontextmanager
async def echoing(session: Session) -> AsyncIterator[None]:
    """We echo what the peer opens, inside this block."""
    task = asyncio.create_task(serve_echoes(session))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def same(results: list[dict[str, object]], size: int, seed: int = 0) -> bool:
    """Did every exchange of the peer bring its own bytes back?"""
    return [r["sha256"] for r in results] == [
        digest(raw_bytes(seed + i, size)) for i in range(len(results))
    ]


@contextlib.asynccontextmanager
async def talking(
    script: str,
    arguments: tuple[str, ...],
    protocol: str,
    role: str,
    limits: Limits | None = None,
    policy: Timeouts | None = None,
) -> AsyncIterator[Talk]:
    """We dial a peer that listens (`role` dialer), or a peer dials us (acceptor)."""
    if role == "dialer":
        async with Peer.listen(script, *arguments) as peer:
            url = f"tcp://127.0.0.1:{peer.port}"
            async with polymux.connect(
                url, protocol=protocol, limits=limits, timeouts=policy
            ) as session:
                await peer.event("session")
                yield Talk(session, peer)
    else:
        arrived: asyncio.Future[Session] = asyncio.get_running_loop().create_future()

        async def keep(session: Session) -> None:
            arrived.set_result(session)
            await session.wait_closed()

        async with (
            await polymux.serve(
                keep, "tcp://127.0.0.1:0", protocol=protocol, limits=limits, timeouts=policy
            ) as server,
            Peer.connect(script, server.port, *arguments) as peer,
        ):
            session = await arrived
            await peer.event("session")
            yield Talk(session, peer)
