# mypyc: compiled
"""The non-blocking part of a stream: queueing, taking received data, ending, session callbacks.

Every message passes through here, however small, so this module is compiled. The methods that may
have to wait are in `duplex.Stream`, the only direct subclass.

A stream object joins three things that outlive each other in different orders:

- `state`, the protocol's record of the stream, with one half for each side;
- `buffers`, the bytes received and not read, and the bytes queued and not sent;
- `session`, which keeps the stream in `Session.streams` until both halves are closed and everything
  received has been read or discarded.

Invariants:

- `read_error` and `send_error` are set at most once: the first reason is the one that is raised. A
  copy is raised, so that tracebacks do not accumulate. A stream that cannot send at all (a
  receiver) or cannot be read at all (a sender) has its error from the beginning.
- Data received before an end or an error is always delivered first. Only a reset by the peer may
  discard it, where the protocol says so (`SessionBase.reset_discards_unread`).
- Credit returns to the peer when data is read, not when it arrives.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mypy_extensions import i64, mypyc_attr

from polymux.core.endpoint import Endpoint
from polymux.core.errors import PolymuxError, StreamAborted, StreamEnded
from polymux.core.streams import ABORTED, ENDED, OPEN, HalfStream, StreamBuffers, StreamState
from polymux.live.errors import AlreadyReading, copy_of, printable
from polymux.live.session.socket_writer import SocketWriter
from polymux.live.session.wakeups import IDLE, WAITING, SendWaiter, Waiter

if TYPE_CHECKING:
    from polymux.live.session.interface import SessionInterface


@mypyc_attr(allow_interpreted_subclasses=True)
class StreamBase:
    """Everything a stream does without waiting."""

    __slots__ = (
        "_reading_closed",
        "buffers",
        "endpoint",
        "own_half",
        "peer_half",
        "read_error",
        "read_waiter",
        "send_error",
        "session",
        "socket_writer",
        "state",
        "waiting_senders",
    )

    def __init__(self, session: "SessionInterface", state: StreamState) -> None:
        buffers = state.buffers
        assert buffers is not None  # closed streams have none, and get no stream object
        endpoint = session.endpoint
        self.session = session
        self.endpoint: Endpoint = endpoint
        self.socket_writer: SocketWriter = session.socket_writer
        self.state: StreamState = state
        self.buffers: StreamBuffers = buffers
        self.own_half: HalfStream = state.half(endpoint.side)
        self.peer_half: HalfStream = state.half(1 - endpoint.side)
        self.send_error: PolymuxError | None = None  # raised by every send once set
        self.read_error: PolymuxError | None = None  # raised by reads once the buffer is empty
        self._reading_closed = False  # this side has closed the stream for reading
        self.read_waiter: Waiter | None = None
        # Callers that wait to send, or for a change of the stream:
        self.waiting_senders: dict[SendWaiter, None] | None = None

    # Sending

    def send_nowait(self, data: bytes | bytearray | memoryview) -> None:
        """Queue `data` without waiting.

        It is sent when the stream has credit and the scheduler reaches it. The queue is not
        bounded here: the caller limits what it adds, for example with `drain`.

        Args:
            data: Bytes; a mutable buffer is copied.

        Raises:
            StreamEnded, StreamAborted, SessionClosed: Nothing more can be sent on the stream.
            TypeError: `data` is not a bytes-like object.
        """
        problem = self.send_error
        if problem is not None:
            raise copy_of(problem)
        self.endpoint.send(self.state, data if isinstance(data, bytes) else copied_bytes(data))
        self.socket_writer.schedule_flush()

    def send_many(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Queue several pieces without waiting: all of them, or none if it raises.

        Args:
            pieces: Bytes-like objects. Each becomes a frame of its own if it fits into one.

        Raises:
            StreamEnded, StreamAborted, SessionClosed: Nothing more can be sent on the stream.
            TypeError: One of the pieces is not a bytes-like object.
        """
        problem = self.send_error
        if problem is not None:
            raise copy_of(problem)
        copied: list[bytes] = []
        for piece in pieces:
            copied.append(piece if isinstance(piece, bytes) else copied_bytes(piece))
        self.endpoint.send_many(self.state, copied)
        self.socket_writer.schedule_flush()

    def _try_send(self, data: object) -> bool:
        """Queue bytes if there is buffer space and credit. False: nothing was done."""
        if not isinstance(data, bytes) or self.send_error is not None or not can_queue(self):
            return False
        self.endpoint.send(self.state, data)
        self.socket_writer.schedule_flush()
        return True

    def send_would_block(self) -> bool:
        """Whether `send` would have to wait now."""
        return self.send_error is None and is_send_full(self)

    def _wait_for_room(self, size: int, woken: bool) -> SendWaiter | None:
        """Begin to wait until `size` bytes can be queued.

        Args:
            size: How many bytes the caller wants to queue.
            woken: The caller has waited before, was woken, and found no room.

        Returns:
            What the caller has to await, and to `_remove_waiting_sender` afterwards; None if it has
            to look again at once: something was written, or has been found to lack credit.
        """
        if self.socket_writer.flush_for_sender() or not self.send_would_block():
            return None
        session = self.session
        waiter = self._add_waiting_sender(size)
        session.send_waiters.add(self, woken)
        self.socket_writer.schedule_flush()
        return waiter

    def _add_waiting_sender(self, size: int) -> SendWaiter:
        """Return a waiter that `wake_senders` wakes; `_remove_waiting_sender` it afterwards."""
        waiter = SendWaiter(self.session.wakeup_queue, size)
        if self.waiting_senders is None:
            self.waiting_senders = {}
        self.waiting_senders[waiter] = None
        return waiter

    def _remove_waiting_sender(self, waiter: SendWaiter) -> None:
        assert self.waiting_senders is not None
        del self.waiting_senders[waiter]

    # Ending

    def _queue_end(self) -> None:
        """End this side's half after the data that is queued."""
        if self.send_error is None:
            queue_end(self)

    def stop_reading(self) -> None:
        """Close the stream for reading; unread data is discarded.

        The peer is notified where the protocol can express it (Nerdbank v2, v3).
        """
        if not self._reading_closed:
            self._reading_closed = True
            self.endpoint.stop_reading(self.state)
            self.wake_reader()
        self.session.on_stream_released(self)

    def abort_with_reason(self, reason: str, text: str = "") -> None:
        """Abort both directions.

        Args:
            reason: Goes into the StreamAborted that callers waiting on this side receive.
            text: Sent to the peer where the protocol has a field for it.
        """
        self.set_error(StreamAborted(f"{self}: {reason}"))
        self._count_abort()
        self.endpoint.abort(self.state, text.encode())
        self.wake_all()
        self.session.on_stream_released(self)

    def _count_abort(self) -> None:
        """Slow down the opening of streams: peers limit the rate of opened and aborted ones."""
        state = self.state
        if state.opener == self.endpoint.side and not state.over and not self.buffers.aborted:
            self.session.open_allowance.on_stream_aborted(self.session.aborted_stream_weight)

    # Receiving

    def check_eof(self) -> bool:
        """Return whether the data has ended normally; call it when the buffer is empty.

        Raises:
            StreamAborted, SessionClosed: The data ended in another way.
            StreamEnded: This side has closed the stream for reading.
        """
        if self.read_error is not None:
            raise copy_of(self.read_error)
        if self._reading_closed:
            raise StreamEnded(f"{self} was closed by this side")
        if is_content_missing(self):
            return False
        if self.state.error is not None and self.state.reset_by != self.endpoint.side:
            raise self._peer_abort_error(self.state.error)
        return True

    def _take_next(self) -> bytes | None:
        """Take everything received, as `_take_received`; empty at the end, None if none has come.

        Raises:
            StreamAborted, StreamEnded, SessionClosed: As `check_eof`.
        """
        if len(self.buffers.received) > 0:
            return take_received(self)
        return b"" if self.check_eof() else None

    def wait_readable(self) -> Waiter:
        """Return an awaitable that ends when the reader has something new to look at.

        Raises:
            RuntimeError: Another task is already waiting; only one may read at a time.
        """
        reader = self.read_waiter
        if reader is None:
            reader = self.read_waiter = Waiter(self.session.wakeup_queue)
        elif reader.state != IDLE:
            raise AlreadyReading(f"{self} is already being read by another task")
        return reader

    def _take_received(self) -> bytes:
        """Remove and return everything received, and return the credit for it."""
        return take_received(self)

    def credit_read(self, size: int) -> None:
        """Account for `size` bytes read: return credit, and resume reading from the transport."""
        credit_read(self, size)

    def discard_unread(self) -> None:
        """Drop what was received and what is still to come: it will not be read."""
        self.endpoint.receive_queue.discard(self.buffers)
        self.session.on_stream_released(self)

    # Receiving with delayed credit. Internal interface for a reader that decides itself when data
    # counts as read, such as `polymux.record.ingest`. It polls with `has_unread`, `check_eof` and
    # `wait_readable`.

    @property
    def has_unread(self) -> bool:
        """Whether received data is in the buffer."""
        return len(self.buffers.received) > 0

    @property
    def unread_bytes(self) -> int:
        """Bytes that count as unread against the session's buffer limit."""
        return self.buffers.unread_bytes

    def drop_unread_uncredited(self) -> int:
        """Drop everything received, but keep the credit for it.

        Returns:
            The credit kept, in the units of the protocol (bytes or messages). The caller passes it
            to `return_credit_now` later.
        """
        size = self.buffers.unread_bytes
        parts = self.endpoint.take_received(self.buffers)
        if self.endpoint.protocol.content_is_messages:
            return len(parts)
        return size

    def return_credit_now(self, units: int) -> None:
        """Return credit kept by `drop_unread_uncredited`, all of it at once.

        Ordinary reads wait until half a window has accumulated. Here the sender may be waiting for
        the credit as a confirmation of its last byte.
        """
        self.credit_read(units)
        buffers = self.buffers
        if buffers.unreturned_credit and self.peer_half.state == OPEN and not self.state.over:
            amount = buffers.unreturned_credit
            buffers.unreturned_credit = 0
            endpoint = self.endpoint
            endpoint.queue_frame(
                self.state, endpoint.protocol.credit_frame(endpoint.side, self.state, amount)
            )
            self.session.schedule_flush()

    def free_unread(self) -> None:
        """Free the memory of received data, which still counts as unread until `mark_read`.

        For protocols without credit: the session's buffer limit is then what bounds the sender.
        """
        self.endpoint.receive_queue.replace_received(self.buffers, [])

    def mark_read(self, size: int) -> None:
        """Count `size` bytes freed by `free_unread` as read."""
        buffers = self.buffers
        if 0 < size <= buffers.unread_bytes and not buffers.discarding:
            if size == buffers.unread_bytes:
                self.endpoint.receive_queue.replace_received(buffers, [])
            self.endpoint.receive_queue.count_taken(buffers, size, 0)
            self.credit_read(size)

    # Callbacks of the session

    def wake_reader(self) -> None:
        """Let the task that waits in `wait_readable` look again."""
        if self.read_waiter is not None:
            self.read_waiter.wake()

    def wake_senders(self) -> int:
        """Let the callers that wait to send look again. Return the bytes they want to queue."""
        return wake_senders(self)

    def wake_all(self) -> None:
        """Let every caller that waits on this stream look again."""
        self.wake_reader()
        wake_senders(self)

    def set_error(self, problem: PolymuxError) -> None:
        """End both directions with `problem`, unless they already have an error."""
        if self.read_error is None:
            self.read_error = problem
        if self.send_error is None:
            self.send_error = problem

    def set_send_error(self, problem: PolymuxError) -> None:
        """End sending with `problem`; reading is not affected."""
        if self.send_error is None:
            self.send_error = problem
        wake_senders(self)

    def on_peer_abort(self, text: bytes) -> None:
        """The peer aborted the stream, with `text` as its reason."""
        self.set_error(self._peer_abort_error(text))
        self.endpoint.scheduler.discard_outgoing(self.buffers)
        if self.session.reset_discards_unread:
            self.endpoint.receive_queue.discard(self.buffers)
        self.wake_all()
        self.session.on_stream_released(self)

    def on_closed(self) -> None:
        """Both halves are closed."""
        close_stream(self)

    def on_connection_lost(self, problem: PolymuxError, can_reply: bool = False) -> None:
        """No more bytes will arrive.

        With `can_reply` the connection can still be written to: a stream whose peer half has ended
        keeps sending.
        """
        if is_content_missing(self) and self.read_error is None:
            self.read_error = problem
        if self.send_error is None and not (can_reply and self.peer_half.state != OPEN):
            self.send_error = problem
        self.wake_all()

    def _peer_abort_error(self, text: bytes) -> StreamAborted:
        reason = f": {printable(text)}" if text else ""
        return StreamAborted(f"{self} was aborted by the peer{reason}")


# Functions, not methods: a compiled method that calls another one has to look for an override in
# interpreted subclasses each time.


def can_queue(stream: StreamBase) -> bool:
    """Whether more can be queued without waiting, if necessary after flushing the queue."""
    return not is_send_full(stream) or (
        stream.socket_writer.flush_for_sender() and not is_send_full(stream)
    )


def is_send_full(stream: StreamBase) -> bool:
    """Whether a send buffer is full, or all credit is spent or reserved by queued data."""
    buffers = stream.buffers
    own = stream.own_half
    if buffers.end_queued or own.state != OPEN:
        return False  # sending does not wait then, it raises
    if stream.endpoint.scheduler.lacks_room(buffers):
        return True
    return own.credit_granted >= 0 and own.credit_granted - own.credit_spent <= buffers.queued_bytes


def queue_end(stream: StreamBase) -> None:
    """End this side's half after the data that is queued."""
    stream.endpoint.end(stream.state)
    if stream.waiting_senders:
        wake_senders(stream)
    if len(stream.session.streams) == 1:  # no other stream to share the write with
        stream.socket_writer.flush()
    else:
        stream.socket_writer.schedule_or_flush()


def take_received(stream: StreamBase) -> bytes:
    """Remove and return everything received, and return the credit for it."""
    parts = stream.endpoint.receive_queue.take_received(stream.buffers)
    data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
    credit_read(stream, len(data))
    return data


def credit_read(stream: StreamBase, size: int) -> None:
    """Account for `size` bytes read: return credit, and resume reading from the transport."""
    if stream.peer_half.credit_granted >= 0:
        stream.endpoint.read(stream.state, size)
    session = stream.session
    if session.read_backpressure.paused_at:
        session.read_backpressure.update()
    if len(stream.endpoint.scheduler.control_queue) > 0:
        stream.socket_writer.schedule_flush()
    if stream.state.over:
        session.remove_if_finished(stream)


def wake_reader(stream: StreamBase) -> None:
    """Let the task that waits in `wait_readable` look again."""
    if stream._reading_closed:
        stream.wake_reader()
    elif stream.read_waiter is not None:
        stream.read_waiter.wake()


def close_stream(stream: StreamBase) -> None:
    """Both halves are closed. If this side's half was aborted, the peer aborted it."""
    stream.endpoint.scheduler.discard_outgoing(stream.buffers)
    if stream.own_half.state == ABORTED:
        stream.set_send_error(stream._peer_abort_error(stream.state.error or b""))
        stream.wake_all()
    else:
        wake_reader(stream)
        wake_senders(stream)


def is_content_missing(stream: StreamBase) -> bool:
    """Whether the peer has not ended its half, or its last bytes have not arrived."""
    state = stream.peer_half.state
    return state == OPEN or (state == ENDED and not stream.buffers.all_received)


def wake_senders(stream: StreamBase) -> i64:
    """Let the callers that wait to send look again. Return the bytes they want to queue."""
    size: i64 = 0
    if stream.waiting_senders is not None:
        for waiter in stream.waiting_senders:
            if waiter.state == WAITING:
                waiter.wake()
                size += waiter.size
    return size


def copied_bytes(data: object) -> bytes:
    """Return a copy of a bytes-like object. TypeError for anything else."""
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    raise TypeError(f"a stream sends bytes, not {type(data).__name__}")
