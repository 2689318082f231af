# mypyc: compiled
"""What passes through a session, both ways: every chunk and every stream comes along here."""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from polymux.aio.errors import printable
from polymux.aio.hooks import SessionRecorder, flush_before_read
from polymux.aio.session.busy_poll import BusyPoller, poll_loop_of
from polymux.aio.session.open_allowance import OpenAllowance
from polymux.aio.session.peer_diagnosis import explain_first_frame_error
from polymux.aio.session.shutdown import Shutdown, resolve
from polymux.aio.session.socket_options import limit_unsent_bytes
from polymux.aio.session.socket_writer import SocketWriter
from polymux.aio.session.wakeups import WakeupQueue
from polymux.aio.streams.base import StreamBase
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.events import Aborted, Accepted, Closed, Credit, Ended, Event, Opened
from polymux.core.limits import Timeouts
from polymux.core.streams import ABORTED
from polymux.core.streams import StreamState as Record

if TYPE_CHECKING:
    from polymux.aio.session.accept_queue import AcceptQueue
    from polymux.aio.session.excess_streams import ExcessStreams
    from polymux.aio.session.open_rate import OpenRateLimiter
    from polymux.aio.session.preamble import Preamble
    from polymux.aio.session.read_backpressure import ReadBackpressure
    from polymux.aio.session.send_waiters import SendWaiters
    from polymux.aio.session.session import Session
    from polymux.aio.session.stream_tasks import StreamTaskRunner

log = logging.getLogger("polymux.aio")


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionBase:
    """What passes through a session, both ways; `Session` has what its user may wait for."""

    reset_discards_unread = True  # does a reset by the peer take with it what was not read yet?
    pauses_at_stream_limit = (
        True  # does reading stop for a stream past a limit, before it is turned away?
    )
    aborted_stream_weight = 1.0  # what a stream that was given up takes of what may be opened

    accept_queue: "AcceptQueue"
    _excess_streams: "ExcessStreams"
    shutdown: Shutdown
    read_backpressure: "ReadBackpressure"
    send_waiters: "SendWaiters"
    _open_rate_limiter: "OpenRateLimiter"

    def __init__(self, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self.loop.create_future()  # handshaken, or over
        self.transport: asyncio.Transport | None = None
        self.recorder: SessionRecorder | None = None
        self.preamble: Preamble | None = None  # until it has been exchanged
        self.close_reason: SessionClosed | None = None  # why nothing more will come
        self.streams: dict[Record, Stream] = {}  # not over, or not read to the end
        self.peer_stream_count: int = 0  # how many of them the peer has opened
        self.stream_task_runner: StreamTaskRunner | None = None
        self.open_allowance = OpenAllowance(
            self.loop, endpoint.limits.max_own_streams, endpoint.limits.open_reset_rate
        )
        self.busy_poller = BusyPoller(poll_loop_of(self.loop), 0)  # the factory sets its budget
        self.socket_writer = SocketWriter(
            endpoint,
            self.loop.call_soon,
            self._writable_transport,
            self._after_write,
            self.busy_poller,
        )
        self.wakeup_queue = WakeupQueue(self.loop, self.socket_writer)

    # --- what has come

    def data_received(self, data: bytes) -> None:
        self.busy_poller.on_receive()
        wakings = self.wakeup_queue
        wakings.begin_receive()
        try:
            self._process_received(data)
        finally:
            wakings.end_receive()

    def _process_received(self, data: bytes) -> None:
        if self.recorder is not None:
            flush_before_read(as_session(self))
            self.recorder.read(data)
        if self.shutdown.io_stopped:
            return
        endpoint = self.endpoint
        try:
            if self.preamble is not None:
                data = self.preamble.exchange(as_session(self), data)
            for event in endpoint.receive(data, self.loop.time()):
                self._handle_event(event)
        except PolymuxError as problem:
            self._on_peer_error(explain_first_frame_error(as_session(self), problem, data))
            return
        inbox = endpoint.receive_queue
        if inbox.readable_streams:
            for record in inbox.readable_streams:
                if record.buffers is not None:
                    record.buffers.marked_readable = False
                    if record in self.streams:
                        self.streams[record].wake_reader()
            inbox.readable_streams = []
        if inbox.unread_bytes:
            self.read_backpressure.update()
        if not self.ready.done():
            self.update_ready()
        if endpoint.pending():
            self.socket_writer.schedule_flush()

    def _handle_event(self, event: Event) -> None:
        record = event.stream
        kind = type(event)  # none has subclasses
        if record is None or kind is Ended:  # who reads finds out by itself
            return
        if kind is Opened:
            self._on_peer_opened(record)
            return
        stream = self.streams.get(record)
        if kind is Closed and record.opener == self.endpoint.side:
            self.open_allowance.on_stream_closed()
        if stream is None:  # turned away
            if kind is Closed:
                record.buffers = None
        elif kind is Closed:
            stream.on_closed()
            self.remove_if_finished(stream)
        elif kind is Credit or kind is Accepted:
            self.endpoint.resume(record)
            if kind is Accepted:
                stream.wake_all()
            elif stream.waiting_senders:
                stream.wake_senders()
        elif isinstance(event, Aborted):
            if self.accept_queue.discard(stream):
                stream.discard_unread()
            if event.text and stream.peer_half.state != ABORTED:  # not by the peer: for what it did
                stream.abort_with_reason(f"the peer broke the protocol: {printable(event.text)}")
            else:
                stream.on_peer_abort(event.text)

    def _on_peer_opened(self, state: Record) -> None:
        """The peer opened a stream: take it, or turn it away when there are too many."""
        endpoint = self.endpoint
        limits = endpoint.limits
        if len(state.name or b"") > endpoint.protocol.max_name_bytes:
            over = "max_name_bytes"
        else:
            over = self.exceeded_stream_limit()
            if not over and self.accept_queue.excess:  # they have come first
                over = "max_streams"
        if over:
            endpoint.counters.count(over)
            if self._excess_streams.try_hold(state, over):
                return
            log.debug("%s: stream turned away: %s", self, limits.describe(over))
            endpoint.reject_stream(state, f"turned away: limit {over}".encode())
        elif self.shutdown.started:
            endpoint.abort(state)
        else:
            stream = self.create_stream(state)
            self.peer_stream_count += 1
            self.admit_stream(stream)

    def exceeded_stream_limit(self) -> str:
        """The limit that leaves no room for one more stream of the peer; empty if there is room."""
        limits = self.endpoint.limits
        arrivals = self.accept_queue
        if len(arrivals) >= limits.accept_backlog:
            return "accept_backlog"
        return (
            "max_streams"
            if self.peer_stream_count - len(arrivals.excess) >= limits.max_streams
            else ""
        )

    def admit_stream(self, stream: Stream) -> None:
        """A stream of the peer is there for the application."""
        if self.stream_task_runner is None or not self.stream_task_runner.start(stream):
            self.accept_queue.put(stream)

    def reject_excess_stream(self, stream: Stream, limit: str) -> None:
        """Refuse a stream for which room was waited for."""
        stream.abort_with_reason("there was no room for it", f"turned away: limit {limit}")

    def _can_open_now(self) -> bool:
        """Can a stream be opened at once?"""
        if (
            self.close_reason is not None
            or self.shutdown.started
            or self._open_rate_limiter.interval > 0
        ):
            return False
        return self.ready.done() and self.open_allowance.can_open()

    def _open_now(self, name: bytes, window: int) -> Stream:
        stream = self.create_stream(self.endpoint.open(name, window))
        self.open_allowance.on_stream_opened()
        self.socket_writer.schedule_or_flush()
        return stream

    def create_stream(self, state: Record) -> Stream:
        stream = Stream(as_session(self), state)
        self.streams[state] = stream
        if len(self.streams) == 2:
            limit_unsent_bytes(self.transport)
        return stream

    def remove_if_finished(self, stream: StreamBase) -> None:
        """A stream that is over and read to the end leaves nothing behind here."""
        record = stream.state
        if record.over and not stream.buffers.unread_bytes and record in self.streams:
            del self.streams[record]
            record.buffers = None
            if record.opener == 1 - self.endpoint.side:
                self.peer_stream_count -= 1
                if self.accept_queue.on_stream_removed is not None:
                    self.accept_queue.on_stream_removed()

    def on_stream_released(self, stream: StreamBase) -> None:
        """A stream was given up or closed: what it held is free again."""
        self.remove_if_finished(stream)
        if self.read_backpressure.paused_at:
            self.read_backpressure.update()
        if (
            len(self.endpoint.scheduler.control_queue)
            > self.endpoint.limits.max_queued_replies // 2
        ):
            self.flush()
        self.socket_writer.schedule_if_needed(
            self.close_reason is not None or self.shutdown.started
        )

    # --- what is to go

    def schedule_flush(self) -> None:
        """Form what may leave and hand it to the transport, once a turn of the loop."""
        self.socket_writer.schedule_flush()

    def flush(self) -> None:
        self.socket_writer.flush()

    def _writable_transport(self) -> asyncio.Transport | None:
        """The transport to write to now, if anything may be written."""
        transport = self.transport
        held = self.shutdown.io_stopped or self.preamble is not None
        if held or transport is None or transport.is_closing():
            return None
        self.endpoint.now = int(self.loop.time() * 1e9)
        return transport

    def _after_write(self) -> None:
        """What could leave has left: see what that changes."""
        endpoint = self.endpoint
        if endpoint.receive_queue.events:
            for event in endpoint.take_events():
                self._handle_event(event)
        if endpoint.scheduler.blocked_streams:
            self._on_blocked_streams()
        if self.socket_writer.senders_waiting:
            self.send_waiters.wake()
        if self.read_backpressure.paused_at:
            self.read_backpressure.update()
        if endpoint.pending():
            if not self.socket_writer.blocked:
                self.schedule_flush()
        elif self.close_reason is not None or self.shutdown.started:
            self.shutdown.check_done()

    def _on_blocked_streams(self) -> None:
        """Streams had something to send and no leave."""
        self.endpoint.scheduler.blocked_streams.clear()

    # --- where sessions differ

    def on_stream_claimed(self, stream: Stream) -> None:
        """Somebody is there for a stream that the peer has opened."""

    def is_held_back(self, stream: Stream) -> bool:
        """Does this stream still need the peer's or our acceptance?"""
        return False

    def update_ready(self) -> None:
        if self.endpoint.protocol.handshake_done and self.preamble is None:
            resolve(self.ready)

    def _on_peer_error(self, problem: PolymuxError) -> None:
        """What the peer has sent ends the session."""
        self.fail(problem)

    def fail(self, problem: PolymuxError) -> None:
        """End the session for a reason, at once. `Session` knows who has to be told."""
        raise NotImplementedError


def as_session(session: SessionBase) -> "Session":
    """There is no other kind."""
    return cast("Session", session)
