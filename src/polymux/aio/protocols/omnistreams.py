"""omnistreams' own verbs: one-way streams with metadata, and control messages beside them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

from polymux.aio.arguments import check_window
from polymux.aio.errors import last_words, plain
from polymux.aio.pending import pending
from polymux.aio.session.accept_queue import Incoming
from polymux.aio.session.session import Session
from polymux.aio.session.socket_writer import AT_ONCE
from polymux.aio.session.stream_tasks import Work
from polymux.aio.streams.duplex import Stream
from polymux.aio.streams.messages import Receiver, Sender
from polymux.aio.transports.websocket import quick_mask
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, NoFreeIds, PolymuxError, SessionClosed, Unsupported
from polymux.core.events import Aborted, Control, Event
from polymux.core.frames import Frame
from polymux.core.limits import Policy
from polymux.core.streams import Stream as Record
from polymux.protocols.omnistreams.payloads import json_octets
from polymux.protocols.omnistreams.rules import CONTROL_MESSAGE
from polymux.protocols.omnistreams.state import ASK_MAX

IDS = 256  # of one side; each is used again when its stream is over
AT_ONCE_READ = 512  # streams that `each` works on: with all that can wait, below Limits.streams
LEAST = 256  # octets that a control message counts for, however short: the object around it
CLEAN_CLOSES = (1000, 1001, 1005)  # normal, going away, no code given
FRAMING = 8  # octets around a control message, about
POLICY = 1008  # the code of a close for going past a limit


class OmnistreamsSession(Session):
    """A session of one-way message streams.

    `open` gives a Sender, `incoming` and `accept` give Receivers; `window` is how many messages a
    Receiver keeps on order: 0 stands for 64, and up to 256 while they are small. Control messages
    wait in `controls` until they are read, within `Limits.session_buffer`.
    """

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        super().__init__(endpoint, policy, opens_per_second)
        self.window = 0
        self._openings.ids = IDS
        self._controls: deque[bytes] = deque()
        self._control_octets = 0
        self._said = 0  # octets of control messages that wait to leave
        self._listeners: deque[asyncio.Future[None]] = deque()
        self._unblocking: list[asyncio.Future[None]] = []

    @pending
    async def open(self, metadata: object = b"", *, window: int = 0) -> Sender:
        """Open a stream that flows to the peer. Text is sent as UTF-8, other values as JSON.

        It needs no answer; messages wait for the peer's requests. While 256 streams of this side
        are open, or `Limits.own_streams`, it waits for one of them to end. NoFreeIds if all ids
        are taken by streams that were given up in silence (legacy numbering). If cancelled, no
        stream was opened.
        """
        if window:
            raise Unsupported("a Sender has no window: the peer asks for messages as it likes")
        name = as_octets(metadata)
        await self._until_writable()
        if self._spacing.gap:
            await self._pace()
            await self._until_writable()
        while not self._openings.free():
            await self._line.turn()
            if not self._leaving.blocked:
                break
            await self._until_writable()
        try:
            record = self.endpoint.open(name)
        except NoFreeIds:
            raise NoFreeIds(
                "every id is taken by a stream that is open, or that this side gave up and the "
                "peer still sends on: use a new connection"
            ) from None
        self._openings.begin()
        self._flush_soon()
        return cast(Sender, self._adopt(record))

    async def accept(self, *, window: int = 0) -> Receiver:
        """The next stream the peer has opened; `window` messages are asked for, `self.window` if 0.

        Cancelled: the stream waits for the next call.
        """
        check_window(window or self.window, ASK_MAX, "messages")
        receiver = await self._arrivals.take()
        self._take_in(receiver, window)
        return cast(Receiver, receiver)

    @property
    def incoming(self) -> AsyncIterator[Receiver]:
        """The streams the peer opens, as they come, until the session ends."""
        streams = Incoming(self.accept, lambda: self.failure is not None)
        return cast(AsyncIterator[Receiver], streams)

    async def each(self, work: Work, *, at_once: int = AT_ONCE_READ) -> None:
        """Run `work(receiver)` for every stream the peer opens; see `Session.each`."""
        await super().each(work, at_once=at_once)

    def _take_in(self, stream: Stream, window: int = 0) -> None:
        wanted = window or self.window
        self.endpoint.accept(stream.record, wanted)
        stream.lane.grows = not wanted
        self._flush_soon()

    # --- control messages

    async def control(self, message: object) -> None:
        """Send a control message. Text is sent as UTF-8, other values than octets as JSON.

        Waits while the transport is full; if cancelled then, nothing was sent.
        """
        data = as_octets(message)
        endpoint = self.endpoint
        most = endpoint.protocol.max_control
        if len(data) > most:
            raise LimitExceeded(
                f"a control message of {len(data)} octets: limit frame={most}; "
                "raise it with Limits(frame=...)"
            )
        await self._until_writable()
        if not endpoint.outbox.control:
            self._said = 0
        endpoint.outbox.control.append(Frame(CONTROL_MESSAGE, 0, data))
        self._said += FRAMING + len(data)
        if self._said >= AT_ONCE:
            self._flush()
        else:
            self._flush_soon()

    @property
    def controls(self) -> AsyncIterator[bytes]:
        """The peer's control messages, as they come, until the session ends."""
        return Controls(self)

    async def receive_control(self) -> bytes:
        """The next control message. Cancelled: none was taken."""
        while not self._controls:
            self._check_open()
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._listeners.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                self._wake_listener()  # the message that woke this one is another's
                raise
            finally:
                if waiter in self._listeners:
                    self._listeners.remove(waiter)
        message = self._controls.popleft()
        self._control_octets -= max(LEAST, len(message))
        if self._controls:
            self._wake_listener()
        return message

    def _wake_listener(self) -> None:
        while self._controls and self._listeners:
            waiter = self._listeners.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _heard(self, message: bytes) -> None:
        limits = self.endpoint.limits
        size = self._control_octets + max(LEAST, len(message))
        if size > limits.session_buffer:
            self.endpoint.counters.count("session_buffer")
            raise LimitExceeded(
                f"nobody reads the control messages: {limits.describe('session_buffer')}"
            )
        self._control_octets = size
        self._controls.append(message)
        self._wake_listener()

    # --- inside

    def _adopt(self, record: Record) -> Stream:
        kind = Sender if record.opener == self.endpoint.side else Receiver
        stream = kind(self, record)
        self._live[record] = stream
        return stream

    def _handle(self, event: Event) -> None:
        record = event.stream
        if record is None:
            if isinstance(event, Control) and event.kind == CONTROL_MESSAGE:
                self._heard(event.text)
            return
        super()._handle(event)
        if isinstance(event, Aborted) and record.ending == "abandoned":
            self._abandon(record)

    def _abandon(self, record: Record) -> None:
        """The peer gave this stream's id to another: no message can name it any more."""
        stream = self._live.pop(record, None)
        if stream is not None:
            self._theirs -= 1
            record.lane = None

    async def _until_writable(self) -> None:
        """Wait until what is formed now leaves before anything more is read."""
        if not self.ready.done():
            await asyncio.shield(self.ready)
        self._check_open()
        while self._leaving.blocked:
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._unblocking.append(waiter)
            try:
                await waiter
            finally:
                self._unblocking.remove(waiter)
            self._check_open()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        mask = quick_mask()
        if self.endpoint.carrier is not None and mask is not None:
            self.endpoint.carrier.quicken(mask)
        super().connection_made(transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        wake(self._unblocking)

    def _received(self, data: bytes) -> None:
        if self._leaving.given:
            self._flush()  # what was formed before reading leaves before it
        super()._received(data)
        carrier = self.endpoint.carrier
        if carrier is not None and carrier.ended and not self._ending.shut:
            self._hung_up(carrier.code, carrier.said)

    def _hung_up(self, code: int, said: str) -> None:
        """The peer closed the WebSocket: it is answered, and nothing more can pass."""
        why = f": {plain(said.encode())}" if said else ""
        problem = SessionClosed(f"the peer closed the WebSocket with code {code}{why}")
        if code not in CLEAN_CLOSES and self.failure is None and not self._ending.begun:
            self.failure = problem
        self._end(problem)
        self._ending.cut()

    def eof_received(self) -> bool:
        carrier = self.endpoint.carrier
        if carrier is not None and not self._ending.shut and self.failure is None:
            self.failure = SessionClosed("the peer ended the connection without a WebSocket close")
        return super().eof_received()

    def _fail(self, problem: PolymuxError) -> None:
        if isinstance(problem, LimitExceeded):
            self.endpoint.hang_up(POLICY, last_words(problem))
        super()._fail(problem)

    def _end(self, problem: SessionClosed, answers: bool = False) -> None:
        super()._end(problem, answers)
        wake(self._unblocking)
        wake(self._listeners)


class Controls:
    """Iterates over the peer's control messages; ends with the session, raises if that failed."""

    def __init__(self, session: OmnistreamsSession) -> None:
        self._session = session

    def __aiter__(self) -> "Controls":
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self._session.receive_control()
        except SessionClosed:
            if self._session.failure is not None:
                raise
            raise StopAsyncIteration from None


def as_octets(value: object) -> bytes:
    """Metadata or a control message: octets as they are, text in UTF-8, all else as JSON."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value.encode() if isinstance(value, str) else json_octets(value)


def wake(waiters: "list[asyncio.Future[None]] | deque[asyncio.Future[None]]") -> None:
    for waiter in list(waiters):
        if not waiter.done():
            waiter.set_result(None)
