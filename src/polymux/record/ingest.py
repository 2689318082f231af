"""Streams that are taken in, and given leave for only when what came is durable.

Content is in the capture before a stream sees it, so nothing of it is kept here where the sender
has credit: its leave is what is held back. Where there is no credit the content counts as unread
until it is durable, and the session's own bound on pauses applies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from polymux.aio import Call, ItemReceiver, MinmuxSession, NerdbankSession, OmnistreamsSession
from polymux.aio.session.session import Session
from polymux.aio.streams.duplex import Stream
from polymux.core.errors import PolymuxError, StreamEnded
from polymux.core.streams import OPEN
from polymux.protocols.nerdbank.protocol import Nerdbank
from polymux.record.durable_log import Journal, NotDurable

log = logging.getLogger("polymux.record")

GLANCE = 0.02  # seconds between looks for streams that nobody opens (Minmux)
EASE = 0.02  # seconds in which what came without credit may share a sync
HURRY = 8  # unless it is an eighth of the session's budget: reading must not have to stop for it
ITEMS = 64 * 1024  # octets of credit for such a stream; 16 items where they say their own length


class Holding:
    """One session of a collector: every stream the peer has, until the session ends."""

    def __init__(
        self, session: Session, journal: Journal, opened: Callable[[int], None], early: list[int]
    ) -> None:
        self.session = session
        self._journal = journal
        self._opened = opened  # told +1 and -1
        self._early = early
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: dict[Stream, int] = {}  # units that came and have no leave yet
        self._unread: dict[Stream, None] = {}  # streams whose lanes hold what is not durable
        self._something = asyncio.Event()
        self._much = asyncio.Event()
        self.open = 0
        """Streams that are not finished."""

    async def run(self) -> None:
        """Take in what the peer sends until it ends the session."""
        session = self.session
        settling = asyncio.create_task(self._settle())
        try:
            if isinstance(session, OmnistreamsSession):
                self._start(self._hear_controls(session))
            if isinstance(session, NerdbankSession):
                self._take_seeded(session)
            if isinstance(session, MinmuxSession):
                await self._take_items(session)
            else:
                async for stream in session.incoming:
                    self._hold(stream)
            # The peer sends no more; what it ended can still be answered.
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in (settling, *self._tasks):
                task.cancel()
            await asyncio.gather(settling, *self._tasks, return_exceptions=True)

    def _start(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        """What happens to one stream is no matter of the others; a failed disk is."""
        try:
            await work
        except NotDurable as problem:
            self.session.abort(str(problem))
        except PolymuxError as problem:
            log.debug("%s: %s", self.session, problem)

    def _hold(self, stream: Stream) -> None:
        self._start(self._follow(stream))

    async def _follow(self, stream: Stream) -> None:
        """One stream from its first octet to its end, and the answer to that."""
        self.open += 1
        self._opened(1)
        try:
            if isinstance(stream, ItemReceiver):
                await self._take_each(stream)
            elif self.session.endpoint.protocol.credit:
                await self._take_all(stream)
            else:
                await self._leave_until_durable(stream)
            await self._journal.durable()
            count_as_read(stream, stream.lane.unread)
            if isinstance(stream, Call):
                await stream.reply()
            else:
                await stream.close()
        finally:
            self._held.pop(stream, None)
            self._unread.pop(stream, None)
            if stream.lane.unread:
                stream._set_aside()
            self.open -= 1
            self._opened(-1)

    # --- the three ways to take a stream in

    async def _take_all(self, stream: Stream) -> None:
        """With credit: take at once, and owe the leave."""
        endpoint = stream._endpoint
        lane = stream.lane
        counts_messages = endpoint.protocol.messages
        while True:
            if lane.inbox:
                octets = lane.unread
                parts = endpoint.take(lane)
                self._owe(stream, len(parts) if counts_messages else octets)
            elif stream._is_over():
                return
            else:
                await stream._wait_to_receive()

    async def _leave_until_durable(self, stream: Stream) -> None:
        """Without credit: what is not durable counts as unread, against the session's budget. The
        octets themselves are in the capture and let go."""
        lane = stream.lane
        while not stream._is_over():
            if lane.inbox:
                lane.inbox.clear()
                self._unread[stream] = None
                self._something.set()
                if stream._endpoint.inbox.unread * HURRY > stream._endpoint.limits.session_buffer:
                    self._much.set()
            await stream._wait_to_receive()

    async def _take_each(self, stream: ItemReceiver) -> None:
        """Items: credit is given by hand, for as many as came."""
        seen = 0
        while True:
            try:
                await stream.receive()
            except StreamEnded:
                return
            whole = 1 if stream._parts is not None else stream._whole - seen
            seen = stream._whole
            if whole:
                self._owe(stream, whole)

    # --- leave

    def _owe(self, stream: Stream, units: int) -> None:
        self._held[stream] = self._held.get(stream, 0) + units
        self._something.set()

    async def _settle(self) -> None:
        """Give leave for what has become durable, as long as there is anybody to give it to."""
        while True:
            await self._something.wait()
            if not self._held:
                with contextlib.suppress(TimeoutError):  # nobody waits to hear of it
                    async with asyncio.timeout(EASE):  # let more come along
                        await self._much.wait()
            self._something.clear()
            self._much.clear()
            held, self._held = self._held, {}
            unread = {stream: stream.lane.unread for stream in self._unread}
            self._unread.clear()
            try:
                await self._journal.durable()
            except NotDurable as problem:
                self.session.abort(str(problem))
                return
            for stream, octets in unread.items():
                count_as_read(stream, octets)
            for stream, units in held.items():
                try:
                    give_leave(stream, units)
                except PolymuxError as problem:
                    log.debug("%s: %s", self.session, problem)

    # --- streams that come in other ways than by being opened

    async def _hear_controls(self, session: OmnistreamsSession) -> None:
        async for _ in session.controls:
            pass

    def _take_seeded(self, session: NerdbankSession) -> None:
        protocol = session.endpoint.protocol
        assert isinstance(protocol, Nerdbank)
        for number in range(len(protocol.seeded or ())):
            self._hold(session.seeded(number))

    async def _take_items(self, session: MinmuxSession) -> None:
        """Streams of which the peer said anything, a promise will do; and those named before."""
        for number in self._early:
            self._hold(begin_items(session, number))
        while session._over is None:
            for record in list(session._strangers):
                if record.opener != session.endpoint.side:
                    self._hold(begin_items(session, record.number % (1 << 64)))
            await asyncio.wait([session.closed], timeout=GLANCE)


def begin_items(session: MinmuxSession, number: int) -> ItemReceiver:
    """A receiver that gives credit only when told to, with the first of it given."""
    stream = session.receiver(number, window=0)
    size = stream._shape.item
    if not stream._done:
        stream.grant(16 if size < 0 else max(1, ITEMS // max(1, size)))
    return stream


def count_as_read(stream: Stream, octets: int) -> None:
    """So many of the octets that a stream has unread are in the capture, and durable."""
    lane = stream.lane
    if 0 < octets <= lane.unread and not lane.dropped:
        lane.unread -= octets
        stream._endpoint.inbox.unread -= octets
        if not lane.unread:
            lane.inbox.clear()
        stream._have_read(octets)


def give_leave(stream: Stream, units: int) -> None:
    """Leave for all of it now, also where half a window is not reached: a sender may wait to hear
    that its last octet is safe."""
    endpoint = stream._endpoint
    theirs = stream._theirs
    if isinstance(stream, ItemReceiver):
        if theirs.limit >= 0:  # the writer has no use for more than it has announced
            units = min(units, theirs.limit - (theirs.granted - theirs.spent))
        if units > 0 and theirs.state == OPEN and stream._is_current():
            stream.grant(units)
        return
    stream._have_read(units)
    lane = stream.lane
    if lane.held and theirs.state == OPEN and not stream.record.over:
        held = lane.held
        lane.held = 0
        endpoint.answer(
            stream.record, endpoint.protocol.granting(endpoint.side, stream.record, held)
        )
        stream.session._flush_soon()
