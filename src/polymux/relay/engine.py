"""`Relay`: takes the streams of each of two ends and re-opens them at the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from polymux.core.errors import PolymuxError, SessionClosed
from polymux.relay.channels import LOST_REASON, Channel, MessageChannel
from polymux.relay.ends import Arrival, End
from polymux.relay.pump import Filter, Pump, RelayedStream

LINGER_SECONDS = 5.0  # for what the other end has not taken when one end is over


@dataclass
class RelayStats:
    """Counters of a relay, or of all relays of a bridge or tunnel.

    Attributes:
        streams: Streams that were relayed, from their re-opening on.
        open: Of these, how many are open.
        rejected: Streams that could not be re-opened.
        aborted: Streams that ended by an abort or the loss of a connection.
        stalls: How often content had to wait for the other end, in streams that are over.
        bytes_a: Content read at end A, in streams that are over.
        bytes_b: The same at end B.
        lost: What could not be passed on, by what it is: `name`, `reset_reason`, `stop_reading`,
            `message_boundaries`, `control_message`, `items`.
    """

    streams: int = 0
    open: int = 0
    rejected: int = 0
    aborted: int = 0
    stalls: int = 0
    bytes_a: int = 0
    bytes_b: int = 0
    lost: Counter[str] = field(default_factory=Counter)


@dataclass
class Moving:
    """What the open streams of a relay have moved so far; `waiting` directions wait for room."""

    bytes_a: int = 0
    bytes_b: int = 0
    stalls: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class StreamInfo:
    """What is known of a stream when its filters are chosen.

    Attributes:
        number: Its position among the relay's streams, from 1.
        from_a: It was opened at end A.
        name: The name or metadata it was opened with.
        near: Its channel at the end where it was opened.
        far: Its channel at the other end.
    """

    number: int
    from_a: bool
    name: bytes
    near: Channel
    far: Channel


FilterFactory = Callable[[StreamInfo], tuple[Filter | None, Filter | None]]
"""Returns the filters of a stream: of the direction from the end that opened it, and back."""


class Relay:
    """Relays all streams between two ends, in both directions.

    Args:
        a: One end.
        b: The other end.
        stats: Where to count; several relays may share it.
        filters: Chooses the filters of each stream; None: none.
        linger: Seconds for the other end to take the rest, when one end is over; see `run`.

    Attributes:
        streams: The streams that are open.
    """

    def __init__(
        self,
        a: End,
        b: End,
        *,
        stats: RelayStats | None = None,
        filters: FilterFactory | None = None,
        linger: float = LINGER_SECONDS,
    ) -> None:
        self.a = a
        self.b = b
        self.stats = RelayStats() if stats is None else stats
        self.streams: set[RelayedStream] = set()
        a.lose = b.lose = self._on_lost
        self._filters = filters
        self._linger = linger
        self._opening: set[asyncio.Task[None]] = set()
        self._number = 0
        self._idle: asyncio.Future[None] | None = None  # resolved when no stream is left
        self._from_a: set[RelayedStream] = set()  # of `streams`, those opened at A

    async def run(self) -> None:
        """Relay until one end is over and its streams are done, then close both.

        When one end is over, no stream is taken any more. A stream of which the other end takes
        nothing for `linger` seconds (LINGER_SECONDS by default) is aborted, so that a peer that
        does not read cannot keep the relay. A filter may hold content for longer, as long as there
        is room for it.

        If cancelled, open streams are aborted and both ends are closed at once.
        """
        loops = [
            asyncio.ensure_future(self._relay_arrivals(self.a, self.b, True)),
            asyncio.ensure_future(self._relay_arrivals(self.b, self.a, False)),
        ]
        messages = [
            asyncio.ensure_future(self.a.relay_messages(self.b)),
            asyncio.ensure_future(self.b.relay_messages(self.a)),
        ]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                loop.cancel()
            await self._wait_done()
        except asyncio.CancelledError:
            for relayed in list(self.streams):
                relayed.abort_both("the relay was stopped")
            raise
        finally:
            tasks = [*loops, *messages, *self._opening]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(self.a.close(), self.b.close())
        for result in results:
            if isinstance(result, Exception):
                raise result

    def moving(self) -> Moving:
        """Add up what the open streams have moved."""
        found = Moving()
        for relayed in self.streams:
            from_a, from_b = self._by_end(relayed)
            for pump in (from_a, from_b):
                if pump is not None:
                    found.stalls += pump.stalls
                    found.waiting += pump.stalled_at > 0
            found.bytes_a += 0 if from_a is None else from_a.bytes
            found.bytes_b += 0 if from_b is None else from_b.bytes
        return found

    def _by_end(self, relayed: RelayedStream) -> tuple[Pump | None, Pump | None]:
        """The directions of a stream: from A, and from B."""
        forward, backward = relayed.forward, relayed.backward
        return (forward, backward) if relayed in self._from_a else (backward, forward)

    async def _wait_done(self) -> None:
        """Wait until no stream is left; abort those that stand still for too long."""
        moved = {relayed: relayed.bytes_moved for relayed in self.streams}
        while self.streams or self._opening:
            try:
                async with asyncio.timeout(self._linger):
                    await self._wait_idle()
            except TimeoutError:
                for task in self._opening:
                    task.cancel()
                for relayed in list(self.streams):
                    before, moved[relayed] = moved.get(relayed), relayed.bytes_moved
                    stands_still = before == moved[relayed]
                    if stands_still and (self._filters is None or relayed.is_stalled):
                        relayed.abort_both(LOST_REASON)

    async def _wait_idle(self) -> None:
        while self.streams or self._opening:
            self._idle = asyncio.get_running_loop().create_future()
            await self._idle

    def _on_stream_gone(self) -> None:
        if self._idle is not None and not self._idle.done() and not self.streams:
            self._idle.set_result(None)

    # Streams

    async def _relay_arrivals(self, near: End, far: End, from_a: bool) -> None:
        with contextlib.suppress(SessionClosed):
            while True:
                arrival = await near.next_arrival()
                task = asyncio.ensure_future(self._open(arrival, far, from_a))
                self._opening.add(task)
                task.add_done_callback(self._on_opened)

    def _on_opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        self._on_stream_gone()

    async def _open(self, arrival: Arrival, far: End, from_a: bool) -> None:
        try:
            await self._open_far(arrival, far, from_a)
        except Exception:
            arrival.channel.abort("")  # or its peer would wait for ever
            raise

    async def _open_far(self, arrival: Arrival, far: End, from_a: bool) -> None:
        """Re-open a stream at the other end; if it is aborted meanwhile, give up."""
        channel = arrival.channel
        opening = asyncio.ensure_future(far.open(arrival.name))

        def check_aborted() -> None:
            if not channel.has_unread() and is_broken(channel):
                opening.cancel()

        channel.watch(check_aborted, check_aborted)
        try:
            opened = await opening
        except asyncio.CancelledError:
            if not opening.cancel() and not opening.cancelled() and opening.exception() is None:
                opening.result().abort("")  # opened in the moment of the cancelling
            self.stats.rejected += 1
            channel.abort("")
            if not is_broken(channel):
                raise  # this task was cancelled, not the opening
            return
        except PolymuxError as problem:
            self.stats.rejected += 1
            if not arrival.refused(problem):
                self.stats.lost["reset_reason"] += 1
            return
        near_traits, far_traits = (self.a if from_a else self.b).traits, far.traits
        if far_traits is not None:
            if arrival.name and not far_traits.names:
                self.stats.lost["name"] += 1
            if near_traits is not None and near_traits.messages != far_traits.messages:
                self.stats.lost["message_boundaries"] += near_traits.messages
                if isinstance(opened, MessageChannel):
                    opened.split = True
        arrival.accept()
        self._start(arrival, opened, from_a)

    def _start(self, arrival: Arrival, far: Channel, from_a: bool) -> None:
        self._number += 1
        filters: tuple[Filter | None, Filter | None] = (None, None)
        if self._filters is not None:
            info = StreamInfo(self._number, from_a, arrival.name, arrival.channel, far)
            filters = self._filters(info)
        relayed = RelayedStream(
            arrival.channel,
            far,
            arrival.name,
            self._on_done,
            self._on_lost,
            one_way=self.one_way,
            filters=filters,
        )
        self.stats.streams += 1
        self.stats.open += 1
        self.streams.add(relayed)
        if from_a:
            self._from_a.add(relayed)
        relayed.start()

    @property
    def one_way(self) -> bool:
        """Whether content flows only from the end at which a stream was opened."""
        traits = self.a.traits or self.b.traits
        return traits is not None and traits.is_one_way

    def _on_lost(self, what: str) -> None:
        self.stats.lost[what] += 1

    def _on_done(self, relayed: RelayedStream) -> None:
        stats = self.stats
        stats.open -= 1
        stats.aborted += bool(relayed.aborted)
        from_a, from_b = self._by_end(relayed)
        stats.bytes_a += 0 if from_a is None else from_a.bytes
        stats.bytes_b += 0 if from_b is None else from_b.bytes
        stats.stalls += sum(pump.stalls for pump in (from_a, from_b) if pump is not None)
        self._from_a.discard(relayed)
        self.streams.discard(relayed)
        self._on_stream_gone()


def is_broken(channel: Channel) -> bool:
    """Whether a channel was aborted, or its connection lost."""
    try:
        channel.at_end()
    except PolymuxError:
        return True
    return False
