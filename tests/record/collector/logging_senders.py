"""Senders that log what they sent on each stream and what was confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from random import Random

import polymux
from polymux import PolymuxError

CHUNK = 20_000
AGAIN = 0.1  # seconds before a sender that lost its peer dials again


@dataclass
class Attempt:
    """One stream: its name, what was to be sent, and how much the peer has confirmed."""

    name: str
    data: bytes
    told: int = 0
    done: bool = False


@dataclass
class Sender:
    """Pushes `streams` streams of `bytes` each to a collector, again and again until all of them
    were taken to the end; each try is a stream of its own in the log."""

    number: int
    url: str
    protocol: str
    streams: int
    raw_bytes: int
    rest: float = 0.0  # seconds between chunks, to spread the traffic
    log: list[Attempt] = field(default_factory=list)
    sent: int = 0

    async def run(self) -> None:
        left = list(range(self.streams))
        tries = 0
        while left:
            tries += 1
            with contextlib.suppress(PolymuxError, OSError, ExceptionGroup):
                async with polymux.connect(self.url, protocol=self.protocol) as session:
                    done = await asyncio.gather(
                        *(self._push(session, stream, tries) for stream in left),
                        return_exceptions=True,
                    )
                    left = [
                        stream for stream, one in zip(left, done, strict=True) if one is not True
                    ]
            if left:
                await asyncio.sleep(AGAIN)

    async def _push(self, session: polymux.Session, stream: int, tries: int) -> bool:
        data = Random(f"{self.number}.{stream}.{tries}").randbytes(self.raw_bytes)
        attempt = Attempt(f"{self.number}.{stream}.{tries}", data)
        self.log.append(attempt)
        way = self._push_messages if self.protocol == "omnistreams" else self._push_bytes
        await way(session, attempt)
        attempt.told = len(data)
        attempt.done = True
        return True

    async def _push_bytes(self, session: polymux.Session, attempt: Attempt) -> None:
        stream = await session.open(attempt.name)
        own = stream.state.half(session.endpoint.side)
        try:
            for start in range(0, len(attempt.data), CHUNK):
                await stream.send(attempt.data[start : start + CHUNK])
                self.sent += CHUNK
                await asyncio.sleep(self.rest)
            await stream.end()
            assert await stream.receive() == b""
        finally:
            if own.credit_granted >= 0:
                attempt.told = own.credit_granted - own.window

    async def _push_messages(self, session: polymux.Session, attempt: Attempt) -> None:
        assert isinstance(session, polymux.OmnistreamsSession)
        stream = await session.open(attempt.name)
        own = stream.state.half(session.endpoint.side)
        first = 0
        try:
            await stream.drain()
            first = own.credit_granted
            count = 0
            for start in range(0, len(attempt.data), CHUNK):
                await stream.send(attempt.data[start : start + CHUNK])
                count += 1
                self.sent += CHUNK
                await asyncio.sleep(self.rest)
            async with asyncio.timeout(60):
                while own.credit_granted - first < count:
                    await asyncio.sleep(0.005)
                    session.check_open()
            await stream.end()
        finally:
            attempt.told = min(len(attempt.data), max(0, own.credit_granted - first) * CHUNK)
