"""How a session ends: what is queued leaves, and both sides hear the other's end.

A socket that is closed while octets still come in makes the system throw away what the peer has not
read yet. So this side first says that it has ended, and then waits a little for the peer to end.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import Belonging
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.streams import OPEN

if TYPE_CHECKING:
    from polymux.aio.session.session import Session
    from polymux.aio.transports.process import Child

log = logging.getLogger("polymux.aio")

LINGER = 1.0  # seconds for the peer to close its side once everything has left ours


class Ending(Belonging["Session"]):
    """The end of one session, whoever begins it; every wait in it is bounded."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.begun = False  # `close` was called
        self.shut = False  # this side has said its last word: nothing is read or written now
        self._sent: asyncio.Future[None] | None = None  # settled when everything has left
        self._peer_ended: asyncio.Future[None] = session.loop.create_future()
        self._clock: asyncio.TimerHandle | None = None
        self._put_off: tuple[SessionClosed, Child] | None = None

    # --- this side ends

    async def close(self) -> None:
        """Gracefully within the policy's time, then at once. Cancelled: the connection is cut."""
        session = self.session
        self.begun = True
        try:
            async with asyncio.timeout_at(session.loop.time() + session.policy.close):
                await self.all_sent()
                await self.say_goodbye()
                await session.wait_closed()
        except TimeoutError:
            log.warning("%s: cut before everything had been sent and the peer had ended", session)
            self.cut()
            await session.wait_closed()
        except BaseException:
            session.abort("closing the session was given up")
            raise

    async def all_sent(self) -> None:
        """Wait until everything queued has been handed to the transport."""
        self.session._flush()
        if self.unsent():
            self._sent = self.session.loop.create_future()
            await self._sent

    async def say_goodbye(self) -> None:
        """End our side of the connection, wait for the peer's, and close."""
        session = self.session
        transport = session.transport
        if transport is None or session.closed.done():
            return
        session.endpoint.hang_up()
        session._flush()
        if session.endpoint.pending():  # a full transport: the last word does not wait for room
            transport.write(session.endpoint.data_to_send(0))
        self.shut = True
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            while not self._peer_ended.done():
                await asyncio.wait([self._peer_ended], timeout=LINGER)
                if transport.get_write_buffer_size() == 0:
                    break
        transport.close()

    def cut(self, gently: bool = False) -> None:
        """End the transport. Gently, what it holds still leaves; else only a carrier's close."""
        session = self.session
        transport = session.transport
        if transport is None:
            return
        if session.endpoint.carrier is not None and not self.shut and not transport.is_closing():
            session.endpoint.hang_up()
            transport.write(session.endpoint.data_to_send(0))
            self.set_clock(LINGER, transport.abort)
            gently = True
        self.shut = True
        if gently:
            transport.close()
        else:
            transport.abort()

    def cut_soon(self) -> None:
        """End the transport once it has sent what it holds, or after a short while."""
        transport = self.session.transport
        if transport is not None:
            self.set_clock(LINGER, transport.abort)
            self.cut(gently=True)

    # --- a child has broken the protocol

    def put_off(self, problem: SessionClosed, child: "Child") -> None:
        """Let the session fail once the child has ended, or after a short while. Until then
        nothing is read or written."""
        self._put_off = problem, child
        self.shut = True
        child.await_end(lambda: self.session._fail(problem))

    def reason(self, problem: PolymuxError) -> PolymuxError:
        """Why the session fails: this problem, or the one that was put off, which came first."""
        if self._put_off is None:
            return problem
        first, child = self._put_off
        self._put_off = None
        self.shut = False  # the peer may still be told of a limit
        return type(first)(f"{first}; {child.fate()}")

    # --- the peer ends

    def heard(self) -> bool:
        """The peer sends no more, but may still read: what is queued goes on, and streams that it
        ended can still be answered. True: keep the connection open for that, for a while."""
        settle(self._peer_ended)
        session = self.session
        transport = session.transport
        if self.shut or transport is None or not transport.can_write_eof():
            return False
        if not self.begun and not self.has_more_to_say():
            return False
        self.set_clock(session.policy.close, self.run_out, self.frames())
        return True

    def run_out(self, before: int) -> None:
        """A while after the peer's end: go on only while answers flow."""
        if self.frames() == before:
            self.cut(gently=True)
        else:
            self.set_clock(self.session.policy.close, self.run_out, self.frames())

    def lost(self) -> None:
        """The connection is gone: nothing is waited for any more."""
        self.shut = True
        if self._clock is not None:
            self._clock.cancel()
        settle(self._peer_ended)
        settle(self._sent)

    # --- what is left

    def look(self) -> None:
        """Nothing can be sent right now: is that the end of it?"""
        if self._sent is not None:
            if not self.unsent():
                settle(self._sent)
        elif self._peer_ended.done() and not self.begun and not self.has_more_to_say():
            self.cut(gently=True)

    def unsent(self) -> bool:
        """Is there anything queued that can still reach the peer?"""
        session = self.session
        if self.shut:
            return False
        if session.endpoint.pending():
            return True
        # What has no leave can only leave while the peer can still give some.
        return not self._peer_ended.done() and any(
            stream.lane.queued and not session._is_offer(stream)
            for stream in session._live.values()
        )

    def has_more_to_say(self) -> bool:
        """Is anything queued, or may the application still answer on some stream?"""
        return self.unsent() or any(map(answerable, self.session._live.values()))

    def frames(self) -> int:
        """How many frames this side has sent."""
        endpoint = self.session.endpoint
        return endpoint.protocol.sight.sent(endpoint.side)

    def set_clock(self, delay: float, act: object, *arguments: object) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._clock = self.session.loop.call_later(delay, act, *arguments)  # type: ignore[arg-type]


def answerable(stream: Stream) -> bool:
    return stream._no_send is None and stream._own.state == OPEN


def settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
