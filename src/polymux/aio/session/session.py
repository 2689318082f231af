"""One live connection: bytes in and out, events to streams, a clean end."""

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import cast

from polymux.aio.arguments import check_concurrent_handler, check_stream_window, encode_name
from polymux.aio.errors import as_session_closed, copy_of, describe_os_error, limit_notice
from polymux.aio.metering import SessionMeter
from polymux.aio.pending import pending
from polymux.aio.session.accept_queue import AcceptQueue, IncomingStreams
from polymux.aio.session.base import SessionBase
from polymux.aio.session.component import release_references
from polymux.aio.session.excess_streams import ExcessStreams
from polymux.aio.session.open_rate import OpenRateLimiter
from polymux.aio.session.open_waiters import OpenWaiters
from polymux.aio.session.peer_diagnosis import early_end_hint
from polymux.aio.session.read_backpressure import ReadBackpressure
from polymux.aio.session.send_waiters import SendWaiters
from polymux.aio.session.shutdown import Shutdown, resolve
from polymux.aio.session.socket_options import min_rtt_ns, raw_socket_fd, stop_tls_read_ahead
from polymux.aio.session.socket_writer import WRITE_HIGH_WATER_BYTES
from polymux.aio.session.stream_tasks import StreamHandler, StreamTaskRunner
from polymux.aio.session.timeouts import TimeoutMonitor
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation, PolymuxError, SessionClosed
from polymux.core.limits import Timeouts
from polymux.core.rules import Origin
from polymux.malloc import raise_trim_threshold, schedule_trim

log = logging.getLogger("polymux.aio")

# What a transport is asked for: how the other side ended, if it knows; the child that it leads to.
EXTRA_END_DESCRIPTION = "polymux_ended"
EXTRA_CHILD_PROCESS = "polymux_child"


class Session(SessionBase, asyncio.Protocol):
    """A connection with many streams. Made by `connect` and `serve`, not by hand.

    After `close`, or when the peer goes away, every waiting call ends with SessionClosed. `failure`
    says why, if it was no orderly end; `endpoint.counters` has every limit hit and rule broken.
    """

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, opens_per_second: float = 0.0
    ) -> None:
        raise_trim_threshold()
        super().__init__(endpoint, timeouts)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.peer = ""
        self.failure: SessionClosed | None = None
        self.on_connection_made: Callable[[Session], None] | None = (
            None  # a server takes it from there
        )
        self.meter: SessionMeter | None = None
        self.accept_queue = AcceptQueue(self.loop, self.check_open)
        self._excess_streams = ExcessStreams(self)
        self.open_waiters = OpenWaiters(self)
        self.send_waiters = SendWaiters(self)
        self.shutdown = Shutdown(self)
        self.read_backpressure = ReadBackpressure(self)
        self._timeout_monitor = TimeoutMonitor(self)
        self._open_rate_limiter = OpenRateLimiter(opens_per_second)

    # --- what a user does

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Open a stream to the peer. The protocols that offer streams wait until it is accepted.

        While `Limits.max_own_streams` of this side are open, it waits for one of them to end.
        If cancelled, no stream was opened.
        """
        text = name if type(name) is bytes else encode_name(name)
        if window:
            check_stream_window(self.endpoint.protocol, window)
        if not self._can_open_now():
            if not self.ready.done():
                await asyncio.shield(self.ready)
            self.check_open()
            if self._open_rate_limiter.interval:
                await self._wait_for_open_rate()
            if not self.open_allowance.can_open():
                await self.open_waiters.wait()
        return self._open_now(text, window)

    @property
    def incoming(self) -> AsyncIterator[Stream]:
        """The streams the peer opens, as they come, until the session ends."""
        return IncomingStreams(self.accept, lambda: self.failure is not None)

    async def accept(self) -> Stream:
        """The next stream the peer has opened. Cancelled: the stream waits for the next call."""
        return await self.accept_queue.take()

    async def serve_streams(self, handler: StreamHandler, *, max_concurrent: int = 1024) -> None:
        """Run `work(stream)` for every stream the peer opens, until the session ends.

        Each has a task of its own and is closed when that returns; if it raises, that is logged
        and the stream given up. While `at_once` are under way, others wait their turn.
        """
        check_concurrent_handler(handler, max_concurrent)
        await StreamTaskRunner(self, handler, max_concurrent).run()

    async def close(self) -> None:
        """Let what is queued leave (within the policy's time), then end the connection.

        What the streams would still send is refused from now on. If cancelled, the connection is
        cut.
        """
        if self.shutdown.started or self.closed.done():
            await self.wait_closed()
            return
        for stream in list(self.streams.values()):
            stream.set_send_error(SessionClosed(f"{self} is closed"))
        self.open_waiters.stop()
        await self.shutdown.close()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection, whoever ends it."""
        await asyncio.shield(self.closed)

    def abort(self, reason: str = "this side gave the session up") -> None:
        """End the connection at once; nothing more is sent."""
        self.fail(SessionClosed(reason))

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort("the block that used the session raised an error")
            await self.wait_closed()

    @property
    def open_streams(self) -> int:
        """Streams that are not over, or not read to their end."""
        return len(self.streams)

    @property
    def bytes_sent(self) -> int:
        """Bytes handed to the transport."""
        return self.socket_writer.bytes_sent

    @property
    def read_pauses(self) -> int:
        """How often reading had to stop for a slow reader."""
        return self.read_backpressure.pause_count

    def __str__(self) -> str:
        return f"{self.endpoint.protocol.name} session with {self.peer or 'nobody yet'}"

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else f"streams open: {self.open_streams}"
        return f"<polymux {self}, {state}>"

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.recorder is not None:
            self.transport = self.recorder.begin(self.transport)
        stop_tls_read_ahead(transport)
        self.socket_writer.fd = raw_socket_fd(self.transport)
        self.busy_poller.min_rtt_ns = functools.partial(min_rtt_ns, transport)
        # What a socket does not take is copied by its transport: no more than once, then we wait.
        self.transport.set_write_buffer_limits(
            high=WRITE_HIGH_WATER_BYTES if self.socket_writer.fd < 0 else 0
        )
        self.endpoint.now = int(self.loop.time() * 1e9)
        self.endpoint.start(os.urandom(16))
        self._timeout_monitor.start()
        if self.meter is not None:
            self.meter.begun(self)
        if self.preamble is not None:
            self.transport.write(self.preamble.initial_bytes())
        self.flush()
        self.update_ready()
        if self.on_connection_made is not None:
            self.on_connection_made(self)

    def eof_received(self) -> bool:
        if self.recorder is not None:
            self.recorder.ended()
        if not self.shutdown.io_stopped:
            whole = self.endpoint.finish()
            told = (
                self.transport.get_extra_info(EXTRA_END_DESCRIPTION)
                if self.transport is not None
                else None
            )
            text = told or "the peer closed the connection"
            text += "" if whole else " in the middle of a frame"
            text += early_end_hint(self)
            if not whole and self.failure is None:
                self.failure = SessionClosed(text)
            self._end_receiving(SessionClosed(text), can_reply=whole)
            self.flush()
        return self.shutdown.on_peer_eof() and self.failure is None

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.failure is None and not self.shutdown.started:
            self.failure = SessionClosed(f"the connection was lost: {describe_os_error(error)}")
            self.close_reason = self.failure
        text = f"{self} is closed" if self.shutdown.started else "the connection was closed"
        self._end_receiving(self.failure or self.close_reason or SessionClosed(text))
        self.read_backpressure.stop()
        self._excess_streams.stop()
        self._timeout_monitor.stop()
        self.shutdown.on_connection_lost()
        if self.meter is not None:
            self.meter.ended(self)
        release_references(self)
        if self.recorder is not None:
            self.recorder.closed(error)
        resolve(self.closed)
        schedule_trim(self.loop.time(), self.loop.call_later)

    def pause_writing(self) -> None:
        self.socket_writer.blocked = True

    def resume_writing(self) -> None:
        self.socket_writer.blocked = False
        self.schedule_flush()

    # --- the end

    def check_open(self) -> None:
        if self.close_reason is not None:
            raise copy_of(self.close_reason)
        if self.shutdown.started:
            raise SessionClosed(f"{self} is closed")

    def _on_peer_error(self, problem: PolymuxError) -> None:
        """What the peer has sent ends the session. A child has a moment to end by itself: how it
        ends is part of the error."""
        child = (
            self.transport.get_extra_info(EXTRA_CHILD_PROCESS)
            if self.transport is not None
            else None
        )
        if child is not None and isinstance(problem, SessionClosed):
            self.shutdown.defer_failure(problem, child)
        else:
            self.fail(problem)

    def fail(self, problem: PolymuxError) -> None:
        """End the session for a reason, at once."""
        if self.closed.done():
            return
        problem = self.shutdown.first_failure(problem)
        if self.failure is None:
            self.failure = as_session_closed(problem)
            level = logging.WARNING if self._is_limit_error(problem) else logging.INFO
            log.log(level, "%s ends: %s", self, problem)
        self._end_receiving(self.failure)
        if self._is_limit_error(problem) and self._send_limit_notice(limit_notice(problem)):
            self.shutdown.close_transport_soon()
        else:
            self.shutdown.close_transport()

    def _is_limit_error(self, problem: PolymuxError) -> bool:
        """Does a limit of this side end the session, or a rule that stands for one?"""
        broken = self.endpoint.fatal_violation
        if isinstance(problem, PeerViolation):
            return broken is not None and broken.rule.origin is Origin.LIMIT
        return isinstance(problem, LimitExceeded)

    def _send_limit_notice(self, text: str) -> bool:
        """Tell the peer which limit ends the session, where the protocol can say so. True: the
        words are with the transport."""
        return False

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        """No more will come: everybody who waits is told."""
        if self.close_reason is None:
            self.close_reason = problem
        for stream in list(self.streams.values()):
            stream.on_connection_lost(problem, can_reply)
        late = self.accept_queue.excess
        while late:  # they have come, and no more can: the application may have them all
            self.admit_stream(late.popleft())
        self.accept_queue.wake_all()
        self.open_waiters.stop()
        resolve(self.ready)

    def waiting_to_open(self) -> int:
        """How many wait because this side has opened as much as it may."""
        return len(self.open_allowance.waiters)

    async def _wait_for_open_rate(self) -> None:
        await self._open_rate_limiter.wait()
        self.check_open()
