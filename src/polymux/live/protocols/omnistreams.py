"""`OmnistreamsSession`: one-way message streams with metadata, and control messages.

Ids are reused as soon as a stream is over, so the order in which the peer sees frames matters:
queued frames are flushed before received data is processed, and opening a stream waits while the
transport is blocked.
"""

from collections import deque
from collections.abc import AsyncIterator
from typing import cast

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, NoFreeIds, PolymuxError, SessionClosed, Unsupported
from polymux.core.events import Control
from polymux.core.frames import Frame
from polymux.core.limits import Timeouts
from polymux.core.send_scheduler import check_weight
from polymux.core.streams import StreamState
from polymux.live.arguments import check_window
from polymux.live.errors import limit_notice, printable
from polymux.live.pending import pending
from polymux.live.runtime import Future, Runtime, wait_done
from polymux.live.session.accept_queue import IncomingStreams
from polymux.live.session.session import Session
from polymux.live.session.socket_writer import MIN_IMMEDIATE_WRITE_BYTES
from polymux.live.session.stream_tasks import StreamHandler
from polymux.live.streams.duplex import Stream
from polymux.live.streams.messages import MessageReceiver, MessageSender
from polymux.live.transport import Transport
from polymux.live.transports.websocket import fast_mask
from polymux.protocols.omnistreams.payloads import encode_json
from polymux.protocols.omnistreams.protocol import MAX_REQUEST_AMOUNT
from polymux.protocols.omnistreams.rules import CONTROL_MESSAGE

IDS_PER_SIDE = 256  # an id is used again when its stream is over
# Default of `serve_streams`: with a full accept queue still below the default Limits.max_streams.
DEFAULT_MAX_CONCURRENT = 512
MIN_CONTROL_COST_BYTES = 256  # what a short control message counts for: the objects around it
CLEAN_CLOSE_CODES = (1000, 1001, 1005)  # WebSocket close codes: normal, going away, no code
CONTROL_OVERHEAD_BYTES = 8  # approximate framing of a control message
CLOSE_POLICY_VIOLATION = 1008  # WebSocket close code sent when a limit was exceeded


class OmnistreamsSession(Session):
    """A session of one-way message streams.

    `open` returns a MessageSender, `incoming` and `accept` return MessageReceivers. `window` is the
    number of messages that a receiver requests ahead; 0, the default, stands for 64, and grows to
    256 while messages are small. Received control messages are kept until they are read; more than
    `Limits.session_buffer_bytes` of them end the session.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        self._own_stream_class = MessageSender
        self._peer_stream_class = MessageReceiver
        self.window = 0
        self.open_allowance.max_ids = IDS_PER_SIDE
        self._received_controls: deque[bytes] = deque()
        self._received_control_bytes = 0
        self._queued_control_bytes = 0  # bytes of control messages that wait to be sent
        self._control_waiters: deque[Future[None]] = deque()
        self._writable_waiters: list[Future[None]] = []

    @pending
    async def open(
        self, metadata: object = b"", *, window: int = 0, weight: int = 1
    ) -> MessageSender:
        """Open a stream to the peer.

        The peer does not have to accept it; messages wait until the peer requests them. While 256
        streams of this side are open, or `Limits.max_own_streams`, it waits for one of them to end.
        If cancelled, no stream was opened.

        Args:
            metadata: Sent with the opening: bytes as they are, text as UTF-8, other values as JSON.
            window: Must be 0: the receiver of a stream determines its window.
            weight: The stream's share of the connection; see `Stream.weight`.

        Raises:
            NoFreeIds: All ids belong to streams that this side aborted and the peer was not
                notified of (legacy numbering).
            SessionClosed: The session has ended.
            Unsupported: A window was given.
            ValueError: The weight is out of range.
        """
        check_weight(weight)
        if window:
            raise Unsupported(
                "a MessageSender has no window: the peer requests messages as it likes"
            )
        name = encode_value(metadata)
        await self._wait_writable()
        if self._open_rate_limiter.interval:
            await self._wait_for_open_rate()
            await self._wait_writable()
        while not self.open_allowance.can_open():
            await self.open_waiters.wait()
            if not self.socket_writer.blocked:
                break
            await self._wait_writable()
        try:
            record = self.endpoint.open(name, 0, weight)
        except NoFreeIds:
            raise NoFreeIds(
                "every id is taken by a stream that is open, or that this side aborted and the "
                "peer still sends on: use a new connection"
            ) from None
        self.open_allowance.on_stream_opened()
        self.schedule_flush()
        # cast: `create_stream` returns senders for streams that this side has opened.
        return cast(MessageSender, self.create_stream(record))

    async def accept(self, *, window: int = 0) -> MessageReceiver:
        """Wait for the next stream that the peer opens, and request its first messages.

        If cancelled, the stream is left for the next call.

        Args:
            window: Messages to request ahead; 0 for `self.window`.

        Raises:
            SessionClosed: The session has ended.
        """
        check_window(window or self.window, MAX_REQUEST_AMOUNT, "messages")
        receiver = await self.accept_queue.take()
        self.on_stream_claimed(receiver, window)
        return cast(MessageReceiver, receiver)  # the queue holds only streams of the peer

    @property
    def incoming(self) -> AsyncIterator[MessageReceiver]:
        """Iterates over the streams that the peer opens, until the session ends."""
        streams = IncomingStreams(self.accept, lambda: self.failure is not None)
        return cast(AsyncIterator[MessageReceiver], streams)  # as `accept` returns them

    async def serve_streams(
        self, handler: StreamHandler, *, max_concurrent: int = DEFAULT_MAX_CONCURRENT
    ) -> None:
        """Run `handler(receiver)` for every stream of the peer; see `Session.serve_streams`."""
        await super().serve_streams(handler, max_concurrent=max_concurrent)

    def on_stream_claimed(self, stream: Stream, window: int = 0) -> None:
        fixed_window = window or self.window
        self.endpoint.accept(stream.state, fixed_window)
        stream.buffers.window_may_grow = not fixed_window
        self.schedule_flush()

    # Control messages

    async def control(self, message: object) -> None:
        """Send a control message; wait while the transport is blocked.

        If cancelled while waiting, nothing was sent.

        Args:
            message: Bytes are sent as they are, text as UTF-8, other values as JSON.

        Raises:
            LimitExceeded: The message is larger than a frame may be.
            SessionClosed: The session has ended.
        """
        data = encode_value(message)
        endpoint = self.endpoint
        max_bytes = endpoint.protocol.max_control_bytes
        if len(data) > max_bytes:
            raise LimitExceeded(
                f"a control message of {len(data)} bytes: limit max_frame_bytes={max_bytes}; "
                "raise it with Limits(max_frame_bytes=...)"
            )
        await self._wait_writable()
        if not endpoint.scheduler.control_queue:
            self._queued_control_bytes = 0
        endpoint.scheduler.control_queue.append(Frame(CONTROL_MESSAGE, 0, data))
        self._queued_control_bytes += CONTROL_OVERHEAD_BYTES + len(data)
        if self._queued_control_bytes >= MIN_IMMEDIATE_WRITE_BYTES:
            self.flush()
        else:
            self.schedule_flush()

    @property
    def controls(self) -> AsyncIterator[bytes]:
        """Iterates over the control messages of the peer, until the session ends."""
        return ControlMessages(self)

    async def receive_control(self) -> bytes:
        """Wait for the next control message and return it. If cancelled, none was taken.

        Raises:
            SessionClosed: The session has ended.
        """
        while not self._received_controls:
            self.check_open()
            waiter: Future[None] = self.runtime.create_future()
            self._control_waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                self._wake_control_waiter()  # pass the wakeup on
                raise
            finally:
                if waiter in self._control_waiters:
                    self._control_waiters.remove(waiter)
        message = self._received_controls.popleft()
        self._received_control_bytes -= max(MIN_CONTROL_COST_BYTES, len(message))
        if self._received_controls:
            self._wake_control_waiter()
        return message

    def _wake_control_waiter(self) -> None:
        while self._received_controls and self._control_waiters:
            waiter = self._control_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _on_control_message(self, message: bytes) -> None:
        limits = self.endpoint.limits
        size = self._received_control_bytes + max(MIN_CONTROL_COST_BYTES, len(message))
        if size > limits.session_buffer_bytes:
            self.endpoint.counters.count("session_buffer_bytes")
            raise LimitExceeded(
                f"the control messages are not read: {limits.describe('session_buffer_bytes')}"
            )
        self._received_control_bytes = size
        self._received_controls.append(message)
        self._wake_control_waiter()

    # Callbacks of the base class

    def _on_session_frame(self, event: Control) -> None:
        if event.kind == CONTROL_MESSAGE:
            self._on_control_message(event.text)

    def _on_id_reused(self, state: StreamState) -> None:
        """Forget the stream: no frame can refer to it any more."""
        stream = self.streams.pop(state, None)
        if stream is not None:
            self.peer_stream_count -= 1
            state.buffers = None

    async def _wait_writable(self) -> None:
        """Wait until the transport is writable, so that a new frame is sent before more is read."""
        if not self.ready.done():
            await wait_done(self.runtime, self.ready)
        self.check_open()
        while self.socket_writer.blocked:
            waiter: Future[None] = self.runtime.create_future()
            self._writable_waiters.append(waiter)
            try:
                await waiter
            finally:
                self._writable_waiters.remove(waiter)
            self.check_open()

    def connection_made(self, transport: Transport) -> None:
        mask = fast_mask()
        if self.endpoint.websocket is not None and mask is not None:
            self.endpoint.websocket.use_fast_mask(mask)
        super().connection_made(transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        wake_all(self._writable_waiters)

    def _process_received(self, data: bytes) -> None:
        if self.socket_writer.flush_scheduled:
            self.flush()  # queued frames are sent before the new data is processed
        super()._process_received(data)
        websocket = self.endpoint.websocket
        if websocket is not None and websocket.close_received and not self.shutdown.io_stopped:
            self._on_websocket_close(websocket.close_code, websocket.peer_close_reason)

    def _on_websocket_close(self, code: int, reason: str) -> None:
        """The peer closed the WebSocket: answer it and end the session."""
        detail = f": {printable(reason.encode())}" if reason else ""
        problem = SessionClosed(f"the peer closed the WebSocket with code {code}{detail}")
        if code not in CLEAN_CLOSE_CODES and self.failure is None and not self.shutdown.started:
            self.failure = problem
        self._end_receiving(problem)
        self.shutdown.close_transport()

    def eof_received(self) -> bool:
        if (
            self.endpoint.websocket is not None
            and not self.shutdown.io_stopped
            and self.failure is None
        ):
            self.failure = SessionClosed("the peer ended the connection without a WebSocket close")
        return super().eof_received()

    def fail(self, problem: PolymuxError) -> None:
        if isinstance(problem, LimitExceeded):
            self.endpoint.close_websocket(CLOSE_POLICY_VIOLATION, limit_notice(problem))
        super().fail(problem)

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        super()._end_receiving(problem, can_reply)
        wake_all(self._writable_waiters)
        wake_all(self._control_waiters)


class ControlMessages:
    """Iterator of `OmnistreamsSession.controls`; raises SessionClosed if the session failed."""

    def __init__(self, session: OmnistreamsSession) -> None:
        self._session = session

    def __aiter__(self) -> "ControlMessages":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._session.receive_control()
        except SessionClosed:
            if self._session.failure is not None:
                raise
            raise StopAsyncIteration from None


def encode_value(value: object) -> bytes:
    """Encode metadata or a control message: bytes as they are, text as UTF-8, else JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value.encode() if isinstance(value, str) else encode_json(value)


def wake_all(waiters: "list[Future[None]] | deque[Future[None]]") -> None:
    for waiter in list(waiters):
        if not waiter.done():
            waiter.set_result(None)
