"""How a session ends: queued data is sent, and each side sees the other's end of stream.

Closing a socket while received data is unread makes the kernel reset the connection, which discards
what the peer has not read yet. So this side first sends everything, then ends its direction
(half-close), and waits up to PEER_CLOSE_SECONDS for the peer to do the same before it closes. Every
wait is bounded: by `Timeouts.close` or by PEER_CLOSE_SECONDS.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.streams import OPEN
from polymux.live.runtime import Future, Timer, resolve, wait_done
from polymux.live.session.accept_queue import AcceptQueue
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.streams.duplex import Stream

log = logging.getLogger("polymux.aio")

PEER_CLOSE_SECONDS = 1.0  # for the peer to end its direction once everything was sent


class ExitingChild(Protocol):
    """A child process at the other end of the connection."""

    def call_on_exit(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the child has exited, or after a short while."""

    def describe_end(self) -> str:
        """Say how the child ended."""


class Shutdown(SessionComponent[SessionInterface]):
    """The end of one session, whichever side begins it."""

    def __init__(self, session: SessionInterface) -> None:
        super().__init__(session)
        self.started = False  # `close` was called
        self.io_stopped = False  # nothing is processed or written any more
        self._all_sent: Future[None] | None = None  # everything queued was written
        self._peer_ended: Future[None] = session.runtime.create_future()
        self._timer: Timer | None = None
        self._deferred_failure: tuple[SessionClosed, ExitingChild] | None = None

    # This side ends

    async def close(self) -> None:
        """Close gracefully within `Timeouts.close` seconds, then abort the connection.

        If cancelled, the connection is aborted.
        """
        session = self.session
        self.started = True
        try:
            async with session.runtime.timeout_at(session.runtime.time() + session.timeouts.close):
                await self.wait_all_sent()
                await self.send_eof()
                await wait_done(session.runtime, session.closed)
        except TimeoutError:
            log.warning(
                "%s: aborted before everything had been sent and the peer had ended", session
            )
            self.close_transport()
            await wait_done(session.runtime, session.closed)
        except BaseException:
            session.fail(SessionClosed("closing the session was cancelled"))
            raise

    async def wait_all_sent(self) -> None:
        """Wait until everything queued has been handed to the transport."""
        self.session.flush()
        if self.has_unsent():
            self._all_sent = self.session.runtime.create_future()
            await self._all_sent

    async def send_eof(self) -> None:
        """End this side's direction, wait for the peer to end its own, and close."""
        session = self.session
        transport = session.transport
        if transport is None or session.closed.done():
            return
        session.endpoint.queue_last_frame()
        session.endpoint.close_websocket()
        session.flush()
        if session.endpoint.pending():  # the last frame is written even if the transport is full
            transport.write(session.endpoint.data_to_send(0))
        self.io_stopped = True
        if transport.can_write_eof() and not transport.is_closing():
            try:
                transport.write_eof()
            except OSError:  # the peer has reset the connection, and the loop does not know yet
                transport.abort()
                return
            while not self._peer_ended.done():
                runtime = session.runtime
                await wait_done(runtime, self._peer_ended, runtime.time() + PEER_CLOSE_SECONDS)
                if transport.get_write_buffer_size() == 0:
                    break
        transport.close()

    def close_transport(self, gracefully: bool = False) -> None:
        """Close the transport. Gracefully, what it holds is still sent; otherwise it is aborted.

        A WebSocket gets its close frame in either case, and a second to send it.
        """
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
            self._set_timer(PEER_CLOSE_SECONDS, transport.abort)
            gracefully = True
        self.io_stopped = True
        if gracefully:
            transport.close()
        else:
            transport.abort()

    def close_transport_soon(self) -> None:
        """Close the transport once it has sent what it holds; abort it after a second."""
        transport = self.session.transport
        if transport is not None:
            self._set_timer(PEER_CLOSE_SECONDS, transport.abort)
            self.close_transport(gracefully=True)

    # A child process broke the protocol

    def defer_failure(self, problem: SessionClosed, child: ExitingChild) -> None:
        """Fail the session once the child has exited, or after a short while. Until then nothing
        is read or written."""
        self._deferred_failure = problem, child
        self.io_stopped = True

        def fail() -> None:
            session = self.session_or_none()
            if session is not None:
                session.fail(problem)

        child.call_on_exit(fail)

    def first_failure(self, problem: PolymuxError) -> PolymuxError:
        """Return why the session fails: a deferred failure if there is one, else `problem`."""
        if self._deferred_failure is None:
            return problem
        first, child = self._deferred_failure
        self._deferred_failure = None
        self.io_stopped = False  # a limit notice may still be sent to the peer
        return type(first)(f"{first}; {child.describe_end()}")

    # The peer ends

    def on_peer_eof(self) -> bool:
        """Handle the peer's end of stream. Return True to keep the connection open for a while.

        The peer may still read: queued data is sent, and the application can still reply on streams
        that the peer has ended.
        """
        resolve(self._peer_ended)
        if self._all_sent is not None:  # what waits for credit cannot be sent any more
            self.check_done()
        session = self.session
        transport = session.transport
        if self.io_stopped or transport is None or not transport.can_write_eof():
            return False
        if not self.started and not self.may_still_send():
            return False
        self._set_timer(session.timeouts.close, self._on_linger_timeout, self._frames_sent())
        return True

    def _on_linger_timeout(self, frames_before: int) -> None:
        """After the peer's end of stream, close unless frames were sent since the last check."""
        if self._frames_sent() == frames_before:
            self.close_transport(gracefully=True)
        else:
            self._set_timer(
                self.session.timeouts.close, self._on_linger_timeout, self._frames_sent()
            )

    def on_connection_lost(self) -> None:
        """Stop all waits: the connection is gone."""
        self.io_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        resolve(self._peer_ended)
        resolve(self._all_sent)

    # What remains to be sent

    def check_done(self) -> None:
        """Called when nothing can be sent right now: finish the shutdown if nothing is left."""
        if self._all_sent is not None:
            if not self.has_unsent():
                resolve(self._all_sent)
        elif self._peer_ended.done() and not self.started and not self.may_still_send():
            self.close_transport(gracefully=True)

    def has_unsent(self) -> bool:
        """Return whether anything is queued that can still reach the peer."""
        session = self.session
        if self.io_stopped:
            return False
        if session.endpoint.pending():
            return True
        # Data without send credit can be sent only while the peer can still grant credit.
        return not self._peer_ended.done() and any(
            stream.buffers.queued_bytes and not session.is_held_back(stream)
            for stream in session.streams.values()
        )

    def may_still_send(self) -> bool:
        """Return whether data is queued or the application can still send on some stream."""
        return self.has_unsent() or any(map(can_still_send, self.session.streams.values()))

    def _frames_sent(self) -> int:
        endpoint = self.session.endpoint
        return endpoint.protocol.causality.frames_sent(endpoint.side)

    def _set_timer(self, delay: float, callback: Callable[..., object], *arguments: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.session.runtime.call_later(delay, callback, *arguments)


def can_still_send(stream: Stream) -> bool:
    return stream.send_error is None and stream.own_half.state == OPEN


def release_references(session: SessionInterface, accept_queue: AcceptQueue) -> None:
    """Drop the streams and records of a session whose connection is gone.

    Data that was received and not read stays with the streams that the application holds.
    """
    for stream in session.streams.values():
        stream.state.buffers = None
    session.streams.clear()
    session.send_waiters.clear()
    session.busy_poller.stop()
    session.socket_writer.close()
    accept_queue.close()
    session.endpoint.protocol.streams.clear()
