"""Streams of any protocol on which a task sends, each ended only when the peer has taken it all.

What counts as taken: the answer to our end (mplex, Nerdbank), a reply (Streamux), or credit for
everything that was sent, beyond what the peer gave at first (omnistreams, Minmux).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from polymux.aio import (
    Exchange,
    ItemSender,
    MinmuxSession,
    OmnistreamsSession,
    Sender,
    Session,
    Stream,
    StreamuxSession,
)
from polymux.core.errors import PolymuxError

LOOK = 0.005  # seconds between looks at the credit that came back


class NotTaken(PolymuxError):
    """The peer did not take everything that was sent to it."""


class Outgoing:
    """One stream. `finish` returns when the peer has taken everything."""

    async def send(self, data: bytes) -> None:
        """Queue the data of one row, waiting for leave."""
        raise NotImplementedError  # each shape of protocol has its own

    async def finish(self) -> None:
        """End the stream and wait for the peer's word that it has everything."""
        raise NotImplementedError


class DuplexOutgoing(Outgoing):
    """mplex, Nerdbank: the peer answers our end with its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)

    async def finish(self) -> None:
        await self._stream.end()
        while await self._stream.receive():
            pass
        await self._stream.close()


class ExchangeOutgoing(Outgoing):
    """Streamux: a request that is sent piece by piece, and its reply. It begins with its name."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)

    async def finish(self) -> None:
        await self._exchange.end()
        await self._exchange.read()
        await self._exchange.close()


class CreditOutgoing(Outgoing):
    """omnistreams, Minmux: the peer gives new credit for what it has taken. Ended after that."""

    def __init__(self, stream: Sender | ItemSender, counts: Callable[[bytes], int]) -> None:
        self._stream = stream
        self._counts = counts
        self._half = stream.record.half(stream.session.endpoint.side)
        self._first = 0
        self._sent = 0

    async def begin(self) -> None:
        """Wait for the first credit: what comes later is for what was sent."""
        await self._stream.drain()
        self._first = self._half.granted

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)
        self._sent += self._counts(data)

    async def finish(self) -> None:
        while self._half.granted - self._first < self._sent:
            await self._stream.drain()  # raises if the stream or the session is over
            self._stream.session._check_open()
            await asyncio.sleep(LOOK)
        await self._stream.end()


class Outlets:
    """Opens the streams of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next_id = 1

    @property
    def has_messages(self) -> bool:
        """Is a row that is sent by itself received by itself?"""
        return isinstance(self._session, OmnistreamsSession)

    async def open(self, name: str) -> Outgoing:
        session = self._session
        if isinstance(session, OmnistreamsSession):
            sender = CreditOutgoing(await session.open(name), lambda data: 1)
            await sender.begin()
            return sender
        if isinstance(session, MinmuxSession):
            stream = session.sender(self._next_id)
            self._next_id += 2
            stream.promise(1)  # nobody opens streams in Minmux: this makes the peer aware of it
            items = CreditOutgoing(stream, len)
            await items.begin()
            await items.send(f"{name}\n".encode())
            return items
        if isinstance(session, StreamuxSession):
            exchange = ExchangeOutgoing(await session.open())
            await exchange.send(f"{name}\n".encode())
            return exchange
        return DuplexOutgoing(await session.open(name))
