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
    MessageSender,
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
)
from polymux.core.errors import PolymuxError

CREDIT_POLL_SECONDS = 0.005  # seconds between looks at the credit that came back


class NotAcknowledged(PolymuxError):
    """The peer did not take everything that was sent to it."""


class OutgoingStream:
    """One stream. `finish` returns when the peer has taken everything."""

    async def send(self, data: bytes) -> None:
        """Queue the data of one row, waiting for leave."""
        raise NotImplementedError  # each shape of protocol has its own

    async def finish(self) -> None:
        """End the stream and wait for the peer's word that it has everything."""
        raise NotImplementedError


class DuplexOutgoingStream(OutgoingStream):
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


class ExchangeOutgoingStream(OutgoingStream):
    """Streamux: a request that is sent piece by piece, and its reply. It begins with its name."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)

    async def finish(self) -> None:
        await self._exchange.end()
        await self._exchange.read()
        await self._exchange.close()


class CreditOutgoingStream(OutgoingStream):
    """omnistreams, Minmux: the peer gives new credit for what it has taken. Ended after that."""

    def __init__(
        self, stream: MessageSender | ItemSender, credit_cost: Callable[[bytes], int]
    ) -> None:
        self._stream = stream
        self._credit_cost = credit_cost
        self._half = stream.state.half(stream.session.endpoint.side)
        self._initial_credit = 0
        self._credit_used = 0

    async def wait_for_credit(self) -> None:
        """Wait for the first credit: what comes later is for what was sent."""
        await self._stream.drain()
        self._initial_credit = self._half.credit_granted

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)
        self._credit_used += self._credit_cost(data)

    async def finish(self) -> None:
        while self._half.credit_granted - self._initial_credit < self._credit_used:
            await self._stream.drain()  # raises if the stream or the session is over
            self._stream.session.check_open()
            await asyncio.sleep(CREDIT_POLL_SECONDS)
        await self._stream.end()


class StreamOpener:
    """Opens the streams of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next_id = 1

    @property
    def preserves_message_boundaries(self) -> bool:
        """Is a row that is sent by itself received by itself?"""
        return isinstance(self._session, OmnistreamsSession)

    async def open(self, name: str) -> OutgoingStream:
        session = self._session
        if isinstance(session, OmnistreamsSession):
            sender = CreditOutgoingStream(await session.open(name), lambda data: 1)
            await sender.wait_for_credit()
            return sender
        if isinstance(session, MinmuxSession):
            stream = session.sender(self._next_id)
            self._next_id += 2
            stream.promise(1)  # nobody opens streams in Minmux: this makes the peer aware of it
            items = CreditOutgoingStream(stream, len)
            await items.wait_for_credit()
            await items.send(f"{name}\n".encode())
            return items
        if isinstance(session, StreamuxSession):
            exchange = ExchangeOutgoingStream(await session.open())
            await exchange.send(f"{name}\n".encode())
            return exchange
        return DuplexOutgoingStream(await session.open(name))
