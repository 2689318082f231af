# mypyc: compiled
"""A duplex stream's two halves: everything about them that needs no waiting."""

import asyncio
from typing import TYPE_CHECKING, cast

from mypy_extensions import mypyc_attr

from polymux.aio.errors import copy_of, printable
from polymux.aio.session.wakeups import IDLE, Waiter
from polymux.aio.streams.outlet import StreamSendBase
from polymux.core.errors import PolymuxError, StreamAborted, StreamEnded
from polymux.core.streams import ABORTED, OPEN
from polymux.core.streams import StreamState as Record

if TYPE_CHECKING:
    from polymux.aio.session.interface import SessionInterface
    from polymux.aio.streams.duplex import Stream


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamBase(StreamSendBase):
    """What a stream does at once; `duplex.Stream` has what may have to wait."""

    __slots__ = (
        "acceptance", "_reading_closed", "read_error", "read_waiter", "waiting_senders", "session",
    )  # fmt: skip

    def __init__(self, session: "SessionInterface", state: Record) -> None:
        super().__init__(session.endpoint, state, session.socket_writer)
        self.session = session
        self.read_error: PolymuxError | None = None  # why nothing can be read, after what is there
        self._reading_closed = False  # this side reads no more
        self.read_waiter: Waiter | None = None
        # Who waits to send, and the bytes they bring.
        self.waiting_senders: dict[asyncio.Future[None], int] | None = None
        self.acceptance: asyncio.Future[None] | None = None

    # --- sending

    def _add_waiting_sender(self, size: int) -> asyncio.Future[None]:
        """To be awaited by who wants to send so many bytes, and then to be left."""
        waiter: asyncio.Future[None] = self.session.loop.create_future()
        if self.waiting_senders is None:
            self.waiting_senders = {}
        self.waiting_senders[waiter] = size
        return waiter

    def _remove_waiting_sender(self, waiter: asyncio.Future[None]) -> None:
        assert self.waiting_senders is not None
        del self.waiting_senders[waiter]

    # --- ending

    def _queue_end(self) -> None:
        """End this side's half once what is queued has left."""
        if self.send_error is None:
            self.endpoint.end(self.state)
            if len(self.session.streams) == 1:  # nothing to leave together with
                self.socket_writer.flush()
            else:
                self.socket_writer.schedule_or_flush()

    def _stop_reading(self) -> None:
        """This side reads no more; what was not read is lost."""
        if not self._reading_closed:
            self._reading_closed = True
            self.endpoint.stop_reading(self.state)
            self.wake_reader()
        self.session.on_stream_released(as_stream(self))

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Abort, with `reason` for whoever still waits here and `text` for the peer."""
        self.set_error(StreamAborted(f"{self}: {reason}"))
        self._count_abort()
        self.endpoint.abort(self.state, text.encode())
        self.wake_all()
        self.session.on_stream_released(as_stream(self))

    def _count_abort(self) -> None:
        """A peer bounds how many streams are opened and given up: so many fewer are opened."""
        record = self.state
        if record.opener == self.endpoint.side and not record.over and not self.buffers.aborted:
            self.session.open_allowance.on_stream_aborted(self.session.aborted_stream_weight)

    # --- receiving

    def check_eof(self) -> bool:
        """Is this the end of the data? Raises if it is an end of another kind."""
        if self.read_error is not None:
            raise copy_of(self.read_error)
        if self._reading_closed:
            raise StreamEnded(f"{self} was closed by this side")
        if self.peer_half.state == OPEN:
            return False
        if self.state.error is not None and self.state.reset_by != self.endpoint.side:
            raise self._peer_abort_error(self.state.error)
        return True

    def wait_readable(self) -> Waiter:
        """To be awaited by one task at a time."""
        reader = self.read_waiter
        if reader is None:
            reader = self.read_waiter = Waiter(self.session.wakeup_queue)
        elif reader.state != IDLE:
            raise RuntimeError(f"{self} is already being read by another task")
        return reader

    def _take_received(self) -> bytes:
        parts = self.endpoint.take_received(self.buffers)
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        self.credit_read(len(data))
        return data

    def credit_read(self, size: int) -> None:
        self.endpoint.read(self.state, size)
        session = self.session
        if session.read_backpressure.paused_at:
            session.read_backpressure.update()
        if self.endpoint.scheduler.control_queue:
            self.socket_writer.schedule_flush()
        if self.state.over:
            session.remove_if_finished(as_stream(self))

    # --- what the session tells

    def wake_reader(self) -> None:
        if self.read_waiter is not None:
            self.read_waiter.wake()

    def wake_senders(self) -> int:
        """Let those who wait to send look again; returns the bytes they bring."""
        size = 0
        if self.waiting_senders is not None:
            for waiter, amount in self.waiting_senders.items():
                if not waiter.done():
                    waiter.set_result(None)
                    size += amount
        return size

    def wake_all(self) -> None:
        if self.acceptance is not None and not self.acceptance.done():
            self.acceptance.set_result(None)
        self.wake_reader()
        if self.waiting_senders:
            self.wake_senders()

    def set_error(self, problem: PolymuxError) -> None:
        """Neither way any more; the first reason stands."""
        if self.read_error is None:
            self.read_error = problem
        if self.send_error is None:
            self.send_error = problem

    def set_send_error(self, problem: PolymuxError) -> None:
        """This side can send no more; it may still read."""
        if self.send_error is None:
            self.send_error = problem
        self.wake_senders()

    def on_peer_abort(self, text: bytes) -> None:
        """The peer gave the stream up."""
        self.set_error(self._peer_abort_error(text))
        self.endpoint.scheduler.discard_outgoing(self.buffers)
        if self.session.reset_discards_unread:
            self.endpoint.receive_queue.discard(self.buffers)
        self.wake_all()
        self.session.on_stream_released(as_stream(self))

    def discard_unread(self) -> None:
        """Nobody will read what has come, nor what is yet to come."""
        self.endpoint.receive_queue.discard(self.buffers)
        self.session.on_stream_released(as_stream(self))

    def on_closed(self) -> None:
        """Both halves are over. If ours was cut short, that was the peer's doing."""
        self.endpoint.scheduler.discard_outgoing(self.buffers)
        if self.own_half.state == ABORTED:
            self.set_send_error(self._peer_abort_error(self.state.error or b""))
        self.wake_all()

    def on_connection_lost(self, problem: PolymuxError, can_reply: bool = False) -> None:
        """No more bytes come. With `answers`, a stream that the peer has ended can still send."""
        if self.peer_half.state == OPEN and self.read_error is None:
            self.read_error = problem
        if self.send_error is None and not (can_reply and self.peer_half.state != OPEN):
            self.send_error = problem
        self.wake_all()

    def _peer_abort_error(self, text: bytes) -> StreamAborted:
        said = f": {printable(text)}" if text else ""
        return StreamAborted(f"{self} was aborted by the peer{said}")


def as_stream(stream: StreamBase) -> "Stream":
    """There is no other kind."""
    return cast("Stream", stream)
