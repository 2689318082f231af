"""Two sessions with a relay between them, in one process and without a network."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import polymux
from polymux.relay import Relay, SessionEnd
from polymux.relay.engine import LINGER_SECONDS, FilterFactory

DUPLEX = (
    "mplex",
    "nerdbank:version=1",
    "nerdbank:version=2",
    "nerdbank:version=3",
    "yamux",
    "yamux:dialect=libp2p",
)
PAIRS = [(a, b) for a in DUPLEX for b in DUPLEX]


@dataclass
class Relayed:
    """`near` and `far` are the peers; the relay stands between them."""

    near: polymux.Session
    far: polymux.Session
    relay: Relay
    task: asyncio.Task[None]

    async def opened(self, name: str = "") -> tuple[polymux.Stream, polymux.Stream]:
        """A stream that the near peer has opened, and the far peer's."""
        opening = asyncio.create_task(open_stream(self.near, name))
        accepted = await self.far.accept()
        return await opening, accepted


@asynccontextmanager
async def relayed_sessions(
    protocol_a: str,
    protocol_b: str,
    filters: FilterFactory | None = None,
    limits: polymux.Limits | None = None,
    timeouts: polymux.Timeouts | None = None,
    linger: float = LINGER_SECONDS,
) -> AsyncIterator[Relayed]:
    near, inner_a = await polymux.pipe(protocol_a, limits=limits, timeouts=timeouts)
    inner_b, far = await polymux.pipe(protocol_b, limits=limits, timeouts=timeouts)
    relay = Relay(SessionEnd(inner_a), SessionEnd(inner_b), filters=filters, linger=linger)
    task = asyncio.create_task(relay.run())
    try:
        yield Relayed(near, far, relay, task)
    finally:
        task.cancel()
        await asyncio.gather(task, near.close(), far.close(), return_exceptions=True)


async def open_stream(session: polymux.Session, name: str = "") -> polymux.Stream:
    """Open a stream, with the name where the protocol has names."""
    if session.endpoint.protocol.name == "yamux":
        return await session.open()
    return await session.open(name)


async def send_all(stream: polymux.Stream, data: bytes, piece: int = 65536) -> None:
    """Send `data` and end the stream's half."""
    for start in range(0, len(data), piece):
        await stream.send(data[start : start + piece])
    await stream.end()


async def digest_of(stream: polymux.Stream) -> bytes:
    """The SHA-256 of everything that comes on a stream."""
    digest = hashlib.sha256()
    async for chunk in stream:
        digest.update(chunk)
    return digest.digest()


async def fill(stream: polymux.Stream) -> None:
    """Send on a stream until it is aborted or the task is cancelled."""
    while True:
        await stream.send(bytes(65536))
