# mypyc: compiled
"""From a session's send scheduler to its transport: flushes, and the ways to write.

A flush encodes what is sendable and hands it to the transport. It normally runs once in an
event-loop iteration, so that small messages of many tasks leave in one system call. Three cases do
not wait for it: replies to a received chunk, and what senders queue that a flush has woken, are
flushed when these have run (see `wakeups`), a sender that fills the buffer flushes by itself
(`flush_for_sender`), and after many opened or closed streams they are flushed together
(`schedule_or_flush`).

Where the transport is asyncio's own socket transport and holds no data, bytes go to the socket
directly, uncopied. Whatever the socket does not take goes to the transport.
"""

import os
from collections.abc import Callable
from time import monotonic_ns
from typing import Final

from mypy_extensions import i64

from polymux.core.endpoint import Endpoint
from polymux.live.session.busy_poll import BusyPoller
from polymux.live.transport import Transport

# Bytes encoded by one flush, and held by the transport before writing pauses.
WRITE_HIGH_WATER_BYTES: Final[i64] = 262144
MIN_IMMEDIATE_WRITE_BYTES: Final[i64] = 65536  # worth a system call of their own
SENDER_QUOTA_BYTES: Final[i64] = 1048576  # senders may send before they yield to the loop
PROMPT_QUOTA_BYTES: Final[i64] = 131072  # the same while an answer is awaited that is being timed
MIN_WRITEV_BYTES: Final[i64] = 65536  # from here on joining the chunks costs more than `writev`
WRITEV_BATCH_BYTES: Final[i64] = 131072  # per `writev`: the peer reads one batch during the next
MAX_WRITEV_BUFFERS: Final[i64] = 512  # per `writev`; below IOV_MAX of every system
MAX_UNFLUSHED_STREAM_CHANGES: Final[i64] = 16  # opened or closed streams that wait for a flush


class SocketWriter:
    """Writes what a session has to send.

    Args:
        endpoint: Encodes the frames.
        call_soon: Schedules a callback for the next event-loop iteration.
        writable_transport: Returns the transport, or None while nothing may be written.
        after_write: Called after every write.
        on_loop_iteration: Called in the event-loop iteration after a flush was scheduled; runs it
            (`WakeupQueue`).
        busy_poller: Notified of every write.

    `fd` is the socket's descriptor if bytes may be written to it directly, else -1.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        call_soon: Callable[[Callable[[], None]], object],
        writable_transport: Callable[[], Transport | None],
        after_write: Callable[[], object],
        on_loop_iteration: Callable[[], None],
        busy_poller: BusyPoller,
    ) -> None:
        self.endpoint = endpoint
        self.call_soon = call_soon
        self.writable_transport = writable_transport
        self.after_write = after_write
        self.on_loop_iteration = on_loop_iteration
        self.busy_poller = busy_poller
        self.fd: int = -1
        self.closed = False  # the connection is gone: no flush is scheduled any more
        self.flush_scheduled = False
        self.flush_follows = False  # what is scheduled is flushed without a loop iteration
        self.blocked = False  # the transport has paused writing
        self.senders_waiting = False  # for room in the send buffers
        self.bytes_sent: i64 = 0  # handed to the transport
        self.sent_at: i64 = 0  # when, in nanoseconds of the runtime's clock
        self.bytes_since_yield: i64 = 0  # of these, since the last event-loop iteration
        self.sender_quota: i64 = SENDER_QUOTA_BYTES
        self.streams_changed: i64 = 0  # opened or closed since the last write

    # Scheduling

    def schedule_flush(self) -> None:
        """Schedule a flush unless one is already scheduled."""
        if not self.flush_scheduled and not self.closed:
            self.flush_scheduled = True
            if not self.flush_follows:
                self.call_soon(self.on_loop_iteration)

    def schedule_if_needed(self, force: bool) -> None:
        """Schedule a flush if anything is to be sent, senders wait for room, or `force`."""
        scheduler = self.endpoint.scheduler
        encoded = len(scheduler.writer) > 0 or len(scheduler.chunks) > 0
        if force or encoded or self.senders_waiting or self.endpoint.pending():
            self.schedule_flush()

    def schedule_or_flush(self) -> None:
        """A stream was opened or closed: schedule a flush. After several of them, write at once,
        so that the peer can begin to process them."""
        self.streams_changed += 1
        if self.streams_changed >= MAX_UNFLUSHED_STREAM_CHANGES:
            self.write()
        else:
            self.schedule_flush()

    def schedule_pending(self) -> None:
        """Schedule a flush if anything could be sent now."""
        if self.endpoint.pending():
            self.schedule_flush()

    def flush_pending(self) -> None:
        """Run the scheduled flush, and flush what could be sent now."""
        if self.flush_scheduled or (not self.closed and self.endpoint.pending()):
            self.flush()

    def close(self) -> None:
        """Stop writing: the connection is gone."""
        self.closed = True
        self.flush_scheduled = False
        self.fd = -1

    # Writing

    def flush(self) -> None:
        """Encode and write what is sendable now."""
        self.flush_scheduled = False
        self.write()

    def flush_for_sender(self) -> bool:
        """Write at once for a sender that would have to wait. Return False if it has to wait."""
        if self.blocked or self.senders_waiting or self.bytes_since_yield >= self.sender_quota:
            return False
        if self.endpoint.scheduler.ready_bytes < MIN_IMMEDIATE_WRITE_BYTES:
            return False  # the sender waits for credit, not for room
        before = self.bytes_sent
        self.write()
        return self.bytes_sent > before

    def quota_used(self) -> bool:
        """Return whether senders have to yield to the event loop."""
        return self.bytes_since_yield >= self.sender_quota

    def set_prompt(self, prompt: bool) -> None:
        """While `prompt`, let the event loop run after less sent data, so that it reads sooner."""
        self.sender_quota = PROMPT_QUOTA_BYTES if prompt else SENDER_QUOTA_BYTES

    def write(self) -> None:
        """Encode up to WRITE_HIGH_WATER_BYTES of what is sendable and hand it to the transport."""
        self.streams_changed = 0
        if self.blocked:
            return
        transport = self.writable_transport()
        if transport is None:
            return
        chunks = self.endpoint.chunks_to_send(WRITE_HIGH_WATER_BYTES)
        if len(chunks) > 0:
            written = self.write_chunks(transport, chunks)
            self.bytes_sent += written
            self.sent_at = self.endpoint.now
            self.bytes_since_yield += written
            poller = self.busy_poller
            if poller.budget_ns > 0:  # `BusyPoller.on_send` inlined: it runs for every write
                poller.sent_at_ns = monotonic_ns()
                if poller.fast_replies >= poller.fast_replies_needed:
                    poller.start_polling(self.call_soon)
        self.after_write()

    def write_chunks(self, transport: Transport, chunks: list[bytes]) -> i64:
        """Hand all chunks to the transport, in order. Return their size in bytes.

        A system call for each chunk would cost more than joining them, and asyncio's `writelines`
        passes small buffers to the system one by one, in some versions without ever pausing the
        writer. Large chunks go to the socket together, uncopied.
        """
        size: i64 = 0
        for chunk in chunks:
            size += len(chunk)
        if len(chunks) > 1 and (
            self.fd < 0 or size < MIN_WRITEV_BYTES or len(chunks) > MAX_WRITEV_BUFFERS
        ):
            chunks = [b"".join(chunks)]
        if self.fd < 0:
            transport.write(chunks[0])
            return size
        taken: i64 = 0
        if transport.get_write_buffer_size() == 0 and not transport.is_closing():
            taken = self.try_write(chunks)
        if taken == size:
            return size
        for chunk in chunks:  # a transport that holds data appends to it without a system call
            length: i64 = len(chunk)
            if taken >= length:
                taken -= length
            else:
                transport.write(memoryview(chunk)[taken:] if taken > 0 else chunk)
                taken = 0
        return size

    def try_write(self, chunks: list[bytes]) -> i64:
        """Write to the socket. Return how many bytes it took.

        An error counts as nothing taken: the transport meets the same error and reports it.
        """
        taken: i64 = 0
        size: i64 = 0
        first: i64 = 0
        after: i64 = 0
        last: i64 = len(chunks)
        try:
            if last == 1:
                return os.write(self.fd, chunks[0])
            while after < last:
                size += len(chunks[after])
                after += 1
                if size >= WRITEV_BATCH_BYTES or after == last:
                    written: i64 = os.writev(self.fd, chunks[first:after])
                    taken += written
                    if written < size:
                        break
                    first = after
                    size = 0
        except OSError:
            pass
        return taken
