"""Outgoing streams of every protocol, with an acknowledgement that the peer has read everything.

What counts as the acknowledgement depends on the protocol: the peer's end of the stream in answer
to ours (mplex, Nerdbank), the reply (Streamux), or new credit for everything that was sent
(omnistreams, Minmux).
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

CREDIT_POLL_SECONDS = 0.005  # seconds between checks for new credit


class NotAcknowledged(PolymuxError):
    """The peer did not acknowledge everything that was sent."""


class OutgoingStream:
    """One stream. Subclasses implement it for each kind of protocol."""

    async def send(self, data: bytes) -> None:
        """Send data, waiting for credit."""
        raise NotImplementedError

    async def finish(self) -> None:
        """End the stream and return when the peer has acknowledged everything."""
        raise NotImplementedError


class DuplexOutgoingStream(OutgoingStream):
    """mplex, Nerdbank: the peer acknowledges by ending its half of the stream."""

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
    """Streamux: a request that is sent in pieces; the reply is the acknowledgement."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    async def send(self, data: bytes) -> None:
        await self._exchange.send(data)

    async def finish(self) -> None:
        await self._exchange.end()
        await self._exchange.read()
        await self._exchange.close()


class CreditOutgoingStream(OutgoingStream):
    """omnistreams, Minmux: the peer grants new credit for what it has read.

    `credit_cost` returns the credit that data uses: messages or items.
    """

    def __init__(
        self, stream: MessageSender | ItemSender, credit_cost: Callable[[bytes], int]
    ) -> None:
        self._stream = stream
        self._credit_cost = credit_cost
        self._half = stream.state.half(stream.session.endpoint.side)
        self._initial_credit = 0
        self._credit_used = 0

    async def wait_for_credit(self) -> None:
        """Wait for the initial credit; credit granted later acknowledges what was sent."""
        await self._stream.drain()
        self._initial_credit = self._half.credit_granted

    async def send(self, data: bytes) -> None:
        await self._stream.send(data)
        self._credit_used += self._credit_cost(data)

    async def finish(self) -> None:
        while self._half.credit_granted - self._initial_credit < self._credit_used:
            await self._stream.drain()  # raises if the stream or session has ended
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
        """Whether data that is sent in one call is received in one piece."""
        return isinstance(self._session, OmnistreamsSession)

    async def open(self, name: str) -> OutgoingStream:
        """Open a stream. In protocols without stream names the data begins with `name` and LF."""
        session = self._session
        if isinstance(session, OmnistreamsSession):
            sender = CreditOutgoingStream(await session.open(name), lambda data: 1)
            await sender.wait_for_credit()
            return sender
        if isinstance(session, MinmuxSession):
            stream = session.sender(self._next_id)
            self._next_id += 2
            stream.promise(1)  # Minmux has no open frame: this announces the stream
            items = CreditOutgoingStream(stream, len)
            await items.wait_for_credit()
            await items.send(f"{name}\n".encode())
            return items
        if isinstance(session, StreamuxSession):
            exchange = ExchangeOutgoingStream(await session.open())
            await exchange.send(f"{name}\n".encode())
            return exchange
        return DuplexOutgoingStream(await session.open(name))
