"""`End`: where relayed streams come from and where they are re-opened, and the end of a session."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context

from polymux.core.errors import PolymuxError, SessionClosed
from polymux.live.protocols.nerdbank import NerdbankSession
from polymux.live.protocols.omnistreams import OmnistreamsSession
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.live.streams.exchanges import Call
from polymux.live.streams.messages import MessageSender
from polymux.relay.channels import CallChannel, Channel, MessageChannel, StreamChannel
from polymux.relay.traits import Traits, traits_of

REJECTED_REASON = "the other side of the relay could not open the stream"


class Arrival:
    """A stream that was opened at an end, and is to be re-opened at the other.

    Attributes:
        channel: Its channel.
        name: The name or metadata it was opened with; empty if it has none.
    """

    def __init__(self, channel: Channel, name: bytes = b"") -> None:
        self.channel = channel
        self.name = name

    def accept(self) -> None:
        """The stream was re-opened. Called once, before content is moved."""

    def refused(self, problem: PolymuxError) -> bool:
        """The stream could not be re-opened; return whether its peer gets the reason.

        The reason is that of the peer at the other end, if it has rejected the stream.
        """
        _, rejected, reason = str(problem).partition("rejected by the peer: ")
        return self.channel.abort(reason if rejected else REJECTED_REASON)


class OfferedArrival(Arrival):
    """A Nerdbank channel, accepted only when the other end has accepted it."""

    def __init__(self, session: NerdbankSession, stream: Stream, channel: Channel) -> None:
        super().__init__(channel, stream.state.name or b"")
        self._session = session
        self._stream = stream

    def accept(self) -> None:
        self._session.accept_offer(self._stream)


def ignore_loss(what: str) -> None:
    """Count nothing: no relay asks for it."""


class End(ABC):
    """One end of a relay: a session, a set of sockets, a recording.

    Attributes:
        traits: What its streams can express; None: whatever the other end's can.
        lose: Set by the relay: called with the name of what cannot be passed on.
    """

    traits: Traits | None = None
    lose: Callable[[str], None] = staticmethod(ignore_loss)

    @abstractmethod
    async def next_arrival(self) -> Arrival:
        """Wait for the next stream that is opened at this end.

        If cancelled, none was taken.

        Raises:
            SessionClosed: No more streams can come.
        """

    @abstractmethod
    async def open(self, name: bytes) -> Channel:
        """Open a stream at this end, as far as possible with this name.

        If cancelled, no stream is left open.

        Raises:
            PolymuxError: It cannot be opened; the text says why.
        """

    async def relay_messages(self, far: End) -> None:
        """Pass on what belongs to no stream, until the end is over; nothing by default."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Close the end after what is queued. Never raises."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Close the end at once."""


class SessionEnd(End):
    """The end of a session of any protocol but Minmux, which has `MinmuxEnd`.

    Args:
        session: An open session. Its streams belong to the relay from now on.
    """

    traits: Traits

    def __init__(self, session: Session) -> None:
        self.session = session
        self.traits = traits_of(session)
        self._context: Context = copy_context()  # one for all channels: they never nest

    def channel(self, stream: Stream) -> StreamChannel:
        """The channel of one of the session's streams."""
        if isinstance(stream, Call):
            return CallChannel(stream, self.traits, self._context)
        if isinstance(stream, MessageSender):
            return MessageChannel(stream, self.traits, self._context)
        return StreamChannel(stream, self.traits, self._context)

    async def next_arrival(self) -> Arrival:
        session = self.session
        if isinstance(session, NerdbankSession):
            offered = await session.next_offer()
            return OfferedArrival(session, offered, self.channel(offered))
        stream = await session.accept()
        return Arrival(self.channel(stream), stream.state.name or b"")

    async def open(self, name: bytes) -> Channel:
        return self.channel(await self.session.open(name if self.traits.names else b""))

    async def relay_messages(self, far: End) -> None:
        if isinstance(self.session, OmnistreamsSession):
            there = far.session if isinstance(far, SessionEnd) else None
            with contextlib.suppress(SessionClosed):
                async for message in self.session.controls:
                    if isinstance(there, OmnistreamsSession):
                        await there.control(message)
                    else:
                        self.lose("control_message")

    async def close(self) -> None:
        await self.session.close()

    def abort(self, reason: str) -> None:
        self.session.abort(reason)


class ArrivalQueue:
    """Arrivals that wait for a relay. Any number of ends may take from it, one after the other."""

    def __init__(self) -> None:
        self._queued: deque[Arrival] = deque()
        self._changed: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._queued)

    def put(self, arrival: Arrival) -> None:
        """Add an arrival."""
        self._queued.append(arrival)
        self.wake()

    def discard(self, arrival: Arrival) -> bool:
        """Remove an arrival; return False if it was taken."""
        if arrival not in self._queued:
            return False
        self._queued.remove(arrival)
        return True

    def wake(self) -> None:
        """Let the end that waits look again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    async def take(self, check_open: Callable[[], None]) -> Arrival:
        """Wait for the next arrival; `check_open` raises SessionClosed to end that.

        If cancelled, none was taken.
        """
        while True:
            check_open()
            if self._queued:
                return self._queued.popleft()
            self._changed = asyncio.get_running_loop().create_future()
            await self._changed
