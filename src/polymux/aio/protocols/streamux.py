"""Streamux's own verbs: requests and their replies, calls and their answers, signs of life."""

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator
from typing import cast

from polymux.aio.arguments import check_opening, check_work
from polymux.aio.arguments import seconds as seconds_of
from polymux.aio.pending import Pending, pending
from polymux.aio.protocols.streamux_calls import Answering, Worker
from polymux.aio.protocols.streamux_keepalive import Signs
from polymux.aio.session.session import Session
from polymux.aio.streams.duplex import Octets, Stream
from polymux.aio.streams.exchanges import Call, Exchange, Message
from polymux.core.endpoint import Endpoint
from polymux.core.errors import NoFreeIds, PolymuxError, SessionClosed, Unsupported
from polymux.core.events import Closed, Control, Ended, Event, Opened
from polymux.core.limits import Bucket, Policy
from polymux.core.streams import Stream as Record
from polymux.protocols.streamux.protocol import Streamux
from polymux.protocols.streamux.rules import CANCEL_ACK

CANCELS = 10  # cancels are everyday here: so many times what other protocols may open and reset


class StreamuxSession(Session):
    """A session of requests and replies; each side may ask and answer.

    When all ids are taken, or `Limits.own_streams` requests are under way, asking waits until one
    is over; NoFreeIds, and `retiring`, if no id can become free because the peer acknowledges no
    cancel. At most `Limits.streams` of the peer's calls are kept at once: reading stops until one
    is over. Those for which there is no room within `Policy.pause` are left unanswered.
    """

    given_up_weight = 1 / CANCELS

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        super().__init__(endpoint, policy, opens_per_second)
        assert isinstance(endpoint.protocol, Streamux)
        self.protocol: Streamux = endpoint.protocol
        self.preempts = False  # give calls up when the timeout that the peer announced is over?
        limits = endpoint.limits
        endpoint.guard.resets = Bucket(
            CANCELS * limits.open_reset_burst, CANCELS * limits.open_reset_rate
        )
        self._signs = Signs(self)
        self._unborn: set[Stream] = set()  # no octet has left yet
        self._askers: deque[asyncio.Future[None]] = deque()  # who waits for a free id
        self._asked = 0  # requests of the peer whose ids it cannot use again yet
        self._acks = 0  # that the peer owes us
        self.retiring = False  # no id is left, and the peer gives none back: time to reconnect

    # --- asking

    async def request(
        self, data: Octets | AsyncIterable[Octets], *, timeout: float | None = None
    ) -> bytes:
        """Ask, and wait for the whole reply. `data` may be an async iterable: sent as it comes.

        `timeout` bounds everything, also waiting until the request can begin; None is what this
        side announced, from when it begins (0 or an announced 0: for ever). When it is over
        (TimeoutError), or if cancelled, the request is cancelled at the peer too and a late reply
        is dropped.
        """
        seconds = (
            self.protocol.timeout(self.endpoint.side) if timeout is None else seconds_of(timeout)
        )
        due = self.loop.time() + seconds if seconds else 0.0
        if type(data) is not bytes and isinstance(data, AsyncIterable):
            return await self._request_piecewise(data, timeout)
        exchange = self._open_at_once()
        if exchange is None and timeout is None:
            exchange = await self.open()
            due = self.loop.time() + seconds if seconds else 0.0
        elif exchange is None:
            try:
                async with asyncio.timeout_at(due or None):
                    exchange = await self.open()
            except TimeoutError:
                raise too_late(seconds) from None
        timer = self.loop.call_at(due, exchange._expire) if due else None
        try:
            await exchange._send_whole(data)
            return await exchange.read()
        except PolymuxError:
            if exchange._expired:
                raise too_late(seconds) from None
            raise
        finally:
            if timer is not None:
                timer.cancel()
            await exchange.close()

    async def _request_piecewise(self, data: AsyncIterable[Octets], timeout: float | None) -> bytes:
        """The clock also interrupts whoever makes the data."""
        seconds = self.protocol.timeout(self.endpoint.side) if timeout is None else timeout
        clock = asyncio.timeout(timeout or None)
        try:
            async with clock, self.exchange() as exchange:
                if timeout is None and seconds:
                    clock.reschedule(self.loop.time() + seconds)
                await exchange._send_whole(data)
                return await exchange.read()
        except TimeoutError:
            if not clock.expired():
                raise
            raise too_late(seconds) from None

    def exchange(self) -> Pending[Exchange]:
        """A request to send and a reply to read in steps; see Exchange. Waits for a free id."""
        return self.open()

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Exchange:
        """Begin a request; waits while all ids are taken, or `Limits.own_streams` are under way.

        If cancelled, no id was taken. NoFreeIds when all of them were cancelled and the peer has
        acknowledged none for as long as the policy lets a pause last.
        """
        check_opening(self.protocol, window)
        if name:
            raise Unsupported("Streamux has no names: what is asked goes into a request")
        if not self.ready.done():
            await asyncio.shield(self.ready)
        self._check_open()
        if self._spacing.gap:
            await self._pace()
        if not self._openings.free():
            await self._line.turn()
        queued = False
        while True:
            if queued or not self._askers:
                try:
                    return self._begin()
                except NoFreeIds:
                    pass
            await self._free_id(queued)
            queued = True
            self._check_open()

    def _begin(self) -> Exchange:
        exchange = cast(Exchange, self._adopt(self.endpoint.open()))
        self._openings.begin()
        return exchange

    def _open_at_once(self) -> Exchange | None:
        """Begin a request if nothing has to be waited for."""
        if self._askers or self._spacing.gap or not self.ready.done():
            return None
        self._check_open()
        if not self._openings.free():
            return None
        try:
            return self._begin()
        except NoFreeIds:
            return None

    async def _free_id(self, again: bool) -> None:
        waiter = self.loop.create_future()
        if again:  # somebody quicker took the id this one was woken for
            self._askers.appendleft(waiter)
        else:
            self._askers.append(waiter)
        try:
            while not waiter.done():
                await asyncio.wait([waiter], timeout=self.policy.pause)
                if not waiter.done() and self._all_locked():
                    raise self._exhausted()
        except asyncio.CancelledError:
            if waiter.done():
                self._wake_asker()
            raise
        finally:
            if waiter in self._askers:
                self._askers.remove(waiter)

    def _all_locked(self) -> bool:
        """Does every id of ours wait for the peer to acknowledge its cancel?"""
        self._allow_acks()
        return self._acks > self.protocol.layout(self.endpoint.side).last_id

    def _exhausted(self) -> NoFreeIds:
        self.retiring = True
        count = self._acks
        bits = self.protocol.layout(self.endpoint.side).id_bits
        return NoFreeIds(
            f"all {count} ids of this side were cancelled, and the peer has acknowledged none for "
            f"{self.policy.pause:g} s: use a new connection, or announce more than id_bits={bits}"
        )

    def _wake_asker(self) -> None:
        """An id has become free."""
        self.retiring = False
        while self._askers:
            waiter = self._askers.popleft()
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
        return cast(Call, await self._arrivals.take())

    async def answer(self, work: Worker, *, at_once: int = 64) -> None:
        """Run `work(call)` for every call, each in a task of its own, until the session ends.

        The task is cancelled when the peer cancels the call. If `work` raises, that is logged and
        the call dropped; if it returns without an answer, the answer is empty. SessionClosed if
        the session did not end in good order.
        """
        check_work(work, at_once)
        await Answering(self, work, at_once).run()

    async def each(self, work: Worker, *, at_once: int = 1024) -> None:
        """The same as `answer`."""
        await self.answer(work, at_once=at_once)

    # --- signs of life

    @property
    def keep_alive(self) -> float:
        """Seconds without sending after which a keep alive is sent; 0: none.

        A third of the peer's timeout until it is set.
        """
        return self._signs.every

    @keep_alive.setter
    def keep_alive(self, seconds: float) -> None:
        self._signs.every = seconds_of(seconds)
        self._signs.look()

    @property
    def silence(self) -> float:
        """Seconds without any octet from the peer after which the session ends; 0: never."""
        return self._signs.silence

    @silence.setter
    def silence(self, seconds: float) -> None:
        self._signs.silence = seconds_of(seconds)
        self._signs.look()

    def _all_asked(self) -> bool:
        """Does every id of the peer wait for us? Then it has none left for a keep alive."""
        return self._asked > self.protocol.layout(1 - self.endpoint.side).last_id

    # --- inside

    async def close(self) -> None:
        """Cancel our requests that wait for a reply, let what is queued leave, and end."""
        if not self._ending.begun and self._over is None:
            for stream in list(self._live.values()):
                if isinstance(stream, Exchange):
                    stream._stop(SessionClosed(f"{self} is closed"))
                    stream.give_up("the session is closed")
        await super().close()

    def _received(self, data: bytes) -> None:
        self._signs.heard_at = self.loop.time()
        super()._received(data)
        if self._acks:
            self._allow_acks()

    def _handle(self, event: Event) -> None:
        record = event.stream
        if record is None:
            return
        if isinstance(event, Opened):
            self._arrived(record)
            self._asked += 1
        elif isinstance(event, Ended):
            message = self._live.get(record)
            if isinstance(message, Message):
                message._ended()
        else:
            super()._handle(event)
            if isinstance(event, Closed):
                if record.opener == self.endpoint.side:
                    self._wake_asker()
                else:
                    self._asked -= 1
            elif isinstance(event, Control) and event.kind == CANCEL_ACK:
                self._wake_asker()

    def _arrived(self, record: Record) -> None:
        endpoint = self.endpoint
        if self._ending.begun:
            self._pass_over(record)  # no answer any more
        elif self._arrivals.late or self._crowded():
            endpoint.counters.count("streams")
            if not self._crowd.takes(record, "streams"):
                self._pass_over(record)
                endpoint.guard.provoke(endpoint.now)
        else:
            self._theirs += 1
            self._arrivals.put(self._adopt(record))

    def _crowded(self) -> str:
        """Calls wait for nobody's acceptance: only their number counts."""
        here = self._theirs - len(self._arrivals.late)
        return "streams" if here >= self.endpoint.limits.streams else ""

    def _turn_away(self, stream: Stream, limit: str) -> None:
        cast(Call, stream).drop("there was no room for it")

    def _pass_over(self, record: Record) -> None:
        """Nobody answers this call: what has come of it is let go, and what comes is not kept."""
        if record.lane is not None:
            self.endpoint.inbox.drop(record.lane)
            record.lane = None

    def _adopt(self, record: Record) -> Stream:
        if record.opener != self.endpoint.side:
            call = Call(self, record)
            self._live[record] = call
            return call
        exchange = Exchange(self, record)
        self._unborn.add(exchange)
        self._live[record] = exchange
        return exchange

    def _leave(self, call: Call) -> None:
        """Forget a call without an answer. Its id is the peer's matter from now on."""
        record = call.record
        self.endpoint.outbox.drop(call.lane)
        self.endpoint.inbox.drop(call.lane)
        self._arrivals.discard(call)
        if self._live.pop(record, None) is not None:
            self._theirs -= 1
            if self._arrivals.relief is not None:
                self._arrivals.relief()
        record.lane = None
        self._pacing.look()

    def _forget(self, stream: Stream) -> None:
        if stream in self._unborn:
            if stream.record.over:  # given up before anything had left
                self._unborn.remove(stream)
                del self._live[stream.record]
                self._openings.over()
                self._wake_asker()
        else:
            super()._forget(stream)

    def _written(self) -> None:
        super()._written()
        self._signs.note(self.written)
        for stream in list(self._unborn):
            if stream.record.serial >= 0:
                self._unborn.remove(stream)
        if self._acks or self.protocol.locked:
            self._allow_acks()

    def _allow_acks(self) -> None:
        """Acks that we asked for are not held against the peer as frames that carry nothing."""
        acks = self.protocol.locked_by(self.endpoint.side)
        more = acks - self._acks
        self._acks = acks
        bucket = self.endpoint.guard.idle
        bucket.burst += more
        bucket.level += max(0, more)
        self.endpoint.inbox.most_idle += more

    def _is_offer(self, stream: Stream) -> bool:
        """What was not ended is held back; a close does not wait for it."""
        return not stream.lane.ending

    def _settle_ready(self) -> None:
        known = self.ready.done()
        super()._settle_ready()
        if self.ready.done() and not known:
            self._signs.start()

    def _end(self, problem: SessionClosed, answers: bool = False) -> None:
        super()._end(problem, answers)
        self._signs.stop()
        while self._askers:
            self._wake_asker()

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._signs.stop()
        self._unborn.clear()


def too_late(seconds: float) -> TimeoutError:
    return TimeoutError(
        f"no reply within {seconds:g} s, the request was cancelled; allow more with timeout=..."
    )
