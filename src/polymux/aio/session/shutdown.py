"""How a session ends: what is queued leaves, and both sides hear the other's end.

A socket that is closed while bytes still come in makes the system throw away what the peer has not
read yet. So this side first says that it has ended, and then waits a little for the peer to end.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from polymux.aio.session.component import SessionComponent
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.streams import OPEN

if TYPE_CHECKING:
    from polymux.aio.session.session import Session
    from polymux.aio.transports.process import ChildProcess

log = logging.getLogger("polymux.aio")

PEER_CLOSE_SECONDS = 1.0  # seconds for the peer to close its side once everything has left ours


class Shutdown(SessionComponent["Session"]):
    """The end of one session, whoever begins it; every wait in it is bounded."""

    def __init__(self, session: "Session") -> None:
        super().__init__(session)
        self.started = False  # `close` was called
        self.io_stopped = False  # this side has said its last word: nothing is read or written now
        self._all_sent: asyncio.Future[None] | None = None  # settled when everything has left
        self._peer_ended: asyncio.Future[None] = session.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._deferred_failure: tuple[SessionClosed, ChildProcess] | None = None

    # --- this side ends

    async def close(self) -> None:
        """Gracefully within the policy's time, then at once. Cancelled: the connection is cut."""
        session = self.session
        self.started = True
        try:
            async with asyncio.timeout_at(session.loop.time() + session.timeouts.close):
                await self.wait_all_sent()
                await self.send_eof()
                await session.wait_closed()
        except TimeoutError:
            log.warning("%s: cut before everything had been sent and the peer had ended", session)
            self.close_transport()
            await session.wait_closed()
        except BaseException:
            session.abort("closing the session was given up")
            raise

    async def wait_all_sent(self) -> None:
        """Wait until everything queued has been handed to the transport."""
        self.session.flush()
        if self.has_unsent():
            self._all_sent = self.session.loop.create_future()
            await self._all_sent

    async def send_eof(self) -> None:
        """End our side of the connection, wait for the peer's, and close."""
        session = self.session
        transport = session.transport
        if transport is None or session.closed.done():
            return
        session.endpoint.close_websocket()
        session.flush()
        if session.endpoint.pending():  # a full transport: the last word does not wait for room
            transport.write(session.endpoint.data_to_send(0))
        self.io_stopped = True
        if transport.can_write_eof() and not transport.is_closing():
            transport.write_eof()
            while not self._peer_ended.done():
                await asyncio.wait([self._peer_ended], timeout=PEER_CLOSE_SECONDS)
                if transport.get_write_buffer_size() == 0:
                    break
        transport.close()

    def close_transport(self, gracefully: bool = False) -> None:
        """End the transport. Gently, what it holds still leaves; else only a carrier's close."""
        session = self.session
        transport = session.transport
        if transport is None:
            return
        if (
            session.endpoint.websocket is not None
            and not self.io_stopped
            and not transport.is_closing()
        ):
            session.endpoint.close_websocket()
            transport.write(session.endpoint.data_to_send(0))
            self.set_timer(PEER_CLOSE_SECONDS, transport.abort)
            gracefully = True
        self.io_stopped = True
        if gracefully:
            transport.close()
        else:
            transport.abort()

    def close_transport_soon(self) -> None:
        """End the transport once it has sent what it holds, or after a short while."""
        transport = self.session.transport
        if transport is not None:
            self.set_timer(PEER_CLOSE_SECONDS, transport.abort)
            self.close_transport(gracefully=True)

    # --- a child has broken the protocol

    def defer_failure(self, problem: SessionClosed, child: "ChildProcess") -> None:
        """Let the session fail once the child has ended, or after a short while. Until then
        nothing is read or written."""
        self._deferred_failure = problem, child
        self.io_stopped = True
        child.call_on_exit(lambda: self.session.fail(problem))

    def first_failure(self, problem: PolymuxError) -> PolymuxError:
        """Why the session fails: this problem, or the one that was put off, which came first."""
        if self._deferred_failure is None:
            return problem
        first, child = self._deferred_failure
        self._deferred_failure = None
        self.io_stopped = False  # the peer may still be told of a limit
        return type(first)(f"{first}; {child.describe_end()}")

    # --- the peer ends

    def on_peer_eof(self) -> bool:
        """The peer sends no more, but may still read: what is queued goes on, and streams that it
        ended can still be answered. True: keep the connection open for that, for a while."""
        resolve(self._peer_ended)
        session = self.session
        transport = session.transport
        if self.io_stopped or transport is None or not transport.can_write_eof():
            return False
        if not self.started and not self.may_still_send():
            return False
        self.set_timer(session.timeouts.close, self.on_linger_timeout, self.frames_sent())
        return True

    def on_linger_timeout(self, frames_before: int) -> None:
        """A while after the peer's end: go on only while answers flow."""
        if self.frames_sent() == frames_before:
            self.close_transport(gracefully=True)
        else:
            self.set_timer(self.session.timeouts.close, self.on_linger_timeout, self.frames_sent())

    def on_connection_lost(self) -> None:
        """The connection is gone: nothing is waited for any more."""
        self.io_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        resolve(self._peer_ended)
        resolve(self._all_sent)

    # --- what is left

    def check_done(self) -> None:
        """Nothing can be sent right now: is that the end of it?"""
        if self._all_sent is not None:
            if not self.has_unsent():
                resolve(self._all_sent)
        elif self._peer_ended.done() and not self.started and not self.may_still_send():
            self.close_transport(gracefully=True)

    def has_unsent(self) -> bool:
        """Is there anything queued that can still reach the peer?"""
        session = self.session
        if self.io_stopped:
            return False
        if session.endpoint.pending():
            return True
        # What has no leave can only leave while the peer can still give some.
        return not self._peer_ended.done() and any(
            stream.buffers.queued_bytes and not session.is_held_back(stream)
            for stream in session.streams.values()
        )

    def may_still_send(self) -> bool:
        """Is anything queued, or may the application still answer on some stream?"""
        return self.has_unsent() or any(map(can_still_send, self.session.streams.values()))

    def frames_sent(self) -> int:
        """How many frames this side has sent."""
        endpoint = self.session.endpoint
        return endpoint.protocol.causality.frames_sent(endpoint.side)

    def set_timer(self, delay: float, callback: object, *arguments: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.session.loop.call_later(delay, callback, *arguments)  # type: ignore[arg-type]


def can_still_send(stream: Stream) -> bool:
    return stream.send_error is None and stream.own_half.state == OPEN


def resolve(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
