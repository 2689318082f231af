"""`Session`: a connection with many streams, as the application uses it."""

import functools
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.limits import Timeouts
from polymux.live.arguments import check_concurrent_handler, encode_name
from polymux.live.errors import ClosedHere, describe_os_error
from polymux.live.hooks import SessionMeter
from polymux.live.peer_identity import PeerIdentity, identity_of
from polymux.live.pending import pending
from polymux.live.runtime import Runtime, resolve, wait_done
from polymux.live.session.accept_queue import IncomingStreams
from polymux.live.session.base import SessionBase
from polymux.live.session.peer_diagnosis import early_end_hint, tls_refusal_hint
from polymux.live.session.shutdown import release_references
from polymux.live.session.socket_options import (
    min_rtt_ns,
    raw_socket_fd,
    stop_tls_read_ahead,
    transport_info,
)
from polymux.live.session.socket_writer import WRITE_HIGH_WATER_BYTES
from polymux.live.session.stream_tasks import StreamHandler, StreamTaskRunner
from polymux.live.session.timeouts import TimeoutMonitor
from polymux.live.streams.duplex import Stream
from polymux.live.transport import Transport
from polymux.malloc import raise_trim_threshold, schedule_trim

# `get_extra_info` names of our own transports: a text that says how the other side ended, and the
# child process at the other end.
EXTRA_END_DESCRIPTION = "polymux_ended"
EXTRA_CHILD_PROCESS = "polymux_child"


class Session(SessionBase):
    """A connection with many streams. `connect`, `serve` and `pipe` create it.

    A session is an asynchronous context manager: leaving the block closes it, and an exception in
    the block aborts it. After `close`, or when the peer goes away, every waiting call raises
    SessionClosed. Cancelling a call that waits leaves the session usable, except for `close`.

    Attributes:
        peer: Address or URL of the peer.
        peer_identity: The names in the peer's certificate (`PeerIdentity`), if it was verified: on
            a server, only with a TLS context that requires client certificates. None otherwise.
        failure: Why the session ended, or None while it is open and after an orderly end.
        endpoint: The protocol's state; `endpoint.counters` counts every limit that was reached and
            every rule that the peer broke.
        ready: A future that is done once the handshake is done, or the session is closed.
        closed: A future that is done once the connection is gone.
        timeouts: The session's `Timeouts`, in seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        raise_trim_threshold()
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        # Set by a server:
        self.on_connection_made: Callable[[Session], None] | None = None
        self.is_refused: Callable[[Transport], bool] | None = None
        self.meter: SessionMeter | None = None
        self.peer_identity: PeerIdentity | None = None
        self._timeout_monitor = TimeoutMonitor(self, self.read_backpressure)

    # Opening and accepting streams

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Stream:
        """Open a stream to the peer.

        Waits for the handshake, for `opens_per_second`, and while `Limits.max_own_streams` streams
        of this side are open. Where the protocol offers streams, it also waits until the peer has
        accepted. If cancelled, no stream was opened.

        Args:
            name: Name of the stream; text is sent as UTF-8.
            window: Receive window in the protocol's unit; 0 uses the default.
            weight: The stream's share of the connection; see `Stream.weight`.

        Returns:
            The stream. The call can be awaited, or entered with `async with`, which closes the
            stream at the end of the block.

        Raises:
            SessionClosed: The session is closed, or closes while the call waits.
            LimitExceeded: `Limits.max_own_streams` is 0.
            Unsupported: A window was given and the protocol has none.
            LocalProtocolError: The name or the window is out of range.
            ValueError: The weight is out of range.
        """
        stream = self._open_if_possible(name, window, weight)
        if stream is None:
            await self._wait_to_open()
            stream = self._open_now(encode_name(name), window, weight)
        return stream

    async def _wait_to_open(self) -> None:
        """Wait until this side may open a stream; raise SessionClosed if it never may."""
        if not self.ready.done():
            await wait_done(self.runtime, self.ready)
        self.check_open()
        if self._open_rate_limiter.interval:
            await self._wait_for_open_rate()
        if not self.open_allowance.can_open():
            await self.open_waiters.wait()

    async def _wait_for_open_rate(self) -> None:
        await self._open_rate_limiter.wait()
        self.check_open()

    @property
    def incoming(self) -> AsyncIterator[Stream]:
        """Iterate over the streams the peer opens, in order of arrival.

        The iteration ends with the session; it raises SessionClosed if the session failed.
        """
        return IncomingStreams(self.accept, lambda: self.failure is not None)

    async def accept(self) -> Stream:
        """Wait for the next stream that the peer opens.

        If cancelled, no stream was taken: the next call returns it.

        Returns:
            The stream that has waited longest.

        Raises:
            SessionClosed: The session is closed and no stream is left to be accepted.
        """
        return await self.accept_queue.take()

    async def serve_streams(self, handler: StreamHandler, *, max_concurrent: int = 1024) -> None:
        """Run `handler(stream)` for every stream the peer opens, until the session ends.

        Each handler runs in a task of its own, in a copy of the caller's context. The stream is
        closed when the handler returns. If the handler raises, the stream is aborted and the
        exception is logged. If `serve_streams` is cancelled, it cancels the running handlers and
        waits for them; streams without a running handler stay in the accept queue.

        Args:
            handler: An async function of one argument, the stream.
            max_concurrent: Handlers that run at the same time; further streams wait.

        Raises:
            SessionClosed: The session failed. After an orderly end the call returns.
            RuntimeError: Another `serve_streams` runs on this session.
            TypeError: `handler` is not an async function, or `max_concurrent` not an int.
            ValueError: `max_concurrent` is less than 1.
        """
        check_concurrent_handler(handler, max_concurrent)
        await StreamTaskRunner(self, self.accept_queue, handler, max_concurrent).run()

    # Closing

    async def close(self) -> None:
        """Send what is queued, end the connection and wait until it is gone.

        Streams can send no more from now on. If the queued data is not sent and the peer has not
        ended within `Timeouts.close` seconds, the connection is aborted. If cancelled, the
        connection is aborted too. Does not raise if the session has ended already.
        """
        if self.shutdown.started or self.closed.done():
            await self.wait_closed()
            return
        for stream in list(self.streams.values()):
            stream.set_send_error(ClosedHere(f"{self} is closed"))
        self.open_waiters.stop()
        await self.shutdown.close()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, whichever side ends it. Never raises SessionClosed."""
        await wait_done(self.runtime, self.closed)

    def abort(self, reason: str = "this side aborted the session") -> None:
        """End the connection at once; queued data is not sent.

        Args:
            reason: Text of the SessionClosed that waiting calls raise.
        """
        self.fail(ClosedHere(reason))

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort("the block that used the session raised an error")
            await self.wait_closed()

    @property
    def loop(self) -> Any:
        """The event loop of asyncio in which the session runs; None if it runs in none."""
        return self.runtime.loop

    # Statistics

    @property
    def open_streams(self) -> int:
        """Number of streams that are open, or closed with data that was not read."""
        return len(self.streams)

    @property
    def bytes_sent(self) -> int:
        """Number of bytes handed to the transport."""
        return self.socket_writer.bytes_sent

    @property
    def read_pauses(self) -> int:
        """How many times reading was paused because the application read too slowly."""
        return self.read_backpressure.pause_count

    def __str__(self) -> str:
        text = super().__str__()
        return text if self.peer_identity is None else f"{text} ({self.peer_identity})"

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else f"streams open: {self.open_streams}"
        return f"<polymux {self}, {state}>"

    # Callbacks of the transport (`transport.ByteHandler`); `data_received` is in the base class

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        if self.is_refused is not None and self.is_refused(transport):
            self.recorder = None  # nothing is recorded of a peer that is refused
        if self.recorder is not None:
            self.transport = self.recorder.begin(self.transport)
        self.peer_identity = identity_of(transport)
        stop_tls_read_ahead(transport)
        self.socket_writer.fd = raw_socket_fd(self.transport)
        self.busy_poller.min_rtt_ns = functools.partial(min_rtt_ns, transport)
        # asyncio's transport copies what the socket does not take. With direct writes any such
        # remainder pauses writing, so that it is copied once at most.
        self.transport.set_write_buffer_limits(
            high=WRITE_HIGH_WATER_BYTES if self.socket_writer.fd < 0 else 0
        )
        self.endpoint.now = int(self.runtime.time() * 1e9)
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
            complete = self.endpoint.finish()
            text = self._transport_info(EXTRA_END_DESCRIPTION) or "the peer closed the connection"
            text = f"{text}{'' if complete else ' in the middle of a frame'}{early_end_hint(self)}"
            if not complete and self.failure is None:
                self.failure = SessionClosed(text)
            closed = ClosedHere(text) if self.shutdown.started else SessionClosed(text)
            self._end_receiving(closed, can_reply=complete)
            self.flush()
        return self.shutdown.on_peer_eof() and self.failure is None

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.failure is None and not self.shutdown.started:
            hint = tls_refusal_hint(self)
            text = f"the connection was lost: {describe_os_error(error)}{hint}"
            self.failure = SessionClosed(text)
            self.close_reason = self.failure
        closed = SessionClosed("the connection was closed")
        if self.shutdown.started:
            closed = ClosedHere(f"{self} is closed")
        self._end_receiving(self.failure or self.close_reason or closed)
        self.read_backpressure.stop()
        self._excess_streams.stop()
        self._timeout_monitor.stop()
        self.shutdown.on_connection_lost()
        if self.meter is not None:
            self.meter.ended(self)
        self.on_connection_made = None
        self.is_refused = None
        release_references(self, self.accept_queue)
        if self.recorder is not None:
            self.recorder.closed(error)
        resolve(self.closed)
        schedule_trim(self.runtime.time(), self.runtime.call_later)

    def pause_writing(self) -> None:
        self.socket_writer.blocked = True

    def resume_writing(self) -> None:
        self.socket_writer.blocked = False
        self.schedule_flush()

    # Private helpers

    def _on_peer_error(self, problem: PolymuxError) -> None:
        """End the session because of what the peer sent.

        A child process gets a moment to exit first, because its exit status belongs to the error.
        """
        child = self._transport_info(EXTRA_CHILD_PROCESS)
        if child is not None and isinstance(problem, SessionClosed):
            self.shutdown.defer_failure(problem, child)
        else:
            self.fail(problem)

    def _transport_info(self, name: str) -> Any:
        return None if self.transport is None else transport_info(self.transport, name)
