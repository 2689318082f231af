# mypyc: compiled
"""A duplex stream's two halves: everything about them that needs no waiting."""

import asyncio
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from polymux.aio.errors import again, plain
from polymux.aio.session.wakeups import IDLE, Waiter
from polymux.aio.streams.outlet import Outlet
from polymux.core.errors import PolymuxError, StreamAborted, StreamEnded
from polymux.core.streams import ABORTED, OPEN
from polymux.core.streams import Stream as Record

if TYPE_CHECKING:
    from polymux.aio.session.session import Session
    from polymux.aio.streams.duplex import Stream


@mypyc_attr(allow_interpreted_subclasses=True)
class Ends(Outlet):
    """What a stream does at once; `duplex.Stream` has what may have to wait."""

    __slots__ = (
        "_acceptance", "_closed", "_no_read", "_reader", "_writers", "session",
    )  # fmt: skip

    def __init__(self, session: "Session", record: Record) -> None:
        super().__init__(session.endpoint, record, session._leaving)
        self.session = session
        self._no_read: PolymuxError | None = None  # why nothing can be read, after what is there
        self._closed = False  # this side reads no more
        self._reader: Waiter | None = None
        # Who waits to send, and the octets they bring.
        self._writers: dict[asyncio.Future[None], int] | None = None
        self._acceptance: asyncio.Future[None] | None = None

    # --- sending

    def _join_writers(self, size: int) -> asyncio.Future[None]:
        """To be awaited by who wants to send so many octets, and then to be left."""
        waiter: asyncio.Future[None] = self.session.loop.create_future()
        if self._writers is None:
            self._writers = {}
        self._writers[waiter] = size
        return waiter

    def _leave_writers(self, waiter: asyncio.Future[None]) -> None:
        assert self._writers is not None
        del self._writers[waiter]

    # --- ending

    def _end(self) -> None:
        """End this side's half once what is queued has left."""
        if self._no_send is None:
            self._endpoint.end(self.record)
            if len(self.session._live) == 1:  # nothing to leave together with
                self._leaving.flush()
            else:
                self._leaving.give_part()

    def _stop_reading(self) -> None:
        """This side reads no more; what was not read is lost."""
        if not self._closed:
            self._closed = True
            self._endpoint.stop_reading(self.record)
            self._wake()
        self.session._relieved(whole(self))

    def give_up(self, reason: str, text: str = "") -> None:
        """Abort, with `reason` for whoever still waits here and `text` for the peer."""
        self._stop(StreamAborted(f"{self}: {reason}"))
        self._count_given_up()
        self._endpoint.abort(self.record, text.encode())
        self._wake_all()
        self.session._relieved(whole(self))

    def _count_given_up(self) -> None:
        """A peer bounds how many streams are opened and given up: so many fewer are opened."""
        record = self.record
        if record.opener == self._endpoint.side and not record.over and not self.lane.given_up:
            self.session._openings.gave_up(self.session.given_up_weight)

    # --- receiving

    def _is_over(self) -> bool:
        """Is this the end of the data? Raises if it is an end of another kind."""
        if self._no_read is not None:
            raise again(self._no_read)
        if self._closed:
            raise StreamEnded(f"{self} was closed by this side")
        if self._theirs.state == OPEN:
            return False
        if self.record.error is not None and self.record.reset_by != self._endpoint.side:
            raise self._peer_aborted(self.record.error)
        return True

    def _wait_to_receive(self) -> Waiter:
        """To be awaited by one task at a time."""
        reader = self._reader
        if reader is None:
            reader = self._reader = Waiter(self.session._wakings)
        elif reader.state != IDLE:
            raise RuntimeError(f"{self} is already being read by another task")
        return reader

    def _take(self) -> bytes:
        parts = self._endpoint.take(self.lane)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self._have_read(len(data))
        return data

    def _have_read(self, size: int) -> None:
        self._endpoint.read(self.record, size)
        session = self.session
        if session._pacing.paused_at:
            session._pacing.look()
        if self._endpoint.outbox.control:
            self._leaving.give()
        if self.record.over:
            session._forget(whole(self))

    # --- what the session tells

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.wake()

    def _wake_writers(self) -> int:
        """Let those who wait to send look again; returns the octets they bring."""
        size = 0
        if self._writers is not None:
            for waiter, amount in self._writers.items():
                if not waiter.done():
                    waiter.set_result(None)
                    size += amount
        return size

    def _wake_all(self) -> None:
        if self._acceptance is not None and not self._acceptance.done():
            self._acceptance.set_result(None)
        self._wake()
        if self._writers:
            self._wake_writers()

    def _stop(self, problem: PolymuxError) -> None:
        """Neither way any more; the first reason stands."""
        if self._no_read is None:
            self._no_read = problem
        if self._no_send is None:
            self._no_send = problem

    def _refuse(self, problem: PolymuxError) -> None:
        """This side can send no more; it may still read."""
        if self._no_send is None:
            self._no_send = problem
        self._wake_writers()

    def _aborted(self, text: bytes) -> None:
        """The peer gave the stream up."""
        self._stop(self._peer_aborted(text))
        self._endpoint.outbox.drop(self.lane)
        if self.session.drops_unread:
            self._endpoint.inbox.drop(self.lane)
        self._wake_all()
        self.session._relieved(whole(self))

    def _set_aside(self) -> None:
        """Nobody will read what has come, nor what is yet to come."""
        self._endpoint.inbox.drop(self.lane)
        self.session._relieved(whole(self))

    def _over(self) -> None:
        """Both halves are over. If ours was cut short, that was the peer's doing."""
        self._endpoint.outbox.drop(self.lane)
        if self._own.state == ABORTED:
            self._refuse(self._peer_aborted(self.record.error or b""))
        self._wake_all()

    def _lost(self, problem: PolymuxError, answers: bool = False) -> None:
        """No more octets come. With `answers`, a stream that the peer has ended can still send."""
        if self._theirs.state == OPEN and self._no_read is None:
            self._no_read = problem
        if self._no_send is None and not (answers and self._theirs.state != OPEN):
            self._no_send = problem
        self._wake_all()

    def _peer_aborted(self, text: bytes) -> StreamAborted:
        said = f": {plain(text)}" if text else ""
        return StreamAborted(f"{self} was aborted by the peer{said}")


def whole(ends: Ends) -> "Stream":
    """There is no other kind."""
    return cast("Stream", ends)
