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
from polymux.record.durable_log import DurableLog, NotDurable

log = logging.getLogger("polymux.record")

STREAM_POLL_SECONDS = 0.02  # seconds between looks for streams that nobody opens (Minmux)
SYNC_SHARING_SECONDS = 0.02  # seconds in which what came without credit may share a sync
SYNC_NOW_DIVISOR = (
    8  # unless it is an eighth of the session's budget: reading must not have to stop for it
)
ITEM_CREDIT_BYTES = (
    64 * 1024
)  # bytes of credit for such a stream; 16 items where they say their own length


class SessionIngest:
    """One session of a collector: every stream the peer has, until the session ends."""

    def __init__(
        self,
        session: Session,
        durable_log: DurableLog,
        on_stream_count: Callable[[int], None],
        minmux_streams: list[int],
    ) -> None:
        self.session = session
        self._durable_log = durable_log
        self._on_stream_count = on_stream_count  # told +1 and -1
        self._minmux_streams = minmux_streams
        self._tasks: set[asyncio.Task[None]] = set()
        self._uncredited: dict[Stream, int] = {}  # units that came and have no leave yet
        self._unread_streams: dict[
            Stream, None
        ] = {}  # streams whose lanes hold what is not durable
        self._data_arrived = asyncio.Event()
        self._buffer_filling = asyncio.Event()
        self.open_streams = 0
        """Streams that are not finished."""

    async def run(self) -> None:
        """Take in what the peer sends until it ends the session."""
        session = self.session
        settling = asyncio.create_task(self._grant_durable_credit())
        try:
            if isinstance(session, OmnistreamsSession):
                self._create_task(self._discard_controls(session))
            if isinstance(session, NerdbankSession):
                self._start_seeded(session)
            if isinstance(session, MinmuxSession):
                await self._ingest_minmux(session)
            else:
                async for stream in session.incoming:
                    self._start_stream(stream)
            # The peer sends no more; what it ended can still be answered.
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in (settling, *self._tasks):
                task.cancel()
            await asyncio.gather(settling, *self._tasks, return_exceptions=True)

    def _create_task(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._run_isolated(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_isolated(self, coroutine: Coroutine[object, object, None]) -> None:
        """What happens to one stream is no matter of the others; a failed disk is."""
        try:
            await coroutine
        except NotDurable as problem:
            self.session.abort(str(problem))
        except PolymuxError as problem:
            log.debug("%s: %s", self.session, problem)

    def _start_stream(self, stream: Stream) -> None:
        self._create_task(self._ingest_stream(stream))

    async def _ingest_stream(self, stream: Stream) -> None:
        """One stream from its first byte to its end, and the answer to that."""
        self.open_streams += 1
        self._on_stream_count(1)
        try:
            if isinstance(stream, ItemReceiver):
                await self._read_items(stream)
            elif self.session.endpoint.protocol.has_credit:
                await self._read_with_credit(stream)
            else:
                await self._read_without_credit(stream)
            await self._durable_log.wait_durable()
            mark_durable(stream, stream.buffers.unread_bytes)
            if isinstance(stream, Call):
                await stream.reply()
            else:
                await stream.close()
        finally:
            self._uncredited.pop(stream, None)
            self._unread_streams.pop(stream, None)
            if stream.buffers.unread_bytes:
                stream.discard_unread()
            self.open_streams -= 1
            self._on_stream_count(-1)

    # --- the three ways to take a stream in

    async def _read_with_credit(self, stream: Stream) -> None:
        """With credit: take at once, and owe the leave."""
        endpoint = stream.endpoint
        lane = stream.buffers
        counts_messages = endpoint.protocol.content_is_messages
        while True:
            if lane.received:
                size = lane.unread_bytes
                parts = endpoint.take_received(lane)
                self._defer_credit(stream, len(parts) if counts_messages else size)
            elif stream.check_eof():
                return
            else:
                await stream.wait_readable()

    async def _read_without_credit(self, stream: Stream) -> None:
        """Without credit: what is not durable counts as unread, against the session's budget. The
        bytes themselves are in the capture and let go."""
        lane = stream.buffers
        while not stream.check_eof():
            if lane.received:
                lane.received.clear()
                self._unread_streams[stream] = None
                self._data_arrived.set()
                if (
                    stream.endpoint.receive_queue.unread_bytes * SYNC_NOW_DIVISOR
                    > stream.endpoint.limits.session_buffer_bytes
                ):
                    self._buffer_filling.set()
            await stream.wait_readable()

    async def _read_items(self, stream: ItemReceiver) -> None:
        """Items: credit is given by hand, for as many as came."""
        seen = 0
        while True:
            try:
                await stream.receive()
            except StreamEnded:
                return
            whole = 1 if stream.item_decoder is not None else stream.items_delivered - seen
            seen = stream.items_delivered
            if whole:
                self._defer_credit(stream, whole)

    # --- leave

    def _defer_credit(self, stream: Stream, units: int) -> None:
        self._uncredited[stream] = self._uncredited.get(stream, 0) + units
        self._data_arrived.set()

    async def _grant_durable_credit(self) -> None:
        """Give leave for what has become durable, as long as there is anybody to give it to."""
        while True:
            await self._data_arrived.wait()
            if not self._uncredited:
                with contextlib.suppress(TimeoutError):  # nobody waits to hear of it
                    async with asyncio.timeout(SYNC_SHARING_SECONDS):  # let more come along
                        await self._buffer_filling.wait()
            self._data_arrived.clear()
            self._buffer_filling.clear()
            held, self._uncredited = self._uncredited, {}
            unread = {stream: stream.buffers.unread_bytes for stream in self._unread_streams}
            self._unread_streams.clear()
            try:
                await self._durable_log.wait_durable()
            except NotDurable as problem:
                self.session.abort(str(problem))
                return
            for stream, size in unread.items():
                mark_durable(stream, size)
            for stream, units in held.items():
                try:
                    grant_credit(stream, units)
                except PolymuxError as problem:
                    log.debug("%s: %s", self.session, problem)

    # --- streams that come in other ways than by being opened

    async def _discard_controls(self, session: OmnistreamsSession) -> None:
        async for _ in session.controls:
            pass

    def _start_seeded(self, session: NerdbankSession) -> None:
        protocol = session.endpoint.protocol
        assert isinstance(protocol, Nerdbank)
        for number in range(len(protocol.seeded_windows or ())):
            self._start_stream(session.seeded(number))

    async def _ingest_minmux(self, session: MinmuxSession) -> None:
        """Streams of which the peer said anything, a promise will do; and those named before."""
        for number in self._minmux_streams:
            self._start_stream(open_item_receiver(session, number))
        while session.close_reason is None:
            for record in list(session.unclaimed_streams):
                if record.opener != session.endpoint.side:
                    self._start_stream(open_item_receiver(session, record.stream_id % (1 << 64)))
            await asyncio.wait([session.closed], timeout=STREAM_POLL_SECONDS)


def open_item_receiver(session: MinmuxSession, stream_id: int) -> ItemReceiver:
    """A receiver that gives credit only when told to, with the first of it given."""
    stream = session.receiver(stream_id, window=0)
    size = stream.stream_format.item_size
    if not stream.all_received:
        stream.grant(16 if size < 0 else max(1, ITEM_CREDIT_BYTES // max(1, size)))
    return stream


def mark_durable(stream: Stream, size: int) -> None:
    """So many of the bytes that a stream has unread are in the capture, and durable."""
    lane = stream.buffers
    if 0 < size <= lane.unread_bytes and not lane.discarding:
        lane.unread_bytes -= size
        stream.endpoint.receive_queue.unread_bytes -= size
        if not lane.unread_bytes:
            lane.received.clear()
        stream.credit_read(size)


def grant_credit(stream: Stream, units: int) -> None:
    """Leave for all of it now, also where half a window is not reached: a sender may wait to hear
    that its last byte is safe."""
    endpoint = stream.endpoint
    theirs = stream.peer_half
    if isinstance(stream, ItemReceiver):
        if theirs.promised_limit >= 0:  # the writer has no use for more than it has announced
            units = min(
                units, theirs.promised_limit - (theirs.credit_granted - theirs.credit_spent)
            )
        if units > 0 and theirs.state == OPEN and stream.is_current():
            stream.grant(units)
        return
    stream.credit_read(units)
    lane = stream.buffers
    if lane.unreturned_credit and theirs.state == OPEN and not stream.state.over:
        held = lane.unreturned_credit
        lane.unreturned_credit = 0
        endpoint.queue_frame(
            stream.state, endpoint.protocol.credit_frame(endpoint.side, stream.state, held)
        )
        stream.session.schedule_flush()
