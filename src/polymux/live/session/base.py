# mypyc: compiled
"""The synchronous half of a session: received data, stream events, flushes and the end.

Every received chunk and every write passes through here, so the module is compiled. What has to
wait (opening, accepting, closing) and the other callbacks of the transport are in
`session.Session`, which is interpreted: mypyc cannot give a compiled coroutine the introspection
that asyncio's tools expect.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from mypy_extensions import mypyc_attr

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation, PolymuxError, SessionClosed
from polymux.core.events import Aborted, Accepted, Closed, Control, Credit, Ended, Event, Opened
from polymux.core.limits import Timeouts
from polymux.core.rules import Origin
from polymux.core.send_scheduler import check_weight
from polymux.core.side import NEITHER_SIDE
from polymux.core.streams import ABANDONED, ABORTED, StreamState
from polymux.live.arguments import check_stream_window, encode_name
from polymux.live.errors import ClosedHere, as_session_closed, copy_of, limit_notice, printable
from polymux.live.hooks import SessionRecorder
from polymux.live.runtime import Runtime, resolve
from polymux.live.session.accept_queue import AcceptQueue
from polymux.live.session.assembly import Assembly
from polymux.live.session.busy_poll import NOTHING_SENT, BusyPoller
from polymux.live.session.excess_streams import ExcessStreams
from polymux.live.session.open_allowance import OpenAllowance
from polymux.live.session.open_rate import OpenRateLimiter
from polymux.live.session.open_waiters import OpenWaiters
from polymux.live.session.peer_diagnosis import explain_first_frame_error
from polymux.live.session.preamble import Preamble
from polymux.live.session.read_backpressure import ReadBackpressure
from polymux.live.session.send_waiters import SendWaiters
from polymux.live.session.shutdown import Shutdown
from polymux.live.session.socket_options import limit_unsent_bytes
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.session.wakeups import WakeupQueue
from polymux.live.streams.base import StreamBase, close_stream, wake_reader, wake_senders
from polymux.live.streams.duplex import Stream
from polymux.live.transport import Transport

if TYPE_CHECKING:
    from polymux.live.session.stream_tasks import StreamTaskRunner

log = logging.getLogger("polymux.aio")


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionBase:
    """The state and components of a session, and everything in it that never waits."""

    reset_discards_unread = True  # a reset by the peer discards what was received and not read
    pauses_at_stream_limit = True  # pause reading before rejecting a stream over a limit
    aborted_stream_weight = 1.0  # share of the open allowance that an aborted stream holds

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, runtime: Runtime, opens_per_second: float
    ) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.runtime = runtime
        self.peer: str = ""  # address or URL of the peer, for messages
        # Futures; Any, because in asyncio they are asyncio's own.
        self.ready: Any = runtime.create_future()  # handshake done, or closed
        self.closed: Any = runtime.create_future()  # the connection is gone
        self.transport: Transport | None = None
        self.recorder: SessionRecorder | None = None
        self.preamble: Preamble | None = None  # None once it has been exchanged
        self.close_reason: SessionClosed | None = None  # why nothing more will be received
        self.failure: SessionClosed | None = None  # why the session ended, unless in good order
        # What `create_stream` makes of a stream of this side, and of one of the peer:
        self._own_stream_class: Callable[[SessionBase, StreamState], Stream] = Stream
        self._peer_stream_class: Callable[[SessionBase, StreamState], Stream] = Stream
        # Whether the session class of the protocol does it in its own way:
        self._handles_events = type(self)._handle_event is not SessionBase._handle_event
        self._removes_streams = type(self).remove_if_finished is not SessionBase.remove_if_finished
        # Whether it wants the hooks of these names, and queued data to be sent at a message's end:
        self._wants_message_ends = False
        self._wants_closed = False
        self._resumes_at_message_end = False
        self.streams: dict[StreamState, Stream] = {}  # open, or closed with unread data
        self.peer_stream_count: int = 0  # of these, how many the peer opened
        self.stream_task_runner: StreamTaskRunner | None = None
        self._unsent_bytes_limited = False  # see `limit_unsent_bytes`
        self.open_allowance = OpenAllowance(
            runtime, endpoint.limits.max_own_streams, endpoint.limits.open_reset_rate
        )
        self.busy_poller = BusyPoller(runtime.poll_loop, 0)  # the factory sets its budget
        callbacks = WriterCallbacks(self)
        self.socket_writer = SocketWriter(
            endpoint,
            runtime.call_soon,
            callbacks.writable_transport,
            callbacks.after_write,
            callbacks.on_loop_iteration,
            self.busy_poller,
        )
        self.wakeup_queue = WakeupQueue(runtime, self.socket_writer)
        self.shutdown = Shutdown(self)
        self.accept_queue = AcceptQueue(self)
        self.assembly = Assembly(self)
        self.read_backpressure = ReadBackpressure(self, self.assembly)
        self.send_waiters = SendWaiters(endpoint.scheduler, self.socket_writer)
        self.open_waiters = OpenWaiters(self)
        self._open_rate_limiter = OpenRateLimiter(runtime, opens_per_second)
        self._excess_streams = ExcessStreams(
            self, self.accept_queue, self.read_backpressure, self.shutdown
        )

    def __str__(self) -> str:
        return f"{self.endpoint.protocol.name} session with {self.peer or 'an unknown peer'}"

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Process a received chunk, then resume the tasks it woke (see `wakeups`)."""
        if self.busy_poller.sent_at_ns != NOTHING_SENT:
            self.busy_poller.on_receive()
        self.wakeup_queue.begin()
        try:
            self._process_received(data)
        finally:
            self.wakeup_queue.settle()

    def _process_received(self, data: bytes) -> None:
        if self.recorder is not None:
            self._flush_before_read()
            self.recorder.read(data)
        if self.shutdown.io_stopped:
            return
        endpoint = self.endpoint
        try:
            if self.preamble is not None:
                data = self._exchange_preamble(self.preamble, data)
            handle_events(self, endpoint.receive(data, self.runtime.time()))
        except PolymuxError as problem:
            self._on_peer_error(explain_first_frame_error(self, problem, data))
            return
        receive_queue = endpoint.receive_queue
        if receive_queue.readable_streams:
            for state in receive_queue.readable_streams:
                if state.buffers is not None:
                    state.buffers.marked_readable = False
                    stream = self.streams.get(state)
                    if stream is None:
                        self._on_unclaimed_content(state)
                    else:
                        wake_reader(stream)
            receive_queue.readable_streams = []
        if receive_queue.held_bytes > receive_queue.held_threshold:
            self.read_backpressure.update()
        if not self.ready.done():
            self.update_ready()

    def _flush_before_read(self) -> None:
        """Flush queued frames before processing received data, so that the recording never shows a
        frame after data its sender had not yet read."""
        transport = self.transport
        if transport is not None and not self.shutdown.io_stopped and not transport.is_closing():
            data = self.endpoint.data_to_send(0)
            if data:
                self.socket_writer.bytes_sent += len(data)
                transport.write(data)

    def _exchange_preamble(self, preamble: Preamble, data: bytes) -> bytes:
        """Process bytes of the preamble. Return those that follow it."""
        reply, rest = preamble.receive(data)
        if self.transport is not None:
            self.transport.write(reply)
        if preamble.done:
            self.preamble = None
            self.update_ready()
            self.schedule_flush()
        return rest

    def _handle_event(self, event: Event) -> None:
        """Called for each event. A session class that has its own does not need the base class."""
        handle_event(self, event)

    # Streams

    def _on_excess_stream(self, state: StreamState, limit: str) -> None:
        """Hold a stream of the peer that exceeds a limit, or reject it."""
        endpoint = self.endpoint
        endpoint.counters.count(limit)
        if self._excess_streams.try_hold(state, limit):
            return
        log.debug("%s: stream rejected: %s", self, endpoint.limits.describe(limit))
        endpoint.reject_stream(state, f"rejected: limit {limit}".encode())

    def _on_late_stream(self, state: StreamState) -> None:
        """Called when the peer opens a stream after this side has begun to close the session."""
        self.endpoint.abort(state)

    def exceeded_stream_limit(self) -> str:
        """Name the limit that one more stream of the peer would exceed; empty if there is room."""
        limits = self.endpoint.limits
        accept_queue = self.accept_queue
        if len(accept_queue) >= limits.accept_backlog:
            return "accept_backlog"
        admitted = self.peer_stream_count - len(accept_queue.excess)
        return "max_streams" if admitted >= limits.max_streams else ""

    def admit_stream(self, stream: Stream) -> None:
        """Hand a stream of the peer to the stream handlers or to the accept queue."""
        if self.stream_task_runner is None or not self.stream_task_runner.start(stream):
            self.accept_queue.put(stream)

    def reject_excess_stream(self, stream: Stream, limit: str) -> None:
        """Abort a stream that was held at a limit for `Timeouts.slow_reader` seconds."""
        stream.abort_with_reason("there was no room for it", f"rejected: limit {limit}")

    def waiting_to_open(self) -> int:
        """Return how many callers wait because this side has as many streams open as it may."""
        return len(self.open_allowance.waiters)

    def _open_if_possible(self, name: object, window: object, weight: object) -> Stream | None:
        """Open a stream if that is possible without waiting.

        Raises:
            ValueError, TypeError, LocalProtocolError, Unsupported: An argument is wrong.
        """
        # Of any type: the error of a compiled method would not name the argument.
        checked_weight = check_weight(weight)
        encoded = name if isinstance(name, bytes) else encode_name(name)
        checked_window = 0
        if not isinstance(window, int) or window != 0:
            checked_window = check_stream_window(self.endpoint.protocol, window)
        if (
            self.close_reason is not None
            or self.shutdown.started
            or self._open_rate_limiter.interval > 0
            or not self.ready.done()
            or not self.open_allowance.can_open()
        ):
            return None
        return self._open_now(encoded, checked_window, checked_weight)

    def _open_now(self, name: bytes, window: int, weight: int) -> Stream:
        stream = create_stream(self, self.endpoint.open(name, window, weight))
        self.open_allowance.on_stream_opened()
        if stream.state.serial >= 0:  # else its first content opens it
            self.socket_writer.schedule_or_flush()
        return stream

    def create_stream(self, state: StreamState) -> Stream:
        """Return a new stream object; the session has it until the stream is over."""
        return create_stream(self, state)

    def remove_if_finished(self, stream: StreamBase) -> None:
        """Forget a stream that is closed and has no unread data."""
        forget_if_finished(self, stream)

    def on_stream_released(self, stream: StreamBase) -> None:
        """Reuse what a stream held: it was aborted or closed."""
        remove_if_finished(self, stream)
        if self.read_backpressure.paused_at:
            self.read_backpressure.update()
        endpoint = self.endpoint
        if len(endpoint.scheduler.control_queue) > endpoint.limits.max_queued_replies // 2:
            self.flush()
        self.socket_writer.schedule_if_needed(
            self.close_reason is not None or self.shutdown.started
        )

    # Sending

    def schedule_flush(self) -> None:
        """Encode and write everything sendable, once in this event-loop iteration."""
        self.socket_writer.schedule_flush()

    def flush(self) -> None:
        """Encode and write everything sendable now."""
        self.socket_writer.flush()

    def _writable_transport(self) -> Transport | None:
        """Return the transport, or None while nothing may be written."""
        transport = self.transport
        held = self.shutdown.io_stopped or self.preamble is not None
        if held or transport is None or transport.is_closing():
            return None
        self.endpoint.now = int(self.runtime.time() * 1e9)
        return transport

    def _after_write(self) -> None:
        """Handle what a write changed: events, blocked streams, waiting senders, shutdown."""
        endpoint = self.endpoint
        if endpoint.receive_queue.events:
            handle_events(self, endpoint.take_events())
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

    # Ending

    def check_open(self) -> None:
        """Raise SessionClosed if the session is closed or closing."""
        if self.close_reason is not None:
            raise copy_of(self.close_reason)
        if self.shutdown.started:
            raise ClosedHere(f"{self} is closed")

    def fail(self, problem: PolymuxError) -> None:
        """End the session at once because of `problem`. The first problem becomes `failure`."""
        if self.closed.done():
            return
        problem = self.shutdown.first_failure(problem)
        if self.failure is None:
            self.failure = as_session_closed(problem)
            level = logging.WARNING if self._is_limit_error(problem) else logging.INFO
            log.log(level, "%s ends: %s", self, problem)
        self._end_receiving(self.failure)
        if self._notify_peer(problem):
            self.shutdown.close_transport_soon()
        else:
            self.shutdown.close_transport()

    def _notify_peer(self, problem: PolymuxError) -> bool:
        """Tell the peer why the session ends; True if that was handed to the transport."""
        return self._is_limit_error(problem) and self._send_limit_notice(limit_notice(problem))

    def _is_limit_error(self, problem: PolymuxError) -> bool:
        """Return whether a limit of this side, or a rule that enforces one, ends the session."""
        violation = self.endpoint.fatal_violation
        if isinstance(problem, PeerViolation):
            return violation is not None and violation.rule.origin is Origin.LIMIT
        return isinstance(problem, LimitExceeded)

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        """Record that no more data comes and wake every waiting call.

        With `can_reply`, streams that the peer has ended can still send.
        """
        if self.close_reason is None:
            self.close_reason = problem
        for stream in list(self.streams.values()):
            stream.on_connection_lost(problem, can_reply)
        excess = self.accept_queue.excess
        while excess:  # no more can come, so the limits no longer matter for these
            self.admit_stream(excess.popleft())
        self.accept_queue.wake_all()
        self.open_waiters.stop()
        resolve(self.ready)

    # Hooks for the protocols' session classes

    def update_ready(self) -> None:
        """Resolve `ready` once the handshake and the preamble are done."""
        if self.endpoint.protocol.handshake_done and self.preamble is None:
            resolve(self.ready)

    def _on_session_frame(self, event: Control) -> None:
        """Called for a frame of the peer that concerns no stream."""

    def _on_stream_frame(self, state: StreamState, event: Control) -> None:
        """Called for a frame of the peer that is about a stream, and no other event."""

    def _on_id_reused(self, state: StreamState) -> None:
        """Called when the peer has opened the id of a stream again before it was over."""

    def _on_message_end(self, stream: Stream) -> None:
        """Called, if `_wants_message_ends`, when the peer's half of a stream has ended."""

    def _on_stream_closed(self, stream: StreamBase) -> None:
        """Called, if `_wants_closed`, when both halves of a stream are over."""

    def _on_unclaimed_content(self, state: StreamState) -> None:
        """Called when content was received on a stream that has no stream object."""

    def on_stream_claimed(self, stream: Stream) -> None:
        """Called when the application takes a stream that the peer opened."""

    def is_held_back(self, stream: Stream) -> bool:
        """Return whether the stream still needs the peer's or our acceptance."""
        return False

    def _on_blocked_streams(self) -> None:
        """Called after a write that left streams with queued data and no send credit."""
        self.endpoint.scheduler.blocked_streams.clear()

    def _on_peer_error(self, problem: PolymuxError) -> None:
        """Called when received data ends the session."""
        self.fail(problem)

    def _send_limit_notice(self, text: str) -> bool:
        """Tell the peer which limit ends the session, where the protocol has a frame for it.

        Returns True if the notice was handed to the transport.
        """
        return False


# Functions, not methods: a compiled method that calls another one has to look for an override in
# interpreted subclasses each time.


def handle_events(session: SessionBase, events: list[Event]) -> None:
    if session._handles_events:
        for event in events:
            session._handle_event(event)
    else:
        for event in events:
            handle_event(session, event)


def handle_event(session: SessionBase, event: Event) -> None:
    """Let streams and allowances know what has happened."""
    state = event.stream
    kind = type(event)  # none has subclasses
    if state is None:
        if isinstance(event, Control):
            session._on_session_frame(event)
        return
    if kind is Opened:
        on_peer_opened(session, state)
        return
    stream = session.streams.get(state)
    if kind is Ended:  # a reader task finds the end by itself
        if session._resumes_at_message_end:
            session.endpoint.resume(state)
        if session._wants_message_ends and stream is not None:
            session._on_message_end(stream)
        return
    if kind is Closed:
        on_closed(session, state, stream)
        return
    if isinstance(event, Control):
        session._on_stream_frame(state, event)
    elif kind is Accepted:
        session.open_allowance.on_stream_accepted()
    if stream is None:  # it was rejected
        return
    if kind is Credit or kind is Accepted:
        session.endpoint.resume(state)
        wake_senders(stream)
    elif isinstance(event, Aborted):
        if session.accept_queue.discard(stream):
            stream.discard_unread()
        if event.text and stream.peer_half.state != ABORTED:  # this side aborts: a violation
            stream.abort_with_reason(f"the peer broke the protocol: {printable(event.text)}")
        else:
            stream.on_peer_abort(event.text)
        if state.ending == ABANDONED:
            session._on_id_reused(state)


def on_closed(session: SessionBase, state: StreamState, stream: Stream | None) -> None:
    """Both halves of a stream are over."""
    if state.opener == session.endpoint.side:
        session.open_allowance.on_stream_closed(state.accepted)
    if stream is None:  # it was rejected
        state.buffers = None
        return
    close_stream(stream)
    remove_if_finished(session, stream)
    if session._wants_closed:
        session._on_stream_closed(stream)


def on_peer_opened(session: SessionBase, state: StreamState) -> None:
    """Admit a stream that the peer opened, hold it, or reject it if a limit is exceeded."""
    endpoint = session.endpoint
    if state.opener == NEITHER_SIDE:
        create_stream(session, state)  # the application never gets it
        return
    name = state.name
    limit = ""
    if name is not None and len(name) > endpoint.protocol.max_name_bytes:
        limit = "max_name_bytes"
    elif session.accept_queue.excess:  # streams held earlier come first
        limit = session.exceeded_stream_limit() or "max_streams"
    else:
        limits = endpoint.limits
        if (
            session.peer_stream_count >= limits.max_streams
            or len(session.accept_queue) >= limits.accept_backlog
        ):
            limit = session.exceeded_stream_limit()
    if limit:
        session._on_excess_stream(state, limit)
    elif session.shutdown.started:
        session._on_late_stream(state)
    else:
        stream = create_stream(session, state)
        session.peer_stream_count += 1
        session.admit_stream(stream)


def create_stream(session: SessionBase, state: StreamState) -> Stream:
    own = state.opener == session.endpoint.side
    stream = (
        session._own_stream_class(session, state)
        if own
        else session._peer_stream_class(session, state)
    )
    session.streams[state] = stream
    if not session._unsent_bytes_limited and len(session.streams) > 1:
        session._unsent_bytes_limited = True
        limit_unsent_bytes(session.transport)
    return stream


def remove_if_finished(session: SessionBase, stream: StreamBase) -> None:
    if session._removes_streams:
        session.remove_if_finished(stream)
    else:
        forget_if_finished(session, stream)


def forget_if_finished(session: SessionBase, stream: StreamBase) -> None:
    state = stream.state
    if state.over and stream.buffers.unread_bytes == 0 and state in session.streams:
        del session.streams[state]
        state.buffers = None
        if state.opener == 1 - session.endpoint.side:
            session.peer_stream_count -= 1
            if session.accept_queue.on_stream_removed is not None:
                session.accept_queue.on_stream_removed()
        elif state.serial < 0:  # nothing of it was sent, so no event tells that it is closed
            session.open_allowance.on_stream_closed()
            if session._wants_closed:
                session._on_stream_closed(stream)


class WriterCallbacks:
    """The session's callbacks for its `SocketWriter`, through a weak reference.

    Bound methods of the session would keep it in a reference cycle with its writer.
    """

    def __init__(self, session: SessionBase) -> None:
        self.session_ref = ref(session)

    def writable_transport(self) -> Transport | None:
        session = self.session_ref()
        return None if session is None else session._writable_transport()

    def after_write(self) -> None:
        session = self.session_ref()
        if session is not None:
            session._after_write()

    def on_loop_iteration(self) -> None:
        session = self.session_ref()
        if session is None:
            return
        writer = session.socket_writer
        if writer.senders_waiting:  # the flush may make room for them
            session.wakeup_queue.begin()
            session.wakeup_queue.settle()
        else:
            writer.bytes_since_yield = 0
            writer.flush_pending()
