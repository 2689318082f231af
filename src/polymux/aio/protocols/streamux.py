"""Streamux's own verbs: requests and their replies, calls and their answers, signs of life."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

from polymux.aio.arguments import check_concurrent_handler, check_stream_window
from polymux.aio.arguments import check_seconds as seconds_of
from polymux.aio.pending import Pending, pending
from polymux.aio.protocols.streamux_calls import CallHandler, CallTaskRunner
from polymux.aio.protocols.streamux_keepalive import Keepalive
from polymux.aio.session.session import Session
from polymux.aio.streams.duplex import BytesLike, Stream
from polymux.aio.streams.exchanges import Call, Exchange, ExchangeStream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import NoFreeIds, PolymuxError, SessionClosed, Unsupported
from polymux.core.events import Closed, Control, Ended, Event, Opened
from polymux.core.limits import Timeouts, TokenBucket
from polymux.core.streams import StreamState as Record
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import CANCEL_ACK

CANCEL_RATE_FACTOR = (
    10  # cancels are everyday here: so many times what other protocols may open and reset
)


class StreamuxSession(Session):
    """A session of requests and replies; each side may ask and answer.

    When all ids are taken, or `Limits.max_own_streams` requests are under way, asking waits until one
    is over; NoFreeIds, and `retiring`, if no id can become free because the peer acknowledges no
    cancel. At most `Limits.max_streams` of the peer's calls are kept at once: reading stops until one
    is over. Those for which there is no room within `Timeouts.slow_reader` are left unanswered.
    """

    aborted_stream_weight = 1 / CANCEL_RATE_FACTOR

    def __init__(
        self, endpoint: Endpoint, timeouts: Timeouts, opens_per_second: float = 0.0
    ) -> None:
        super().__init__(endpoint, timeouts, opens_per_second)
        assert isinstance(endpoint.protocol, Streamux)
        self.protocol: Streamux = endpoint.protocol
        self.drops_expired_calls = (
            False  # give calls up when the timeout that the peer announced is over?
        )
        limits = endpoint.limits
        endpoint.flood_guard.reset_bucket = TokenBucket(
            CANCEL_RATE_FACTOR * limits.open_reset_burst,
            CANCEL_RATE_FACTOR * limits.open_reset_rate,
        )
        self._keepalive = Keepalive(self)
        self._unsent_requests: set[Stream] = set()  # no byte has left yet
        self._id_waiters: deque[asyncio.Future[None]] = deque()  # who waits for a free id
        self._peer_ids_in_use = 0  # requests of the peer whose ids it cannot use again yet
        self._pending_cancel_acks = 0  # that the peer owes us
        self.retiring = False  # no id is left, and the peer gives none back: time to reconnect

    # --- asking

    async def request(
        self, data: BytesLike | AsyncIterable[BytesLike], *, timeout: float | None = None
    ) -> bytes:
        """Ask, and wait for the whole reply. `data` may be an async iterable: sent as it comes.

        `timeout` bounds everything, also waiting until the request can begin; None is what this
        side announced, from when it begins (0 or an announced 0: for ever). When it is over
        (TimeoutError), or if cancelled, the request is cancelled at the peer too and a late reply
        is dropped.
        """
        seconds = (
            self.protocol.timeout_seconds(self.endpoint.side)
            if timeout is None
            else seconds_of(timeout)
        )
        due = self.loop.time() + seconds if seconds else 0.0
        if type(data) is not bytes and isinstance(data, AsyncIterable):
            return await self._request_piecewise(data, timeout)
        exchange = self._try_open_now()
        if exchange is None and timeout is None:
            exchange = await self.open()
            due = self.loop.time() + seconds if seconds else 0.0
        elif exchange is None:
            try:
                async with asyncio.timeout_at(due or None):
                    exchange = await self.open()
            except TimeoutError:
                raise reply_timeout_error(seconds) from None
        timer = self.loop.call_at(due, exchange.on_timeout) if due else None
        try:
            await exchange.send_message(data)
            return await exchange.read()
        except PolymuxError:
            if exchange.timed_out:
                raise reply_timeout_error(seconds) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            await exchange.close()

    async def _request_piecewise(
        self, data: AsyncIterable[BytesLike], timeout: float | None
    ) -> bytes:
        """The clock also interrupts whoever makes the data."""
        seconds = self.protocol.timeout_seconds(self.endpoint.side) if timeout is None else timeout
        clock = asyncio.timeout(timeout or None)
        try:
            async with clock, self.exchange() as exchange:
                if timeout is None and seconds:
                    clock.reschedule(self.loop.time() + seconds)
                await exchange.send_message(data)
                return await exchange.read()
        except TimeoutError:
            if not clock.expired():
                raise
            raise reply_timeout_error(seconds) from None

    def exchange(self) -> Pending[Exchange]:
        """A request to send and a reply to read in steps; see Exchange. Waits for a free id."""
        return self.open()

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Exchange:
        """Begin a request; waits while all ids are taken, or `Limits.max_own_streams` are under way.

        If cancelled, no id was taken. NoFreeIds when all of them were cancelled and the peer has
        acknowledged none for as long as the policy lets a pause last.
        """
        check_stream_window(self.protocol, window)
        if name:
            raise Unsupported("Streamux has no names: what is asked goes into a request")
        if not self.ready.done():
            await asyncio.shield(self.ready)
        self.check_open()
        if self._open_rate_limiter.interval:
            await self._wait_for_open_rate()
        if not self.open_allowance.can_open():
            await self.open_waiters.wait()
        queued = False
        while True:
            if queued or not self._id_waiters:
                try:
                    return self._open_exchange()
                except NoFreeIds:
                    pass
            await self._wait_for_free_id(queued)
            queued = True
            self.check_open()

    def _open_exchange(self) -> Exchange:
        exchange = cast(Exchange, self.create_stream(self.endpoint.open()))
        self.open_allowance.on_stream_opened()
        return exchange

    def _try_open_now(self) -> Exchange | None:
        """Begin a request if nothing has to be waited for."""
        if self._id_waiters or self._open_rate_limiter.interval or not self.ready.done():
            return None
        self.check_open()
        if not self.open_allowance.can_open():
            return None
        try:
            return self._open_exchange()
        except NoFreeIds:
            return None

    async def _wait_for_free_id(self, retrying: bool) -> None:
        waiter = self.loop.create_future()
        if retrying:  # somebody quicker took the id this one was woken for
            self._id_waiters.appendleft(waiter)
        else:
            self._id_waiters.append(waiter)
        try:
            while not waiter.done():
                await asyncio.wait([waiter], timeout=self.timeouts.slow_reader)
                if not waiter.done() and self._all_ids_locked():
                    raise self._ids_exhausted_error()
        except asyncio.CancelledError:
            if waiter.done():
                self._wake_id_waiter()
            raise
        finally:
            if waiter in self._id_waiters:
                self._id_waiters.remove(waiter)

    def _all_ids_locked(self) -> bool:
        """Does every id of ours wait for the peer to acknowledge its cancel?"""
        self._allow_cancel_acks()
        return self._pending_cancel_acks > self.protocol.layout_of(self.endpoint.side).max_id

    def _ids_exhausted_error(self) -> NoFreeIds:
        self.retiring = True
        count = self._pending_cancel_acks
        bits = self.protocol.layout_of(self.endpoint.side).id_bits
        return NoFreeIds(
            f"all {count} ids of this side were cancelled, and the peer has acknowledged none for "
            f"{self.timeouts.slow_reader:g} s: use a new connection, or announce more than id_bits={bits}"
        )

    def _wake_id_waiter(self) -> None:
        """An id has become free."""
        self.retiring = False
        while self._id_waiters:
            waiter = self._id_waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    # --- answering

    @property
    def calls(self) -> AsyncIterator[Call]:
        """The requests of the peer, as their first chunks come, until the session ends."""
        return cast(AsyncIterator[Call], self.incoming)

    async def accept(self) -> Call:
        """The next call. Cancelled: it waits for the next `accept`."""
        return cast(Call, await self.accept_queue.take())

    async def serve_calls(self, handler: CallHandler, *, max_concurrent: int = 64) -> None:
        """Run `work(call)` for every call, each in a task of its own, until the session ends.

        The task is cancelled when the peer cancels the call. If `work` raises, that is logged and
        the call dropped; if it returns without an answer, the answer is empty. SessionClosed if
        the session did not end in good order.
        """
        check_concurrent_handler(handler, max_concurrent)
        await CallTaskRunner(self, handler, max_concurrent).run()

    async def serve_streams(self, handler: CallHandler, *, max_concurrent: int = 1024) -> None:
        """The same as `answer`."""
        await self.serve_calls(handler, max_concurrent=max_concurrent)

    # --- signs of life

    @property
    def keep_alive(self) -> float:
        """Seconds without sending after which a keep alive is sent; 0: none.

        A third of the peer's timeout until it is set.
        """
        return self._keepalive.interval

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self._keepalive.interval = seconds_of(seconds)
        self._keepalive.update()

    @property
    def silence(self) -> float:
        """Seconds without any byte from the peer after which the session ends; 0: never."""
        return self._keepalive.silence_timeout

    @silence.setter
    def silence(self, seconds: float) -> None:
        self._keepalive.silence_timeout = seconds_of(seconds)
        self._keepalive.update()

    def all_peer_ids_in_use(self) -> bool:
        """Does every id of the peer wait for us? Then it has none left for a keep alive."""
        return self._peer_ids_in_use > self.protocol.layout_of(1 - self.endpoint.side).max_id

    # --- inside

    async def close(self) -> None:
        """Cancel our requests that wait for a reply, let what is queued leave, and end."""
        if not self.shutdown.started and self.close_reason is None:
            for stream in list(self.streams.values()):
                if isinstance(stream, Exchange):
                    stream.set_error(SessionClosed(f"{self} is closed"))
                    stream.abort_with_reason("the session is closed")
        await super().close()

    def _process_received(self, data: bytes) -> None:
        self._keepalive.received_at = self.loop.time()
        super()._process_received(data)
        if self._pending_cancel_acks:
            self._allow_cancel_acks()

    def _handle_event(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        if isinstance(event, Opened):
            self._on_peer_opened(record)
            self._peer_ids_in_use += 1
        elif isinstance(event, Ended):
            message = self.streams.get(record)
            if isinstance(message, ExchangeStream):
                message.on_peer_end()
        else:
            super()._handle_event(event)
            if isinstance(event, Closed):
                if record.opener == self.endpoint.side:
                    self._wake_id_waiter()
                else:
                    self._peer_ids_in_use -= 1
            elif isinstance(event, Control) and event.kind == CANCEL_ACK:
                self._wake_id_waiter()

    def _on_peer_opened(self, state: Record) -> None:
        endpoint = self.endpoint
        if self.shutdown.started:
            self._ignore_call(state)  # no answer any more
        elif self.accept_queue.excess or self.exceeded_stream_limit():
            endpoint.counters.count("max_streams")
            if not self._excess_streams.try_hold(state, "max_streams"):
                self._ignore_call(state)
                endpoint.flood_guard.charge_forced_abort(endpoint.now)
        else:
            self.peer_stream_count += 1
            self.accept_queue.put(self.create_stream(state))

    def exceeded_stream_limit(self) -> str:
        """Calls wait for nobody's acceptance: only their number counts."""
        here = self.peer_stream_count - len(self.accept_queue.excess)
        return "max_streams" if here >= self.endpoint.limits.max_streams else ""

    def reject_excess_stream(self, stream: Stream, limit: str) -> None:
        cast(Call, stream).drop("there was no room for it")

    def _ignore_call(self, state: Record) -> None:
        """Nobody answers this call: what has come of it is let go, and what comes is not kept."""
        if state.buffers is not None:
            self.endpoint.receive_queue.discard(state.buffers)
            state.buffers = None

    def create_stream(self, state: Record) -> Stream:
        if state.opener != self.endpoint.side:
            call = Call(self, state)
            self.streams[state] = call
            return call
        exchange = Exchange(self, state)
        self._unsent_requests.add(exchange)
        self.streams[state] = exchange
        return exchange

    def forget_call(self, call: Call) -> None:
        """Forget a call without an answer. Its id is the peer's matter from now on."""
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

    def remove_if_finished(self, stream: Stream) -> None:
        if stream in self._unsent_requests:
            if stream.state.over:  # given up before anything had left
                self._unsent_requests.remove(stream)
                del self.streams[stream.state]
                self.open_allowance.on_stream_closed()
                self._wake_id_waiter()
        else:
            super().remove_if_finished(stream)

    def _after_write(self) -> None:
        super()._after_write()
        self._keepalive.note_sent(self.bytes_sent)
        for stream in list(self._unsent_requests):
            if stream.state.serial >= 0:
                self._unsent_requests.remove(stream)
        if self._pending_cancel_acks or self.protocol.locked_keys:
            self._allow_cancel_acks()

    def _allow_cancel_acks(self) -> None:
        """Acks that we asked for are not held against the peer as frames that carry nothing."""
        acks = self.protocol.locked_count(self.endpoint.side)
        more = acks - self._pending_cancel_acks
        self._pending_cancel_acks = acks
        bucket = self.endpoint.flood_guard.empty_frame_bucket
        bucket.burst += more
        bucket.tokens += max(0, more)
        self.endpoint.receive_queue.max_empty_per_chunk += more

    def is_held_back(self, stream: Stream) -> bool:
        """What was not ended is held back; a close does not wait for it."""
        return not stream.buffers.end_queued

    def update_ready(self) -> None:
        known = self.ready.done()
        super().update_ready()
        if self.ready.done() and not known:
            self._keepalive.start()

    def _end_receiving(self, problem: SessionClosed, can_reply: bool = False) -> None:
        super()._end_receiving(problem, can_reply)
        self._keepalive.stop()
        while self._id_waiters:
            self._wake_id_waiter()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._keepalive.stop()
        self._unsent_requests.clear()


def reply_timeout_error(seconds: float) -> TimeoutError:
    return TimeoutError(
        f"no reply within {seconds:g} s, the request was cancelled; allow more with timeout=..."
    )
