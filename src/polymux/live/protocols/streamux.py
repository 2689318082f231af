"""`StreamuxSession`: requests and replies in both directions, and keep-alives.

Ids may be few (each side announces its `id_bits`) and come back late: an id is free again when its
reply has arrived, and after a cancel only when the peer has acknowledged it. So there are two
queues for new requests: one for the number of open streams (`open_waiters`) and one for free ids
(`_id_waiters`). A wakeup in the latter stands for one id, which no other caller takes until the
waiter has run; a waiter that is cancelled passes it on.
"""

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

from polymux.core.endpoint import Endpoint
from polymux.core.errors import NoFreeIds, SessionClosed, Unsupported
from polymux.core.events import Control
from polymux.core.limits import Timeouts, TokenBucket
from polymux.core.send_scheduler import check_weight
from polymux.core.streams import StreamState
from polymux.live.arguments import (
    check_concurrent_handler,
    check_seconds,
    check_stream_window,
)
from polymux.live.errors import ClosedHere
from polymux.live.pending import Pending, pending
from polymux.live.protocols.streamux_calls import CallHandler, CallTaskRunner
from polymux.live.protocols.streamux_keepalive import Keepalive
from polymux.live.runtime import Future, Runtime, Timer, wait_done
from polymux.live.session.session import Session
from polymux.live.streams.base import StreamBase
from polymux.live.streams.duplex import BytesLike, Stream
from polymux.live.streams.exchanges import Call, Exchange, RequestTimedOut
from polymux.live.streams.fast_paths import try_send_whole
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import CANCEL_ACK

# Cancels are ordinary here: the limits on opened and reset streams are this much higher.
CANCEL_RATE_FACTOR = 10


class StreamuxSession(Session):
    """A session of requests and replies; each side may request and answer.

    While all ids are taken or `Limits.max_own_streams` requests are open, a new request waits. If
    no id can become free because the peer acknowledges no cancel, it raises NoFreeIds and
    `retiring` is set. At most `Limits.max_streams` calls of the peer are open at once: reading
    pauses until one of them ends, and calls that find no place within `Timeouts.slow_reader` are
    not answered.
    """

    aborted_stream_weight = 1 / CANCEL_RATE_FACTOR

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: Timeouts,
        runtime: Runtime,
        opens_per_second: float = 0.0,
    ) -> None:
        super().__init__(endpoint, timeouts, runtime, opens_per_second)
        assert isinstance(endpoint.protocol, Streamux)  # the session factory pairs the two
        self.protocol: Streamux = endpoint.protocol
        self._own_stream_class = Exchange
        self._peer_stream_class = Call
        self._resumes_at_message_end = True  # a reply that was given early is sent after its call
        self._reply_timers: dict[Call, Timer] = {}  # with `drops_expired_calls`
        limits = endpoint.limits
        endpoint.flood_guard.reset_bucket = TokenBucket(
            CANCEL_RATE_FACTOR * limits.open_reset_burst,
            CANCEL_RATE_FACTOR * limits.open_reset_rate,
        )
        self._keepalive = Keepalive(self)
        self._id_waiters: deque[Future[None]] = deque()  # callers that wait for a free id
        self._promised_ids = 0  # for callers that were woken and have not taken theirs yet
        self._pending_cancel_acks = 0  # cancels that the peer has not acknowledged
        self.retiring = False  # all ids are lost to unacknowledged cancels: reconnect

    # Requests

    async def request(
        self, data: BytesLike | AsyncIterable[BytesLike], *, timeout: float | None = None
    ) -> bytes:
        """Send a request and return the complete reply.

        If it times out or is cancelled, the request is cancelled at the peer too and a late reply
        is discarded.

        Args:
            data: The request, or an async iterable of its pieces.
            timeout: Seconds for everything, including the wait for a free id; 0 for no limit. None
                for the timeout this side has announced, counted from when the request begins.

        Raises:
            TimeoutError: No complete reply arrived in time.
            NoFreeIds: All ids were cancelled and the peer acknowledges none.
            LimitExceeded: The reply is larger than `Limits.max_message_bytes`.
            SessionClosed: The session has ended.
        """
        seconds = (
            self.protocol.timeout_seconds(self.endpoint.side)
            if timeout is None
            else check_seconds(timeout)
        )
        deadline = self.runtime.time() + seconds if seconds else 0.0
        if type(data) is not bytes and isinstance(data, AsyncIterable):
            return await self._request_piecewise(data, timeout)
        exchange = self._try_open()
        if exchange is None and timeout is None:
            exchange = await self.open()
            deadline = self.runtime.time() + seconds if seconds else 0.0
        elif exchange is None:
            try:
                async with self.runtime.timeout_at(deadline or None):
                    exchange = await self.open()
            except TimeoutError:
                raise reply_timeout_error(seconds) from None
        timer = self.runtime.call_at(deadline, exchange.on_timeout) if deadline else None
        try:
            if not try_send_whole(exchange, data):
                await exchange.send_message(data)
            return await exchange.read()
        except RequestTimedOut:
            raise reply_timeout_error(seconds) from None
        finally:
            if timer is not None:
                timer.cancel()
            exchange.release()

    async def _request_piecewise(
        self, data: AsyncIterable[BytesLike], timeout: float | None
    ) -> bytes:
        """Like `request`; the timeout also interrupts the iterable that produces the data."""
        seconds = self.protocol.timeout_seconds(self.endpoint.side) if timeout is None else timeout
        clock = self.runtime.timeout_at(self.runtime.time() + timeout if timeout else None)
        try:
            async with clock, self.exchange() as exchange:
                if timeout is None and seconds:
                    clock.reschedule(self.runtime.time() + seconds)
                await exchange.send_message(data)
                return await exchange.read()
        except TimeoutError:
            if not clock.expired():
                raise
            raise reply_timeout_error(seconds) from None

    def exchange(self, *, weight: int = 1) -> Pending[Exchange]:
        """Begin a request that is sent and read in steps; see `Exchange`. Waits for a free id.

        Args:
            weight: The request's share of the connection; see `Stream.weight`.
        """
        return self.open(weight=weight)

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0, weight: int = 1) -> Exchange:
        """Begin a request; wait while all ids are taken or too many requests are open.

        If cancelled, no id was taken.

        Args:
            name: Must be empty: Streamux has no stream names.
            window: Must be 0: Streamux has no windows.
            weight: The request's share of the connection; see `Stream.weight`.

        Raises:
            NoFreeIds: All ids were cancelled, and the peer has acknowledged none for
                `Timeouts.slow_reader` seconds.
            SessionClosed: The session has ended.
            Unsupported: A name was given.
            ValueError: The weight is out of range.
        """
        check_weight(weight)
        check_stream_window(self.protocol, window)
        if name:
            raise Unsupported("Streamux has no names: put the name into the request")
        if not self.ready.done():
            await wait_done(self.runtime, self.ready)
        self.check_open()
        if self._open_rate_limiter.interval:
            await self._wait_for_open_rate()
        if not self.open_allowance.can_open():
            await self.open_waiters.wait()
        queued = False
        while True:
            if queued or not (self._id_waiters or self._promised_ids):
                try:
                    exchange = cast(Exchange, self._open_now(b"", 0, weight))
                except NoFreeIds:
                    pass
                else:
                    if self._id_waiters and self.protocol.has_free_id(self.endpoint.side):
                        self._wake_id_waiter()
                    return exchange
            await self._wait_for_free_id(queued)
            queued = True
            self.check_open()

    def _try_open(self) -> Exchange | None:
        """Begin a request if that is possible without waiting."""
        if self._id_waiters or self._promised_ids:
            return None
        try:
            # cast: `create_stream` returns exchanges for streams that this side has opened.
            return cast(Exchange | None, self._open_if_possible(b"", 0, 1))
        except NoFreeIds:
            return None

    async def _wait_for_free_id(self, retrying: bool) -> None:
        waiter = self.runtime.create_future()
        self._wants_closed = True
        if retrying:  # another caller took the id that this one was woken for
            self._id_waiters.appendleft(waiter)
        else:
            self._id_waiters.append(waiter)
        try:
            while not waiter.done():
                deadline = self.runtime.time() + self.timeouts.slow_reader
                await wait_done(self.runtime, waiter, deadline)
                if not waiter.done() and self._all_ids_locked():
                    raise self._ids_exhausted_error()
        except BaseException:
            if waiter in self._id_waiters:
                self._id_waiters.remove(waiter)
            elif waiter.done():
                self._promised_ids -= 1
                self._wake_id_waiter()
            raise
        self._promised_ids -= 1

    def _all_ids_locked(self) -> bool:
        """Whether all ids of this side were cancelled and wait for the peer to acknowledge it."""
        self._allow_cancel_acks()
        return self._pending_cancel_acks > self.protocol.layout_of(self.endpoint.side).max_id

    def _ids_exhausted_error(self) -> NoFreeIds:
        self.retiring = True
        count = self._pending_cancel_acks
        bits = self.protocol.layout_of(self.endpoint.side).id_bits
        return NoFreeIds(
            f"all {count} ids of this side were cancelled, and the peer has acknowledged none for "
            f"{self.timeouts.slow_reader:g} s: use a new connection, or announce more than "
            f"id_bits={bits}"
        )

    def _wake_id_waiter(self) -> None:
        """An id has become free: wake the caller that has waited longest."""
        self.retiring = False
        while self._id_waiters:
            waiter = self._id_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self._promised_ids += 1
                return
        self._wants_closed = self.drops_expired_calls

    # Calls

    @property
    def calls(self) -> AsyncIterator[Call]:
        """Iterates over the calls of the peer, each with its first chunk, until the session
        ends."""
        return cast(AsyncIterator[Call], self.incoming)  # as `accept` returns them

    async def accept(self) -> Call:
        """Wait for the next call of the peer. If cancelled, it is left for the next `accept`."""
        # cast: only calls are queued, see `_on_peer_opened`.
        return cast(Call, await self.accept_queue.take())

    async def serve_calls(self, handler: CallHandler, *, max_concurrent: int = 64) -> None:
        """Run `handler(call)` in a task for every call of the peer, until the session ends.

        The task is cancelled when the peer cancels the call. An exception of the handler is logged
        and the call is dropped. A handler that returns without a reply sends an empty one.

        Args:
            handler: Coroutine function that takes a `Call`.
            max_concurrent: Calls handled at a time; others wait.

        Raises:
            SessionClosed: The session failed.
            RuntimeError: Another `serve_calls` runs on this session.
        """
        check_concurrent_handler(handler, max_concurrent)
        await CallTaskRunner(self, self.accept_queue, handler, max_concurrent).run()

    async def serve_streams(self, handler: CallHandler, *, max_concurrent: int = 1024) -> None:
        """The same as `serve_calls`."""
        await self.serve_calls(handler, max_concurrent=max_concurrent)

    # Keep-alives

    @property
    def keep_alive(self) -> float:
        """Send a keep-alive after this many seconds without sending; 0 sends none.

        The default is a third of the timeout that the peer has announced.
        """
        return self._keepalive.interval

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self._keepalive.interval = check_seconds(seconds)
        self._keepalive.update()

    @property
    def silence(self) -> float:
        """End the session after this many seconds without a byte from the peer; 0: never."""
        return self._keepalive.silence_timeout

    @silence.setter
    def silence(self, seconds: float) -> None:
        self._keepalive.silence_timeout = check_seconds(seconds)
        self._keepalive.update()

    def all_peer_ids_in_use(self) -> bool:
        """Whether the peer waits for a reply on every id; it then has none for a keep-alive."""
        side = 1 - self.endpoint.side
        return self.protocol.ids_in_use(side) > self.protocol.layout_of(side).max_id

    # Calls that take too long

    @property
    def drops_expired_calls(self) -> bool:
        """Whether calls are dropped when the timeout that the peer has announced has passed."""
        return self._wants_message_ends

    @drops_expired_calls.setter
    def drops_expired_calls(self, drops: bool) -> None:
        self._wants_message_ends = drops
        self._wants_closed = drops or bool(self._id_waiters)

    def stop_call(self, call: Call) -> None:
        """The call has failed: cancel the task that answers it, and its timer."""
        self._cancel_reply_timer(call)
        task = call.task
        if task is not None and task is not self.runtime.current_task():
            call.task = None
            task.cancel()

    def _cancel_reply_timer(self, call: Call) -> None:
        timer = self._reply_timers.pop(call, None)
        if timer is not None:
            timer.cancel()

    # Callbacks of the base class

    async def close(self) -> None:
        """Cancel the requests of this side, send what is queued, and close the connection."""
        if not self.shutdown.started and self.close_reason is None:
            for stream in list(self.streams.values()):
                if isinstance(stream, Exchange):
                    stream.set_error(ClosedHere(f"{self} is closed"))
                    stream.abort_with_reason("the session is closed")
        await super().close()

    def _process_received(self, data: bytes) -> None:
        if self._pending_cancel_acks or self.protocol.locked_keys:
            self._allow_cancel_acks()
        super()._process_received(data)
        if self._pending_cancel_acks:
            self._allow_cancel_acks()

    def _on_message_end(self, stream: Stream) -> None:
        timeout = self.protocol.timeout_seconds(1 - self.endpoint.side)
        if isinstance(stream, Call) and timeout:
            self._reply_timers[stream] = stream.start_reply_timer(timeout)

    def _on_stream_closed(self, stream: StreamBase) -> None:
        if isinstance(stream, Call):
            self._cancel_reply_timer(stream)
        else:
            self._wake_id_waiter()

    def _on_stream_frame(self, state: StreamState, event: Control) -> None:
        if event.kind == CANCEL_ACK:
            self._wake_id_waiter()

    def _on_excess_stream(self, state: StreamState, limit: str) -> None:
        """Hold a call that exceeds `Limits.max_streams`, or do not answer it."""
        endpoint = self.endpoint
        if self.shutdown.started:
            self._ignore_call(state)
            return
        endpoint.counters.count("max_streams")
        if not self._excess_streams.try_hold(state, "max_streams"):
            self._ignore_call(state)
            endpoint.flood_guard.charge_forced_abort(endpoint.now)

    def _on_late_stream(self, state: StreamState) -> None:
        self._ignore_call(state)  # it can no longer be answered

    def exceeded_stream_limit(self) -> str:
        """Only the number of open calls is limited: they need not be accepted to be open."""
        open_calls = self.peer_stream_count - len(self.accept_queue.excess)
        return "max_streams" if open_calls >= self.endpoint.limits.max_streams else ""

    def reject_excess_stream(self, stream: Stream, limit: str) -> None:
        cast(Call, stream).drop("there was no room for it")  # only calls are held back

    def _ignore_call(self, state: StreamState) -> None:
        """Discard a call that will not be answered, and what is still received of it."""
        if state.buffers is not None:
            self.endpoint.receive_queue.discard(state.buffers)
            state.buffers = None

    def forget_call(self, call: Call) -> None:
        """Remove a call without a reply. The peer frees its id after its own timeout."""
        record = call.state
        self.endpoint.scheduler.discard_outgoing(call.buffers)
        self.endpoint.receive_queue.discard(call.buffers)
        self.accept_queue.discard(call)
        if self.streams.pop(record, None) is not None:
            self.peer_stream_count -= 1
            if self.accept_queue.on_stream_removed is not None:
                self.accept_queue.on_stream_removed()
        record.buffers = None
        self.read_backpressure.update()

    def _allow_cancel_acks(self) -> None:
        """Exempt the acknowledgements that this side has caused from the limit on empty frames."""
        acks = self.protocol.locked_count(self.endpoint.side)
        more = acks - self._pending_cancel_acks
        self._pending_cancel_acks = acks
        bucket = self.endpoint.flood_guard.empty_frame_bucket
        bucket.burst += more
        bucket.tokens += max(0, more)
        self.endpoint.receive_queue.max_empty_per_chunk += more

    def is_held_back(self, stream: Stream) -> bool:
        """Whether the message is not ended yet; closing the session does not wait for it."""
        return not stream.buffers.end_queued

    def update_ready(self) -> None:
        was_ready = self.ready.done()
        super().update_ready()
        if self.ready.done() and not was_ready:
            self._keepalive.start()

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        super()._end_receiving(problem, can_reply)
        self._keepalive.stop()
        while self._id_waiters:
            self._wake_id_waiter()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._keepalive.stop()


def reply_timeout_error(seconds: float) -> TimeoutError:
    return TimeoutError(
        f"no reply within {seconds:g} s, the request was cancelled; allow more with timeout=..."
    )
