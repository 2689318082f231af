# mypyc: compiled
"""From a session's outbox to its transport: once a turn of the loop, or at once."""

import os
from asyncio import Transport
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from polymux.aio.session.busy_poll import Vigil
from polymux.core.endpoint import Endpoint

HIGH: Final[i64] = 262144  # octets formed at a time, and in the transport before we wait for it
AT_ONCE: Final[i64] = 65536  # octets that are worth a system call of their own
BURST: Final[i64] = 1048576  # octets a lone sender may send before everybody else has a turn
GATHERED: Final[i64] = 65536  # octets from which a copy costs more than the socket's own call
AT_A_TIME: Final[i64] = 131072  # octets for the system: it takes more while the peer reads
MOST_BUFFERS: Final[i64] = 512  # in one system call; every system takes as many
SEVERAL: Final[i64] = 16  # streams that begin or end, for which the peer need not wait any longer


class Leaving:
    """What is to leave a session, and its way out.

    `soon` has the loop call something; `way` gives the transport, or None while nothing may be
    written; `look` sees to what writing has left to do; `vigil` is told of it. `fd` is a plain
    socket's: octets go to it directly while its transport holds nothing back.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        soon: Callable[[Callable[[], None]], object],
        way: Callable[[], Transport | None],
        look: Callable[[], object],
        vigil: Vigil,
    ) -> None:
        self.endpoint = endpoint
        self.soon = soon
        self.way = way
        self.look = look
        self.vigil = vigil
        self.fd: int = -1
        self.given = False  # a flush is on its way
        self.held = False  # it need not be asked for: it follows what has come
        self.blocked = False  # the transport takes nothing more for now
        self.crowded = False  # senders wait for room
        self.written: i64 = 0  # octets handed to the transport
        self.burst: i64 = 0  # and of those, since the loop had its last turn
        self.news: i64 = 0  # streams that have begun or ended since something was written

    def give(self) -> None:
        """Something is to leave: say so once until it does."""
        if not self.given:
            self.given = True
            if not self.held:
                self.soon(self.turn)

    def give_rest(self, anyway: bool) -> None:
        """Say so if there is anything to leave, or somebody waits for room."""
        outbox = self.endpoint.outbox
        formed = len(outbox.writer) > 0 or len(outbox.chunks) > 0
        if anyway or formed or self.crowded or self.endpoint.pending():
            self.give()

    def give_part(self) -> None:
        """A stream has begun or ended. Several go at once: the peer begins with them meanwhile."""
        self.news += 1
        if self.news >= SEVERAL:
            self.write()
        else:
            self.give()

    def turn(self) -> None:
        """The loop's turn has come; somebody may have been quicker."""
        self.burst = 0
        if self.given:
            self.flush()

    def flush(self) -> None:
        """Write what there is, whatever was said before."""
        self.given = False
        self.burst = 0
        self.write()

    def release(self, now: bool) -> None:
        """What has come was dealt with: what was said in reaction to it leaves, now or soon."""
        self.held = False
        if self.given:
            if now:
                self.flush()
            else:
                self.soon(self.turn)

    def push(self) -> bool:
        """Write at once, for a sender that would have to wait; False if it has to."""
        if self.blocked or self.crowded or self.burst >= BURST:
            return False
        if self.endpoint.outbox.queued < AT_ONCE:  # too little: it waits for leave
            return False
        before = self.written
        self.write()
        self.burst += self.written - before
        return self.written > before

    def spent(self) -> bool:
        """Has a lone sender sent so much that it is time for the others?"""
        return self.burst >= BURST

    def write(self) -> None:
        """Form what may leave now and hand it over."""
        self.news = 0
        if self.blocked:
            return
        transport = self.way()
        if transport is None:
            return
        chunks = self.endpoint.chunks_to_send(HIGH)
        if len(chunks) > 0:
            self.written += self.hand_over(transport, chunks)
            self.vigil.wrote(self.soon)
        self.look()

    def hand_over(self, transport: Transport, chunks: list[bytes]) -> i64:
        """Give the transport all chunks, in order; returns their octets.

        A system call for each chunk would cost more than joining them, and `writelines` hands small
        buffers to the system one by one, in some versions without ever asking us to wait. Large
        ones go to the socket together, uncopied.
        """
        size: i64 = 0
        for chunk in chunks:
            size += len(chunk)
        if len(chunks) > 1 and (self.fd < 0 or size < GATHERED or len(chunks) > MOST_BUFFERS):
            chunks = [b"".join(chunks)]
        if self.fd < 0:
            transport.write(chunks[0])
            return size
        taken: i64 = 0
        if transport.get_write_buffer_size() == 0 and not transport.is_closing():
            taken = self.write_now(chunks)
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

    def write_now(self, chunks: list[bytes]) -> i64:
        """Octets the socket took at once. What is wrong with it, the transport will find out."""
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
                if size >= AT_A_TIME or after == last:
                    written: i64 = os.writev(self.fd, chunks[first:after])
                    taken += written
                    if written < size:
                        break
                    first = after
                    size = 0
        except OSError:
            pass
        return taken
