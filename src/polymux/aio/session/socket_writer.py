# mypyc: compiled
"""From a session's outbox to its transport: once a turn of the loop, or at once."""

import os
from asyncio import Transport
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from polymux.aio.session.busy_poll import BusyPoller
from polymux.core.endpoint import Endpoint

WRITE_HIGH_WATER_BYTES: Final[i64] = (
    262144  # bytes formed at a time, and in the transport before we wait for it
)
MIN_IMMEDIATE_WRITE_BYTES: Final[i64] = 65536  # bytes that are worth a system call of their own
SENDER_QUOTA_BYTES: Final[i64] = (
    1048576  # bytes a lone sender may send before everybody else has a turn
)
MIN_WRITEV_BYTES: Final[i64] = (
    65536  # bytes from which a copy costs more than the socket's own call
)
WRITEV_BATCH_BYTES: Final[i64] = 131072  # bytes for the system: it takes more while the peer reads
MAX_WRITEV_BUFFERS: Final[i64] = 512  # in one system call; every system takes as many
MAX_UNFLUSHED_STREAM_CHANGES: Final[i64] = (
    16  # streams that begin or end, for which the peer need not wait any longer
)


class SocketWriter:
    """What is to leave a session, and its way out.

    `soon` has the loop call something; `way` gives the transport, or None while nothing may be
    written; `look` sees to what writing has left to do; `vigil` is told of it. `fd` is a plain
    socket's: bytes go to it directly while its transport holds nothing back.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        call_soon: Callable[[Callable[[], None]], object],
        writable_transport: Callable[[], Transport | None],
        after_write: Callable[[], object],
        busy_poller: BusyPoller,
    ) -> None:
        self.endpoint = endpoint
        self.call_soon = call_soon
        self.writable_transport = writable_transport
        self.after_write = after_write
        self.busy_poller = busy_poller
        self.fd: int = -1
        self.flush_scheduled = False  # a flush is on its way
        self.in_receive = False  # it need not be asked for: it follows what has come
        self.blocked = False  # the transport takes nothing more for now
        self.senders_waiting = False  # senders wait for room
        self.bytes_sent: i64 = 0  # bytes handed to the transport
        self.bytes_since_yield: i64 = 0  # and of those, since the loop had its last turn
        self.streams_changed: i64 = (
            0  # streams that have begun or ended since something was written
        )

    def schedule_flush(self) -> None:
        """Something is to leave: say so once until it does."""
        if not self.flush_scheduled:
            self.flush_scheduled = True
            if not self.in_receive:
                self.call_soon(self.on_loop_iteration)

    def schedule_if_needed(self, force: bool) -> None:
        """Say so if there is anything to leave, or somebody waits for room."""
        outbox = self.endpoint.scheduler
        formed = len(outbox.writer) > 0 or len(outbox.chunks) > 0
        if force or formed or self.senders_waiting or self.endpoint.pending():
            self.schedule_flush()

    def schedule_or_flush(self) -> None:
        """A stream has begun or ended. Several go at once: the peer begins with them meanwhile."""
        self.streams_changed += 1
        if self.streams_changed >= MAX_UNFLUSHED_STREAM_CHANGES:
            self.write()
        else:
            self.schedule_flush()

    def on_loop_iteration(self) -> None:
        """The loop's turn has come; somebody may have been quicker."""
        self.bytes_since_yield = 0
        if self.flush_scheduled:
            self.flush()

    def flush(self) -> None:
        """Write what there is, whatever was said before."""
        self.flush_scheduled = False
        self.bytes_since_yield = 0
        self.write()

    def end_receive(self, flush_now: bool) -> None:
        """What has come was dealt with: what was said in reaction to it leaves, now or soon."""
        self.in_receive = False
        if self.flush_scheduled:
            if flush_now:
                self.flush()
            else:
                self.call_soon(self.on_loop_iteration)

    def flush_for_sender(self) -> bool:
        """Write at once, for a sender that would have to wait; False if it has to."""
        if self.blocked or self.senders_waiting or self.bytes_since_yield >= SENDER_QUOTA_BYTES:
            return False
        if (
            self.endpoint.scheduler.ready_bytes < MIN_IMMEDIATE_WRITE_BYTES
        ):  # too little: it waits for leave
            return False
        before = self.bytes_sent
        self.write()
        self.bytes_since_yield += self.bytes_sent - before
        return self.bytes_sent > before

    def quota_used(self) -> bool:
        """Has a lone sender sent so much that it is time for the others?"""
        return self.bytes_since_yield >= SENDER_QUOTA_BYTES

    def write(self) -> None:
        """Form what may leave now and hand it over."""
        self.streams_changed = 0
        if self.blocked:
            return
        transport = self.writable_transport()
        if transport is None:
            return
        chunks = self.endpoint.chunks_to_send(WRITE_HIGH_WATER_BYTES)
        if len(chunks) > 0:
            self.bytes_sent += self.write_chunks(transport, chunks)
            self.busy_poller.on_send(self.call_soon)
        self.after_write()

    def write_chunks(self, transport: Transport, chunks: list[bytes]) -> i64:
        """Give the transport all chunks, in order; returns their bytes.

        A system call for each chunk would cost more than joining them, and `writelines` hands small
        buffers to the system one by one, in some versions without ever asking us to wait. Large
        ones go to the socket together, uncopied.
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
        for chunk in chunks:  # once something waits, more of it costs no system call
            length: i64 = len(chunk)
            if taken >= length:
                taken -= length
            else:
                transport.write(memoryview(chunk)[taken:] if taken > 0 else chunk)
                taken = 0
        return size

    def try_write(self, chunks: list[bytes]) -> i64:
        """Bytes the socket took at once. What is wrong with it, the transport will find out."""
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
