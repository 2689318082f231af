"""Read backpressure: a session with slow readers pauses its transport, for a bounded time.

Where the protocol has credit, each stream limits its own sender, and the credit of all streams is
given within a bound on their sum (`core/window_budget.py`). Without credit (mplex),
or where content comes in whole messages of any size, the only way to slow the peer down is to stop
reading from the connection. That stops every stream: a single task that never reads would block all
others (head-of-line blocking) for ever. So:

- Reading pauses when what is unread exceeds its share of `Limits.session_buffer_bytes`, and
  resumes as soon as it is below it again. Small amounts never pause anything. Unread are the bytes,
  and what each part of them costs besides (`core.streams.PART_BYTES`): a frame of two bytes takes
  thirty times its content. Where content has no boundaries, many small parts are joined first.
- A pause lasts `Timeouts.slow_reader` seconds at most. Then the stream that holds most is aborted,
  and the next one, until the session is below its share.
- Data queued for sending counts against the same budget, so a peer that does not read is read from
  less. A quarter of the budget is always left for reading; otherwise two sides that only send would
  wait for each other.
- The sessions of a server share a budget too (`ServerBudget`). While that is used up, sessions of
  any protocol that hold more than their share pause in the same way.

Two other causes also hold reading: `hold` (a full disk) and `hold_at_stream_limit` (see
`excess_streams`). The transport reads only while none of these applies.
"""

from polymux.core.errors import LimitExceeded
from polymux.core.limits import MAX_LIMIT
from polymux.core.streams import PART_BYTES
from polymux.core.window_budget import WINDOWS_FACTOR
from polymux.live.runtime import Timer
from polymux.live.session.assembly import Assembly
from polymux.live.session.component import SessionComponent
from polymux.live.session.interface import SessionInterface
from polymux.live.session.server_budget import ServerBudget
from polymux.live.streams.duplex import Stream

MIN_READ_SHARE_DIVISOR = 4  # a quarter of the budget is for unread data, whatever is queued
# A third of the budget is for data being read or reassembled, and for the overhead of all objects.
OVERHEAD_SHARE_DIVISOR = 3
COMPACT_STEP_BYTES = 256 * 1024  # with more unread, wasteful parts are joined after as many bytes
# Small parts are joined when there are more than these: where memory is scarce; and in any case.
MIN_PARTS_JOINED = 256
MAX_PARTS = COMPACT_STEP_BYTES // PART_BYTES


class ReadBackpressure(SessionComponent[SessionInterface]):
    """Watches what one session holds, and pauses its transport."""

    def __init__(self, session: SessionInterface, assembly: Assembly) -> None:
        super().__init__(session)
        self.paused_at = 0.0  # when slow readers paused reading; 0.0 while they do not
        self.pause_count = 0
        self.held = False  # reading is held by `hold`
        self.held_at_stream_limit = False  # reading is held by `hold_at_stream_limit`
        self.server_budget: ServerBudget | None = None
        self._lease_bytes = MAX_LIMIT
        self._record_bytes = 0  # for records of streams that have no stream object
        self._assembly = assembly
        self._timer: Timer | None = None
        self._compacted_at = 0  # bytes received by then
        self._parts_kept = 0  # unread parts that were left then, or less
        self._set_threshold()

    @property
    def is_paused(self) -> bool:
        """Whether this side does not read at the moment, for any cause."""
        return self.held or self.held_at_stream_limit or self.paused_at > 0

    @property
    def held_bytes(self) -> int:
        """Bytes that count against the budget of the server."""
        session = self.session_or_none()
        unread = 0 if session is None else session.endpoint.receive_queue.held_bytes
        return unread + self._assembly.total_bytes + self._record_bytes

    @property
    def lease_bytes(self) -> int:
        """What may be held without asking `server_budget`."""
        return self._lease_bytes

    @lease_bytes.setter
    def lease_bytes(self, size: int) -> None:
        self._lease_bytes = size
        self._set_threshold()

    def share_budget(self, budget: ServerBudget) -> None:
        """Count what the session holds against the budget of its server."""
        self.server_budget = budget
        self.lease_bytes = budget.base_lease_bytes

    def hold(self, held: bool) -> None:
        """Pause reading regardless of what is unread, or release that pause."""
        self.held = held
        self._apply()

    def hold_at_stream_limit(self, held: bool) -> None:
        """Pause reading while there is no room for a stream of the peer, or release that pause."""
        self.pause_count += held
        self.held_at_stream_limit = held
        self._apply()

    def _apply(self) -> None:
        transport = self.session.transport
        if transport is None or transport.is_closing():
            return
        if self.is_paused:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def count_records(self, size: int) -> None:
        """Count `size` bytes for records of streams that have no stream object."""
        self._record_bytes = size
        if self.held_bytes > self.lease_bytes and not self.paused_at:
            self.update()

    def on_assembled(self) -> None:
        """More bytes are being put together to a message."""
        if self.held_bytes > self.lease_bytes and not self.paused_at:
            self.update()

    def update(self) -> None:
        """Pause or resume reading.

        Called when more than `ReceiveQueue.held_threshold` is held after a received chunk, and
        during a pause when bytes were read or sent.
        """
        session = self.session_or_none()
        if session is None:
            return
        transport = session.transport
        if transport is None or transport.is_closing():
            return
        if not self.paused_at:
            self._compact_unread()
        exceeded = self._exceeded_limit()
        if not self.paused_at:
            if exceeded:
                transport.pause_reading()
                self.paused_at = session.runtime.time()
                self.pause_count += 1
                session.endpoint.counters.count(exceeded)
                self._timer = session.runtime.call_later(
                    session.timeouts.slow_reader, self._on_pause_timeout
                )
        elif not exceeded:
            self._end_pause()
            self._apply()

    def _set_threshold(self) -> None:
        """Set how much may be held before `update` has to be called."""
        session = self.session_or_none()
        if session is None:
            return
        endpoint = session.endpoint
        endpoint.receive_queue.held_threshold = min(
            self._lease_bytes,
            COMPACT_STEP_BYTES,
            endpoint.limits.session_buffer_bytes // MIN_READ_SHARE_DIVISOR,
        )

    def _exceeded_limit(self, freed: int = 0) -> str:
        """Return the name of the limit because of which reading has to pause, or an empty text.

        Args:
            freed: Bytes that unfinished messages no longer hold, and that are about to be filled
                from what is unread.
        """
        endpoint = self.session.endpoint
        unread = endpoint.receive_queue.held_bytes - freed
        budget = endpoint.limits.session_buffer_bytes
        if endpoint.protocol.has_credit and not endpoint.protocol.content_is_messages:
            # Only what this side cannot hold back exceeds it: last items of Minmux need no credit,
            # and the initial window of yamux is fixed. Of these windows as much may be unread as
            # of others: a reader that takes one stream after the other relies on the windows of
            # the others, and must not be blocked by them. So only bytes count, as in windows; their
            # parts are joined.
            unread = endpoint.receive_queue.unread_bytes - freed
            windows = endpoint.receive_queue.window_bytes
            smallest = endpoint.protocol.min_receive_window
            allowed = budget + max(0, windows - len(self.session.streams) * smallest)
            if smallest > 1:
                allowed += (WINDOWS_FACTOR - 1) * budget
        elif unread * MIN_READ_SHARE_DIVISOR <= budget and not self.paused_at:
            allowed = unread
        else:
            allowed = self.allowed_unread()
        if unread > allowed:
            return "session_buffer_bytes"
        if self.server_budget is not None and not self.server_budget.may_hold(
            self, self.held_bytes
        ):
            return "server_buffer_bytes"
        return ""

    def allowed_unread(self) -> int:
        """Return how much unread content may hold now, in a protocol without credit."""
        session = self.session
        endpoint = session.endpoint
        transport = session.transport
        budget = endpoint.limits.session_buffer_bytes
        held = endpoint.scheduler.ready_bytes
        # The transport's buffer counts only while writing is paused: only then does its end cause
        # another update.
        if transport is not None and session.socket_writer.blocked:
            held += transport.get_write_buffer_size()
        if endpoint.protocol.content_is_messages:
            # One message that is incomplete, and one that is being delivered.
            held += 2 * endpoint.protocol.max_frame_bytes
        return max(
            budget // MIN_READ_SHARE_DIVISOR, budget - budget // OVERHEAD_SHARE_DIVISOR - held
        )

    def _compact_unread(self) -> None:
        """Join unread parts that hold much more memory than they have bytes, if it is time."""
        session = self.session
        endpoint = session.endpoint
        queue = endpoint.receive_queue
        received = endpoint.connection.direction(1 - endpoint.side).total_bytes
        much_came = (
            queue.unread_bytes > COMPACT_STEP_BYTES
            and received - self._compacted_at >= COMPACT_STEP_BYTES
        )
        if much_came or self._has_too_many_parts(queue.unread_parts):
            self._compacted_at = received
            for stream in session.streams.values():
                queue.compact(stream.buffers)
            self._parts_kept = queue.unread_parts

    def _has_too_many_parts(self, parts: int) -> bool:
        """Whether small parts should be joined: twice as many as were left the last time."""
        self._parts_kept = min(self._parts_kept, parts)
        most = MAX_PARTS
        scarce = min(
            self.lease_bytes,
            self.session.endpoint.limits.session_buffer_bytes // MIN_READ_SHARE_DIVISOR,
        )
        if self.held_bytes > scarce:
            most = min(MAX_PARTS, MIN_PARTS_JOINED + len(self.session.streams))
        return parts > max(most, 2 * self._parts_kept)

    def _on_pause_timeout(self) -> None:
        """Abort the streams that hold most until the session can read again."""
        session = self.session_or_none()
        if session is None:
            return
        endpoint = session.endpoint
        limits = endpoint.limits
        seconds = session.timeouts.slow_reader
        freed = 0
        while exceeded := self._exceeded_limit(freed):
            largest = max(session.streams.values(), key=self._cost_of, default=None)
            size = 0 if largest is None else self._bytes_held_by(largest)
            if largest is None or not size:
                break
            endpoint.counters.count("stream_buffer_bytes")
            freed += self._assembly.held_by(largest)
            largest.abort_with_reason(
                f"not read for {seconds:g} s while {size} bytes waited "
                f"and held up the other streams; {limits.describe(exceeded)}"
            )
            self._assembly.release(largest)
        if exceeded == "server_buffer_bytes" and self._record_bytes:
            session.fail(
                LimitExceeded(
                    f"the peer uses too many streams at once: {limits.describe(exceeded)}"
                )
            )
            return
        self.update()
        if self.paused_at:  # the rest belongs to no stream and goes when queued data is sent
            self._timer = session.runtime.call_later(seconds, self._on_pause_timeout)

    def _bytes_held_by(self, stream: Stream) -> int:
        return unread_bytes(stream) + self._assembly.held_by(stream)

    def _cost_of(self, stream: Stream) -> int:
        return stream.buffers.held_bytes + self._assembly.held_by(stream)

    def _end_pause(self) -> None:
        self.paused_at = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self) -> None:
        """End the pause for slow readers and its timer: the connection is gone."""
        self._end_pause()
        if self.server_budget is not None:
            self.server_budget.release(self)
            self.server_budget = None


def unread_bytes(stream: Stream) -> int:
    """Return the bytes of a stream that the application has not read."""
    return stream.buffers.unread_bytes
