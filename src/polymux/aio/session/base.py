# mypyc: compiled
"""What passes through a session, both ways: every chunk and every stream comes along here."""

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from polymux.aio.errors import plain
from polymux.aio.hooks import SessionRecorder, write_formed
from polymux.aio.session.busy_poll import Vigil, patience_for, watch_of
from polymux.aio.session.open_allowance import Openings
from polymux.aio.session.peer_diagnosis import told
from polymux.aio.session.shutdown import Ending, settle
from polymux.aio.session.socket_options import keep_short
from polymux.aio.session.socket_writer import Leaving
from polymux.aio.session.wakeups import Wakings
from polymux.aio.streams.duplex import Stream
from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.core.events import Aborted, Accepted, Closed, Credit, Ended, Event, Opened
from polymux.core.limits import Policy
from polymux.core.streams import ABORTED
from polymux.core.streams import Stream as Record

if TYPE_CHECKING:
    from polymux.aio.session.accept_queue import Arrivals
    from polymux.aio.session.excess_streams import Crowd
    from polymux.aio.session.open_rate import Spacing
    from polymux.aio.session.preamble import Preamble
    from polymux.aio.session.read_backpressure import Pacing
    from polymux.aio.session.send_waiters import Room
    from polymux.aio.session.session import Session
    from polymux.aio.session.stream_tasks import Each

log = logging.getLogger("polymux.aio")


@mypyc_attr(allow_interpreted_subclasses=True)
class Traffic:
    """What passes through a session, both ways; `Session` has what its user may wait for."""

    drops_unread = True  # does a reset by the peer take with it what was not read yet?
    waits_for_room = True  # does reading stop for a stream past a limit, before it is turned away?
    given_up_weight = 1.0  # what a stream that was given up takes of what may be opened

    _arrivals: "Arrivals"
    _crowd: "Crowd"
    _ending: Ending
    _pacing: "Pacing"
    _room: "Room"
    _spacing: "Spacing"

    def __init__(self, endpoint: Endpoint, policy: Policy) -> None:
        self.endpoint = endpoint
        self.policy = policy
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self.loop.create_future()  # handshaken, or over
        self.transport: asyncio.Transport | None = None
        self.recorder: SessionRecorder | None = None
        self.preamble: Preamble | None = None  # until it has been exchanged
        self._over: SessionClosed | None = None  # why nothing more will come
        self._live: dict[Record, Stream] = {}  # not over, or not read to the end
        self._theirs: int = 0  # how many of them the peer has opened
        self._each: Each | None = None
        self._openings = Openings(
            self.loop, endpoint.limits.own_streams, endpoint.limits.open_reset_rate
        )
        self._vigil = Vigil(watch_of(self.loop), patience_for(policy.awake))
        self._leaving = Leaving(
            endpoint, self.loop.call_soon, self._way, self._written, self._vigil
        )
        self._wakings = Wakings(self.loop, self._leaving)

    # --- what has come

    def data_received(self, data: bytes) -> None:
        self._vigil.came()
        wakings = self._wakings
        wakings.begin()
        try:
            self._received(data)
        finally:
            wakings.end()

    def _received(self, data: bytes) -> None:
        if self.recorder is not None:
            write_formed(whole(self))
            self.recorder.read(data)
        if self._ending.shut:
            return
        endpoint = self.endpoint
        try:
            if self.preamble is not None:
                data = self.preamble.exchange(whole(self), data)
            for event in endpoint.receive(data, self.loop.time()):
                self._handle(event)
        except PolymuxError as problem:
            self._broke(told(whole(self), problem, data))
            return
        inbox = endpoint.inbox
        if inbox.ready:
            for record in inbox.ready:
                if record.lane is not None:
                    record.lane.noted = False
                    if record in self._live:
                        self._live[record]._wake()
            inbox.ready = []
        if inbox.unread:
            self._pacing.look()
        if not self.ready.done():
            self._settle_ready()
        if endpoint.pending():
            self._leaving.give()

    def _handle(self, event: Event) -> None:
        record = event.stream
        kind = type(event)  # none has subclasses
        if record is None or kind is Ended:  # who reads finds out by itself
            return
        if kind is Opened:
            self._arrived(record)
            return
        stream = self._live.get(record)
        if kind is Closed and record.opener == self.endpoint.side:
            self._openings.over()
        if stream is None:  # turned away
            if kind is Closed:
                record.lane = None
        elif kind is Closed:
            stream._over()
            self._forget(stream)
        elif kind is Credit or kind is Accepted:
            self.endpoint.resume(record)
            if kind is Accepted:
                stream._wake_all()
            elif stream._writers:
                stream._wake_writers()
        elif isinstance(event, Aborted):
            if self._arrivals.discard(stream):
                stream._set_aside()
            if event.text and stream._theirs.state != ABORTED:  # not by the peer: for what it did
                stream.give_up(f"the peer broke the protocol: {plain(event.text)}")
            else:
                stream._aborted(event.text)

    def _arrived(self, record: Record) -> None:
        """The peer opened a stream: take it, or turn it away when there are too many."""
        endpoint = self.endpoint
        limits = endpoint.limits
        if len(record.name or b"") > endpoint.protocol.max_name:
            over = "name"
        else:
            over = self._crowded()
            if not over and self._arrivals.late:  # they have come first
                over = "streams"
        if over:
            endpoint.counters.count(over)
            if self._crowd.takes(record, over):
                return
            log.debug("%s: stream turned away: %s", self, limits.describe(over))
            endpoint.turn_away(record, f"turned away: limit {over}".encode())
        elif self._ending.begun:
            endpoint.abort(record)
        else:
            stream = self._adopt(record)
            self._theirs += 1
            self._admit(stream)

    def _crowded(self) -> str:
        """The limit that leaves no room for one more stream of the peer; empty if there is room."""
        limits = self.endpoint.limits
        arrivals = self._arrivals
        if len(arrivals) >= limits.pending:
            return "pending"
        return "streams" if self._theirs - len(arrivals.late) >= limits.streams else ""

    def _admit(self, stream: Stream) -> None:
        """A stream of the peer is there for the application."""
        if self._each is None or not self._each.start(stream):
            self._arrivals.put(stream)

    def _turn_away(self, stream: Stream, limit: str) -> None:
        """Refuse a stream for which room was waited for."""
        stream.give_up("there was no room for it", f"turned away: limit {limit}")

    def _may_open(self) -> bool:
        """Can a stream be opened at once?"""
        if self._over is not None or self._ending.begun or self._spacing.gap > 0:
            return False
        return self.ready.done() and self._openings.free()

    def _open(self, name: bytes, window: int) -> Stream:
        stream = self._adopt(self.endpoint.open(name, window))
        self._openings.begin()
        self._leaving.give_part()
        return stream

    def _adopt(self, record: Record) -> Stream:
        stream = Stream(whole(self), record)
        self._live[record] = stream
        if len(self._live) == 2:
            keep_short(self.transport)
        return stream

    def _forget(self, stream: Stream) -> None:
        """A stream that is over and read to the end leaves nothing behind here."""
        record = stream.record
        if record.over and not stream.lane.unread and record in self._live:
            del self._live[record]
            record.lane = None
            if record.opener == 1 - self.endpoint.side:
                self._theirs -= 1
                if self._arrivals.relief is not None:
                    self._arrivals.relief()

    def _relieved(self, stream: Stream) -> None:
        """A stream was given up or closed: what it held is free again."""
        self._forget(stream)
        if self._pacing.paused_at:
            self._pacing.look()
        if len(self.endpoint.outbox.control) > self.endpoint.limits.control_queue // 2:
            self._flush()
        self._leaving.give_rest(self._over is not None or self._ending.begun)

    # --- what is to go

    def _flush_soon(self) -> None:
        """Form what may leave and hand it to the transport, once a turn of the loop."""
        self._leaving.give()

    def _flush(self) -> None:
        self._leaving.flush()

    def _way(self) -> asyncio.Transport | None:
        """The transport to write to now, if anything may be written."""
        transport = self.transport
        held = self._ending.shut or self.preamble is not None
        if held or transport is None or transport.is_closing():
            return None
        self.endpoint.now = int(self.loop.time() * 1e9)
        return transport

    def _written(self) -> None:
        """What could leave has left: see what that changes."""
        endpoint = self.endpoint
        if endpoint.inbox.events:
            for event in endpoint.take_events():
                self._handle(event)
        if endpoint.outbox.stalled:
            self._stalled()
        if self._leaving.crowded:
            self._room.wake()
        if self._pacing.paused_at:
            self._pacing.look()
        if endpoint.pending():
            if not self._leaving.blocked:
                self._flush_soon()
        elif self._over is not None or self._ending.begun:
            self._ending.look()

    def _stalled(self) -> None:
        """Streams had something to send and no leave."""
        self.endpoint.outbox.stalled.clear()

    # --- where sessions differ

    def _take_in(self, stream: Stream) -> None:
        """Somebody is there for a stream that the peer has opened."""

    def _is_offer(self, stream: Stream) -> bool:
        """Does this stream still need the peer's or our acceptance?"""
        return False

    def _settle_ready(self) -> None:
        if self.endpoint.protocol.handshaken and self.preamble is None:
            settle(self.ready)

    def _broke(self, problem: PolymuxError) -> None:
        """What the peer has sent ends the session."""
        self._fail(problem)

    def _fail(self, problem: PolymuxError) -> None:
        """End the session for a reason, at once. `Session` knows who has to be told."""
        raise NotImplementedError


def whole(traffic: Traffic) -> "Session":
    """There is no other kind."""
    return cast("Session", traffic)
