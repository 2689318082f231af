"""One live connection: octets in and out, events to streams, a clean end."""

import asyncio
import functools
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import cast

from polymux.aio.arguments import check_opening, check_work, octets_of_name
from polymux.aio.errors import again, closing, last_words, why
from polymux.aio.metering import Metering
from polymux.aio.pending import pending
from polymux.aio.session.accept_queue import Arrivals, Incoming
from polymux.aio.session.base import Traffic
from polymux.aio.session.component import let_go
from polymux.aio.session.excess_streams import Crowd
from polymux.aio.session.open_rate import Spacing
from polymux.aio.session.open_waiters import Line
from polymux.aio.session.peer_diagnosis import ended_early
from polymux.aio.session.read_backpressure import Pacing
from polymux.aio.session.send_waiters import Room
from polymux.aio.session.shutdown import Ending, settle
from polymux.aio.session.socket_options import look_no_further, plain_socket, round_trip
from polymux.aio.session.socket_writer import HIGH
from polymux.aio.session.stream_tasks import Each, Work
from polymux.aio.session.timeouts import Deadlines
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import LimitExceeded, PeerViolation, PolymuxError, SessionClosed
from polymux.core.limits import Policy
from polymux.core.rules import Origin
from polymux.malloc import give_back, settle_allocator

log = logging.getLogger("polymux.aio")

# What a transport is asked for: how the other side ended, if it knows; the child that it leads to.
ENDED = "polymux_ended"
CHILD = "polymux_child"


class Session(Traffic, asyncio.Protocol):
    """A connection with many streams. Made by `connect` and `serve`, not by hand.

    After `close`, or when the peer goes away, every waiting call ends with SessionClosed. `failure`
    says why, if it was no orderly end; `endpoint.counters` has every limit hit and rule broken.
    """

    def __init__(self, endpoint: Endpoint, policy: Policy, opens_per_second: float = 0.0) -> None:
        settle_allocator()
        super().__init__(endpoint, policy)
        self.closed: asyncio.Future[None] = self.loop.create_future()
        self.peer = ""
        self.failure: SessionClosed | None = None
        self.when_made: Callable[[Session], None] | None = None  # a server takes it from there
        self.meter: Metering | None = None
        self._arrivals = Arrivals(self.loop, self._check_open)
        self._crowd = Crowd(self)
        self._line = Line(self)
        self._room = Room(self)
        self._ending = Ending(self)
        self._pacing = Pacing(self)
        self._deadlines = Deadlines(self)
        self._spacing = Spacing(opens_per_second)

    # --- what a user does

    @pending
    async def open(self, name: str | bytes = b"", *, window: int = 0) -> Stream:
        """Open a stream to the peer. The protocols that offer streams wait until it is accepted.

        While `Limits.own_streams` of this side are open, it waits for one of them to end.
        If cancelled, no stream was opened.
        """
        text = name if type(name) is bytes else octets_of_name(name)
        if window:
            check_opening(self.endpoint.protocol, window)
        if not self._may_open():
            if not self.ready.done():
                await asyncio.shield(self.ready)
            self._check_open()
            if self._spacing.gap:
                await self._pace()
            if not self._openings.free():
                await self._line.turn()
        return self._open(text, window)

    @property
    def incoming(self) -> AsyncIterator[Stream]:
        """The streams the peer opens, as they come, until the session ends."""
        return Incoming(self.accept, lambda: self.failure is not None)

    async def accept(self) -> Stream:
        """The next stream the peer has opened. Cancelled: the stream waits for the next call."""
        return await self._arrivals.take()

    async def each(self, work: Work, *, at_once: int = 1024) -> None:
        """Run `work(stream)` for every stream the peer opens, until the session ends.

        Each has a task of its own and is closed when that returns; if it raises, that is logged
        and the stream given up. While `at_once` are under way, others wait their turn.
        """
        check_work(work, at_once)
        await Each(self, work, at_once).run()

    async def close(self) -> None:
        """Let what is queued leave (within the policy's time), then end the connection.

        What the streams would still send is refused from now on. If cancelled, the connection is
        cut.
        """
        if self._ending.begun or self.closed.done():
            await self.wait_closed()
            return
        for stream in list(self._live.values()):
            stream._refuse(SessionClosed(f"{self} is closed"))
        self._line.stop()
        await self._ending.close()

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

    @property
    def live(self) -> int:
        """Streams that are not over, or not read to their end."""
        return len(self._live)

    @property
    def written(self) -> int:
        """Octets handed to the transport."""
        return self._leaving.written

    @property
    def pauses(self) -> int:
        """How often reading had to stop for a slow reader."""
        return self._pacing.pauses

    def __str__(self) -> str:
        return f"{self.endpoint.protocol.name} session with {self.peer or 'nobody yet'}"

    def __repr__(self) -> str:
        state = "closed" if self.closed.done() else f"streams open: {self.live}"
        return f"<polymux {self}, {state}>"

    # --- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.recorder is not None:
            self.transport = self.recorder.begin(self.transport)
        look_no_further(transport)
        self._leaving.fd = plain_socket(self.transport)
        self._vigil.distance = functools.partial(round_trip, transport)
        # What a socket does not take is copied by its transport: no more than once, then we wait.
        self.transport.set_write_buffer_limits(high=HIGH if self._leaving.fd < 0 else 0)
        self.endpoint.now = int(self.loop.time() * 1e9)
        self.endpoint.start(os.urandom(16))
        self._deadlines.start()
        if self.meter is not None:
            self.meter.begun(self)
        if self.preamble is not None:
            self.transport.write(self.preamble.begin())
        self._flush()
        self._settle_ready()
        if self.when_made is not None:
            self.when_made(self)

    def eof_received(self) -> bool:
        if self.recorder is not None:
            self.recorder.ended()
        if not self._ending.shut:
            whole = self.endpoint.finish()
            told = self.transport.get_extra_info(ENDED) if self.transport is not None else None
            text = told or "the peer closed the connection"
            text += "" if whole else " in the middle of a frame"
            text += ended_early(self)
            if not whole and self.failure is None:
                self.failure = SessionClosed(text)
            self._end(SessionClosed(text), answers=whole)
            self._flush()
        return self._ending.heard() and self.failure is None

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.failure is None and not self._ending.begun:
            self.failure = SessionClosed(f"the connection was lost: {why(error)}")
            self._over = self.failure
        text = f"{self} is closed" if self._ending.begun else "the connection was closed"
        self._end(self.failure or self._over or SessionClosed(text))
        self._pacing.stop()
        self._crowd.stop()
        self._deadlines.stop()
        self._ending.lost()
        if self.meter is not None:
            self.meter.ended(self)
        let_go(self)
        if self.recorder is not None:
            self.recorder.closed(error)
        settle(self.closed)
        give_back(self.loop.time(), self.loop.call_later)

    def pause_writing(self) -> None:
        self._leaving.blocked = True

    def resume_writing(self) -> None:
        self._leaving.blocked = False
        self._flush_soon()

    # --- the end

    def _check_open(self) -> None:
        if self._over is not None:
            raise again(self._over)
        if self._ending.begun:
            raise SessionClosed(f"{self} is closed")

    def _broke(self, problem: PolymuxError) -> None:
        """What the peer has sent ends the session. A child has a moment to end by itself: how it
        ends is part of the error."""
        child = self.transport.get_extra_info(CHILD) if self.transport is not None else None
        if child is not None and isinstance(problem, SessionClosed):
            self._ending.put_off(problem, child)
        else:
            self._fail(problem)

    def _fail(self, problem: PolymuxError) -> None:
        """End the session for a reason, at once."""
        if self.closed.done():
            return
        problem = self._ending.reason(problem)
        if self.failure is None:
            self.failure = closing(problem)
            level = logging.WARNING if self._is_limit(problem) else logging.INFO
            log.log(level, "%s ends: %s", self, problem)
        self._end(self.failure)
        if self._is_limit(problem) and self._tell_limit(last_words(problem)):
            self._ending.cut_soon()
        else:
            self._ending.cut()

    def _is_limit(self, problem: PolymuxError) -> bool:
        """Does a limit of this side end the session, or a rule that stands for one?"""
        broken = self.endpoint.failure
        if isinstance(problem, PeerViolation):
            return broken is not None and broken.rule.origin is Origin.LIMIT
        return isinstance(problem, LimitExceeded)

    def _tell_limit(self, text: str) -> bool:
        """Tell the peer which limit ends the session, where the protocol can say so. True: the
        words are with the transport."""
        return False

    def _end(self, problem: SessionClosed, answers: bool = False) -> None:
        """No more will come: everybody who waits is told."""
        if self._over is None:
            self._over = problem
        for stream in list(self._live.values()):
            stream._lost(problem, answers)
        late = self._arrivals.late
        while late:  # they have come, and no more can: the application may have them all
            self._admit(late.popleft())
        self._arrivals.close()
        self._line.stop()
        settle(self.ready)

    def _in_line(self) -> int:
        """How many wait because this side has opened as much as it may."""
        return len(self._openings.waiting)

    async def _pace(self) -> None:
        await self._spacing.turn()
        self._check_open()
