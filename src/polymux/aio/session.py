"""One live connection: octets in and out, events to streams, deadlines, a clean end."""

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import cast

from ..core.endpoint import Endpoint
from ..core.errors import LimitExceeded, PolymuxError, SessionClosed
from ..core.events import Aborted, Accepted, Closed, Control, Credit, Ended, Event, Opened
from ..core.limits import Bucket, Policy
from ..core.streams import Stream as Record
from .duplex import Stream
from .pacing import Pacing

log = logging.getLogger("polymux.aio")

HIGH = 256 * 1024  # octets of content waiting to leave before senders wait
EAGER = 64 * 1024  # octets queued without waiting that are flushed at once
TICK = 1.0  # how often deadlines are looked at


class Session(asyncio.Protocol):
    """A connection with many streams. Made by `connect` and `serve`, not by hand.

    One reader and one writer; nothing is locked across an await. After `close`, or when the peer
    goes away, every waiting call ends with SessionClosed.
    """

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        self.endpoint = endpoint
        self.policy = policy
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.peer = ""
        self.failure: PolymuxError | None = None
        self.transport: asyncio.Transport | None = None
        self.when_made: Callable[[Session], None] | None = None  # a server takes it from there
        self._arrivals: deque[Stream] = deque()
        self._arrival_waiters: deque[asyncio.Future[None]] = deque()
        self._room_waiters: list[asyncio.Future[None]] = []
        self._live: dict[int, Stream] = {}
        self._flushing = False
        self._blocked_since = 0.0  # the transport takes nothing more since then
        self._closing = False
        self._eof = False
        self._pacing = Pacing(self)
        self._opener = Bucket(max(1, int(opens_per_second)), max(1, int(opens_per_second)))
        self._paced_opens = opens_per_second > 0
        self._resets = Bucket(endpoint.limits.open_reset_burst, endpoint.limits.open_reset_rate)
        self._timer: asyncio.TimerHandle | None = None
        self._begun = 0.0

    # --- what a user does

    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Open a stream to the peer. The protocols that offer streams wait until it is accepted."""
        await self._may_open()
        text = name.encode() if isinstance(name, str) else name
        record = self.endpoint.open(text, window)
        stream = self._adopt(record)
        self._flush_soon()
        return stream

    @property
    def incoming(self) -> AsyncIterator[Stream]:
        """The streams the peer opens, as they come, until the session ends."""
        return self._incoming()

    async def _incoming(self) -> AsyncIterator[Stream]:
        while True:
            try:
                yield await self.accept()
            except SessionClosed:
                if self.failure is not None:
                    raise
                return

    async def accept(self) -> Stream:
        """The next stream the peer has opened. Cancelled: the stream waits for the next call."""
        while not self._arrivals:
            self._check_open()
            waiter = self.loop.create_future()
            self._arrival_waiters.append(waiter)
            try:
                await waiter
            finally:
                if waiter in self._arrival_waiters:
                    self._arrival_waiters.remove(waiter)
        return self._arrivals.popleft()

    async def close(self) -> None:
        """Let what is queued leave (within the policy's time), then end the connection."""
        self._closing = True
        try:
            async with asyncio.timeout(self.policy.close):
                while self.endpoint.pending() and not self.closed.done():
                    self._flush()
                    if self.endpoint.pending():
                        await self._room()
        except TimeoutError:
            log.warning("%s: closed with data that could not be sent", self)
        if self.transport is not None:
            self.transport.close()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Wait for the end of the connection, whoever ends it."""
        await asyncio.shield(self.closed)

    def abort(self, reason: str = "this side gave the session up") -> None:
        """End the connection at once; nothing more is sent."""
        self._fail(SessionClosed(reason))

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            await self.close()
        else:
            self.abort("the block that used the session raised an error")
            await self.wait_closed()

    def __str__(self) -> str:
        return f"{self.endpoint.protocol.name} session with {self.peer or 'nobody yet'}"

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._begun = self.loop.time()
        self.endpoint.now = int(self._begun * 1e9)
        self.transport.set_write_buffer_limits(high=HIGH)
        self.endpoint.start(os.urandom(16))
        self._flush()
        self._settle_ready()
        self._timer = self.loop.call_later(TICK, self._tick)
        if self.when_made is not None:
            self.when_made(self)

    def data_received(self, data: bytes) -> None:
        try:
            events = self.endpoint.receive(data, self.loop.time())
            for event in events:
                self._handle(event)
        except PolymuxError as problem:
            self._fail(problem)
            return
        inbox = self.endpoint.inbox
        if inbox.ready:
            for lane in inbox.ready:
                lane.noted = False
                owner = lane.owner
                if isinstance(owner, Stream):
                    owner._wake()
            inbox.ready.clear()
            self._pacing.look()
        self._settle_ready()
        if self.endpoint.outbox.control or self.endpoint.pending():
            self._flush_soon()

    def eof_received(self) -> bool:
        self._eof = True
        whole = self.endpoint.finish()
        text = "the peer closed the connection" + ("" if whole else " in the middle of a frame")
        self._lose(SessionClosed(text))
        return False

    def connection_lost(self, error: Exception | None) -> None:
        text = f"the connection was lost: {error}" if error else "the connection was closed"
        self._lose(self.failure or SessionClosed(text))
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    def pause_writing(self) -> None:
        self._blocked_since = self.loop.time()

    def resume_writing(self) -> None:
        self._blocked_since = 0.0
        self._flush_soon()

    # --- between the two

    def _handle(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        if isinstance(event, Opened):
            self._arrived(record)
            return
        stream = self._live.get(record.serial)
        if isinstance(event, Credit | Accepted):
            self.endpoint.resume(record)
            if stream is not None:
                stream._accepted()
                stream._wake_writers()
        elif isinstance(event, Aborted):
            if stream is not None:
                stream._aborted(event.text)
            if record.opener != self.endpoint.side and not self._resets.take(self.loop.time()):
                limits = self.endpoint.limits
                self.endpoint.counters.count("open_reset")
                raise LimitExceeded(
                    "the peer opens and gives up streams too fast: "
                    + limits.describe("open_reset_burst")
                )
        elif isinstance(event, Closed):
            self._live.pop(record.serial, None)
        elif isinstance(event, Ended | Control):
            pass  # the reader is woken through its lane; duties are paid by the endpoint

    def _arrived(self, record: Record) -> None:
        """The peer opened a stream: take it, or turn it away when there are too many."""
        limits = self.endpoint.limits
        theirs = sum(1 for s in self._live.values() if s.record.opener != self.endpoint.side)
        over = "pending" if len(self._arrivals) >= limits.pending else ""
        over = "streams" if theirs >= limits.streams else over
        if over:
            self.endpoint.counters.count(over)
            self.endpoint.abort(record, f"too many streams ({over})".encode())
            return
        self._arrive(self._adopt(record))

    def _arrive(self, stream: Stream) -> None:
        self._arrivals.append(stream)
        while self._arrival_waiters:
            waiter = self._arrival_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def _adopt(self, record: Record) -> Stream:
        stream = Stream(self, record)
        self._live[record.serial] = stream
        return stream

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Form what may leave now and hand it to the transport, once a loop turn."""
        self._flushing = False
        transport = self.transport
        if transport is None or transport.is_closing() or self._blocked_since:
            return
        chunks = self.endpoint.outbox.flush(int(self.loop.time() * 1e9), HIGH)
        if len(chunks) == 1:
            transport.write(chunks[0])
        elif chunks:
            transport.writelines(chunks)
        if self._room_waiters and self.endpoint.outbox.queued < HIGH:
            self._wake_room()
        if self.endpoint.pending() and not self._blocked_since:
            self._flush_soon()

    def _wake_room(self) -> None:
        waiters = self._room_waiters
        self._room_waiters = []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _room(self) -> None:
        """Wait until something has left."""
        waiter = self.loop.create_future()
        self._room_waiters.append(waiter)
        self._flush_soon()
        await waiter

    async def _may_open(self) -> None:
        await asyncio.shield(self.ready)
        self._check_open()
        while self._paced_opens and not self._opener.take(self.loop.time()):
            await asyncio.sleep(1 / self._opener.rate)
            self._check_open()

    def _check_open(self) -> None:
        if self.failure is not None:
            raise type(self.failure)(str(self.failure))
        if self._closing or self.closed.done() or self._eof:
            raise SessionClosed(f"{self} is closed")

    def _settle_ready(self) -> None:
        if self.endpoint.protocol.handshaken and not self.ready.done():
            self.ready.set_result(None)

    def _fail(self, problem: PolymuxError) -> None:
        """End the session for a reason; what was formed already (an answer) still leaves."""
        if self.failure is None:
            self.failure = problem
            log.info("%s ends: %s", self, problem)
        self._lose(problem)
        if self.transport is not None:
            self.transport.abort()

    def _lose(self, problem: PolymuxError) -> None:
        """No more will come: everybody who waits is told."""
        self._eof = True
        for stream in list(self._live.values()):
            stream._lost(problem)
        for waiter in self._arrival_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._wake_room()
        if not self.ready.done():
            self.ready.set_exception(problem)
            self.ready.exception()  # somebody may or may not be waiting for it

    def _tick(self) -> None:
        """Deadlines: the handshake, an unfinished frame, a peer that takes nothing."""
        now = self.loop.time()
        self._timer = self.loop.call_later(TICK, self._tick)
        policy = self.policy
        waiting = self.endpoint.conversation.direction(1 - self.endpoint.side)
        if not self.ready.done() and now - self._begun > policy.handshake:
            self._fail(SessionClosed(f"no handshake within {policy.handshake:g} s"))
        elif waiting.pending and now - int(waiting.at) * 1e-9 > policy.header:
            self._fail(SessionClosed(f"a frame was left unfinished for {policy.header:g} s"))
        elif self._blocked_since and now - self._blocked_since > policy.write:
            self._fail(SessionClosed(f"the peer took nothing for {policy.write:g} s"))
        else:
            self._pacing.tick(now)
