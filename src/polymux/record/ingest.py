"""`SessionIngest`: reads all streams of a session and confirms data only when it is durable.

The recorder of the session writes received bytes to the capture before a stream sees them, so their
content is not kept here. What has to be held back is the confirmation: the sender must not learn
that data was processed before it is durable.

- Where the protocol has credit, content is dropped as it arrives and its credit is returned after
  the next sync. A sender therefore never has more than one window of unconfirmed data.
- Where it has none, content counts as unread until it is durable. The session's buffer limit then
  pauses reading from the transport.
- The end of a stream is answered (by a close or a reply) after a sync of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from polymux.aio import Call, MinmuxSession, NerdbankSession, OmnistreamsSession
from polymux.core.errors import PolymuxError, SessionClosed
from polymux.live.session.session import Session
from polymux.live.streams.duplex import Stream
from polymux.record.durable_log import DurableLog, NotDurable
from polymux.record.minmux_drain import MinmuxDrain

log = logging.getLogger("polymux.record")

SYNC_SHARING_SECONDS = 0.02  # how long data of streams without credit waits to share a sync,
SYNC_NOW_DIVISOR = 8  # unless it fills this fraction of the session's buffer limit


class SessionIngest:
    """Reads every stream of one session of a collector.

    Args:
        session: A session whose recorder writes to `durable_log`.
        durable_log: Where the received bytes are recorded.
        on_stream_count: Called with +1 when a stream begins and -1 when it is finished.
        minmux_streams: Ids of Minmux streams that get credit before the peer uses them.
    """

    def __init__(
        self,
        session: Session,
        durable_log: DurableLog,
        on_stream_count: Callable[[int], None],
        minmux_streams: list[int],
    ) -> None:
        self.session = session
        self._durable_log = durable_log
        self._on_stream_count = on_stream_count
        self._minmux_streams = minmux_streams
        self._tasks: set[asyncio.Task[None]] = set()
        self._uncredited: dict[Stream, int] = {}  # received units whose credit is held back
        # Streams without credit that have received data since the last sync.
        self._unread_streams: dict[Stream, None] = {}
        self._data_arrived = asyncio.Event()
        self._buffer_filling = asyncio.Event()
        self._drain: MinmuxDrain | None = None  # reads the streams of a Minmux session
        self.open_streams = 0
        """Streams that are not finished."""

    async def run(self) -> None:
        """Read until the peer ends the session and all its streams are finished."""
        session = self.session
        credit_task = asyncio.create_task(self._grant_durable_credit())
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
            # The peer sends no more; streams that it has ended can still be answered.
            # Without a connection no answer can be sent, and the disk need not be waited for.
            while self._tasks and not session.closed.done():
                await asyncio.wait(
                    [*self._tasks, session.closed], return_when=asyncio.FIRST_COMPLETED
                )
        finally:
            for task in (credit_task, *self._tasks):
                task.cancel()
            await asyncio.gather(credit_task, *self._tasks, return_exceptions=True)

    def _create_task(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(self._run_isolated(coroutine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_isolated(self, coroutine: Coroutine[object, object, None]) -> None:
        """Keep an error of one stream from the others. A failed disk ends the session."""
        try:
            await coroutine
        except NotDurable as problem:
            self.session.abort(str(problem))
        except PolymuxError as problem:
            log.debug("%s: %s", self.session, problem)

    def _start_stream(self, stream: Stream) -> None:
        self._create_task(self._ingest_stream(stream))

    async def _ingest_stream(self, stream: Stream) -> None:
        """Read one stream to its end, and answer the end when everything is durable."""
        self._count_stream(1)
        try:
            if self.session.endpoint.protocol.has_credit:
                await self._read_with_credit(stream)
            else:
                await self._read_without_credit(stream)
            await self._durable_log.wait_durable()
            stream.mark_read(stream.unread_bytes)
            if isinstance(stream, Call):
                await stream.reply()
            else:
                await stream.close()
        finally:
            self._uncredited.pop(stream, None)
            self._unread_streams.pop(stream, None)
            if stream.unread_bytes:
                stream.discard_unread()
            self._count_stream(-1)

    # Reading, by kind of flow control

    async def _read_with_credit(self, stream: Stream) -> None:
        """Drop content as it arrives, and hold back its credit."""
        while True:
            if stream.has_unread:
                self._defer_credit(stream, stream.drop_unread_uncredited())
            elif stream.check_eof():
                return
            else:
                await stream.wait_readable()

    async def _read_without_credit(self, stream: Stream) -> None:
        """Free content as it arrives, but count it against the session's buffer limit."""
        endpoint = stream.endpoint
        while not stream.check_eof():
            if stream.has_unread:
                stream.free_unread()
                self._unread_streams[stream] = None
                self._data_arrived.set()
                if (
                    endpoint.receive_queue.unread_bytes * SYNC_NOW_DIVISOR
                    > endpoint.limits.session_buffer_bytes
                ):
                    self._buffer_filling.set()
            await stream.wait_readable()

    # Credit

    def _defer_credit(self, stream: Stream, units: int) -> None:
        self._uncredited[stream] = self._uncredited.get(stream, 0) + units
        self._data_arrived.set()

    async def _grant_durable_credit(self) -> None:
        """Return credit, and count data as read, whenever it has become durable."""
        while True:
            await self._data_arrived.wait()
            if not self._uncredited and not (self._drain is not None and self._drain.has_changed):
                # No sender waits for credit: let more data share the sync.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SYNC_SHARING_SECONDS):
                        await self._buffer_filling.wait()
            self._data_arrived.clear()
            self._buffer_filling.clear()
            uncredited, self._uncredited = self._uncredited, {}
            unread = {stream: stream.unread_bytes for stream in self._unread_streams}
            self._unread_streams.clear()
            items = self._drain.take_changed() if self._drain is not None else {}
            try:
                await self._durable_log.wait_durable()
            except NotDurable as problem:
                self.session.abort(str(problem))
                return
            for stream, size in unread.items():
                stream.mark_read(size)
            if self._drain is not None:
                self._drain.confirm(items)
            for stream, units in uncredited.items():
                try:
                    stream.return_credit_now(units)
                except PolymuxError as problem:
                    log.debug("%s: %s", self.session, problem)

    # Protocols in which data arrives other than on streams that the peer opens

    async def _discard_controls(self, session: OmnistreamsSession) -> None:
        async for _ in session.controls:
            pass

    def _start_seeded(self, session: NerdbankSession) -> None:
        for stream_id in range(session.seeded_count()):
            self._start_stream(session.seeded(stream_id))

    async def _ingest_minmux(self, session: MinmuxSession) -> None:
        """Read the configured streams, and every stream on which the peer sends any packet."""
        self._drain = drain = MinmuxDrain(session, self._count_stream, self._data_arrived.set)
        try:
            drain.start(self._minmux_streams)
            with contextlib.suppress(SessionClosed):
                await session.accept_queue.wait_ended()
            if drain.has_changed:  # streams that the peer has ended can still be answered
                items = drain.take_changed()
                await self._durable_log.wait_durable()
                drain.confirm(items)
        except NotDurable as problem:
            session.abort(str(problem))
        finally:
            drain.stop()

    def _count_stream(self, change: int) -> None:
        self.open_streams += change
        self._on_stream_count(change)
