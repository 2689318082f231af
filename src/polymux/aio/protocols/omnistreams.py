"""omnistreams' own verbs: one-way streams with metadata, and control messages beside them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

from polymux.aio.arguments import check_window
from polymux.aio.errors import limit_notice, printable
from polymux.aio.pending import pending
from polymux.aio.session.accept_queue import IncomingStreams
from polymux.aio.session.session import Session
from polymux.aio.session.socket_writer import MIN_IMMEDIATE_WRITE_BYTES
from polymux.aio.session.stream_tasks import StreamHandler
from polymux.aio.streams.duplex import Stream
from polymux.aio.streams.messages import MessageReceiver, MessageSender
from polymux.aio.transports.websocket import fast_mask
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, NoFreeIds, PolymuxError, SessionClosed, Unsupported
from polymux.core.events import Aborted, Control, Event
from polymux.core.frames import Frame
from polymux.core.limits import Timeouts
from polymux.core.streams import StreamState as Record
from polymux.protocols.omnistreams.payloads import encode_json
from polymux.protocols.omnistreams.protocol import MAX_REQUEST_AMOUNT
from polymux.protocols.omnistreams.rules import CONTROL_MESSAGE

IDS_PER_SIDE = 256  # of one side; each is used again when its stream is over
DEFAULT_MAX_CONCURRENT = (
    512  # streams that `each` works on: with all that can wait, below Limits.max_streams
)
MIN_CONTROL_COST_BYTES = (
    256  # bytes that a control message counts for, however short: the object around it
)
CLEAN_CLOSE_CODES = (1000, 1001, 1005)  # normal, going away, no code given
CONTROL_OVERHEAD_BYTES = 8  # bytes around a control message, about
CLOSE_POLICY_VIOLATION = 1008  # the code of a close for going past a limit


class OmnistreamsSession(Session):
    """A session of one-way message streams.

    `open` gives a Sender, `incoming` and `accept` give Receivers; `window` is how many messages a
    Receiver keeps on order: 0 stands for 64, and up to 256 while they are small. Control messages
    wait in `controls` until they are read, within `Limits.session_buffer_bytes`.
    """

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, opens_per_second: float = 0.0
    ) -> None:
        super().__init__(endpoint, timeouts, opens_per_second)
        self.window = 0
        self.open_allowance.max_ids = IDS_PER_SIDE
        self._received_controls: deque[bytes] = deque()
        self._received_control_bytes = 0
        self._queued_control_bytes = 0  # bytes of control messages that wait to leave
        self._control_waiters: deque[asyncio.Future[None]] = deque()
        self._writable_waiters: list[asyncio.Future[None]] = []

    @pending
    async def open(self, metadata: object = b"", *, window: int = 0) -> MessageSender:
        """Open a stream that flows to the peer. Text is sent as UTF-8, other values as JSON.

        It needs no answer; messages wait for the peer's requests. While 256 streams of this side
        are open, or `Limits.max_own_streams`, it waits for one of them to end. NoFreeIds if all ids
        are taken by streams that were given up in silence (legacy numbering). If cancelled, no
        stream was opened.
        """
        if window:
            raise Unsupported("a Sender has no window: the peer asks for messages as it likes")
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
            record = self.endpoint.open(name)
        except NoFreeIds:
            raise NoFreeIds(
                "every id is taken by a stream that is open, or that this side gave up and the "
                "peer still sends on: use a new connection"
            ) from None
        self.open_allowance.on_stream_opened()
        self.schedule_flush()
        return cast(MessageSender, self.create_stream(record))

    async def accept(self, *, window: int = 0) -> MessageReceiver:
        """The next stream the peer has opened; `window` messages are asked for, `self.window` if 0.

        Cancelled: the stream waits for the next call.
        """
        check_window(window or self.window, MAX_REQUEST_AMOUNT, "messages")
        receiver = await self.accept_queue.take()
        self.on_stream_claimed(receiver, window)
        return cast(MessageReceiver, receiver)

    @property
    def incoming(self) -> AsyncIterator[MessageReceiver]:
        """The streams the peer opens, as they come, until the session ends."""
        streams = IncomingStreams(self.accept, lambda: self.failure is not None)
        return cast(AsyncIterator[MessageReceiver], streams)

    async def serve_streams(
        self, handler: StreamHandler, *, max_concurrent: int = DEFAULT_MAX_CONCURRENT
    ) -> None:
        """Run `work(receiver)` for every stream the peer opens; see `Session.each`."""
        await super().serve_streams(handler, max_concurrent=max_concurrent)

    def on_stream_claimed(self, stream: Stream, window: int = 0) -> None:
        wanted = window or self.window
        self.endpoint.accept(stream.state, wanted)
        stream.buffers.window_may_grow = not wanted
        self.schedule_flush()

    # --- control messages

    async def control(self, message: object) -> None:
        """Send a control message. Text is sent as UTF-8, other values than bytes as JSON.

        Waits while the transport is full; if cancelled then, nothing was sent.
        """
        data = encode_value(message)
        endpoint = self.endpoint
        most = endpoint.protocol.max_control_bytes
        if len(data) > most:
            raise LimitExceeded(
                f"a control message of {len(data)} bytes: limit max_frame_bytes={most}; "
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
        """The peer's control messages, as they come, until the session ends."""
        return ControlMessages(self)

    async def receive_control(self) -> bytes:
        """The next control message. Cancelled: none was taken."""
        while not self._received_controls:
            self.check_open()
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._control_waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake_control_waiter()  # the message that woke this one is another's
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
                f"nobody reads the control messages: {limits.describe('session_buffer_bytes')}"
            )
        self._received_control_bytes = size
        self._received_controls.append(message)
        self._wake_control_waiter()

    # --- inside

    def create_stream(self, state: Record) -> Stream:
        kind = MessageSender if state.opener == self.endpoint.side else MessageReceiver
        stream = kind(self, state)
        self.streams[state] = stream
        return stream

    def _handle_event(self, event: Event) -> None:
        record = event.stream
        if record is None:
            if isinstance(event, Control) and event.kind == CONTROL_MESSAGE:
                self._on_control_message(event.text)
            return
        super()._handle_event(event)
        if isinstance(event, Aborted) and record.ending == "abandoned":
            self._on_id_reused(record)

    def _on_id_reused(self, state: Record) -> None:
        """The peer gave this stream's id to another: no message can name it any more."""
        stream = self.streams.pop(state, None)
        if stream is not None:
            self.peer_stream_count -= 1
            state.buffers = None

    async def _wait_writable(self) -> None:
        """Wait until what is formed now leaves before anything more is read."""
        if not self.ready.done():
            await asyncio.shield(self.ready)
        self.check_open()
        while self.socket_writer.blocked:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._writable_waiters.append(waiter)
            try:
                await waiter
            finally:
                self._writable_waiters.remove(waiter)
            self.check_open()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        mask = fast_mask()
        if self.endpoint.websocket is not None and mask is not None:
            self.endpoint.websocket.use_fast_mask(mask)
        super().connection_made(transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        wake_all(self._writable_waiters)

    def _process_received(self, data: bytes) -> None:
        if self.socket_writer.flush_scheduled:
            self.flush()  # what was formed before reading leaves before it
        super()._process_received(data)
        carrier = self.endpoint.websocket
        if carrier is not None and carrier.close_received and not self.shutdown.io_stopped:
            self._on_websocket_close(carrier.close_code, carrier.peer_close_reason)

    def _on_websocket_close(self, code: int, reason: str) -> None:
        """The peer closed the WebSocket: it is answered, and nothing more can pass."""
        why = f": {printable(reason.encode())}" if reason else ""
        problem = SessionClosed(f"the peer closed the WebSocket with code {code}{why}")
        if code not in CLEAN_CLOSE_CODES and self.failure is None and not self.shutdown.started:
            self.failure = problem
        self._end_receiving(problem)
        self.shutdown.close_transport()

    def eof_received(self) -> bool:
        carrier = self.endpoint.websocket
        if carrier is not None and not self.shutdown.io_stopped and self.failure is None:
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
    """Iterates over the peer's control messages; ends with the session, raises if that failed."""

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
    """Metadata or a control message: bytes as they are, text in UTF-8, all else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value.encode() if isinstance(value, str) else encode_json(value)


def wake_all(waiters: "list[asyncio.Future[None]] | deque[asyncio.Future[None]]") -> None:
    for waiter in list(waiters):
        if not waiter.done():
            waiter.set_result(None)
