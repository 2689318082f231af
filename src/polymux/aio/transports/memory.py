"""`pipe`: two sessions in one process, connected without a network."""

import asyncio
from typing import Any, TypedDict, Unpack, overload

from polymux.aio.arguments import check_session_options
from polymux.aio.factory import MINMUX, NERDBANK, OMNISTREAMS, STREAMUX, YAMUX, session_factory
from polymux.aio.protocols.minmux import MinmuxSession
from polymux.aio.protocols.nerdbank import NerdbankSession
from polymux.aio.protocols.omnistreams import OmnistreamsSession
from polymux.aio.protocols.streamux import StreamuxSession
from polymux.aio.protocols.yamux import YamuxSession
from polymux.aio.session.session import Session
from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR, DIALER

PIPE_HIGH_WATER_BYTES = 256 * 1024  # undelivered bytes above which writing is paused


class MemoryTransport(asyncio.Transport):
    """One end of an in-memory connection; bytes written here are received at the other end.

    It behaves like a TCP connection: each side ends its own direction, `close` delivers the bytes
    in transit first, `abort` drops them. Delivery happens in a later event-loop iteration.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.other: MemoryTransport | None = None
        self._in_transit: list[bytes] = []
        self._size = 0
        self._eof_written = False  # this end has ended its direction
        self._eof_delivered = False  # the other end was notified of that
        self._reading = True
        self._closing = False
        self._lost = False
        self._writer_paused = False
        self._scheduled = False

    def write(self, data: Any) -> None:
        if self._closing or self._eof_written:
            return
        self._in_transit.append(bytes(data))
        self._size += len(data)
        if self._size > PIPE_HIGH_WATER_BYTES and not self._writer_paused:
            self._writer_paused = True
            self.session.pause_writing()
        self._schedule()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_written = True
        self._schedule()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._eof_written = True
            self._schedule()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._eof_written = True
            self._in_transit.clear()
            self._size = 0
            self.session.loop.call_soon(self._report_lost, None)
            other = self.other
            if other is not None and not other._lost:
                reset = ConnectionResetError("the other end was aborted")
                self.session.loop.call_soon(other._report_lost, reset)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.session.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        """Deliver the bytes in transit, and then the end, if the other end is reading."""
        self._scheduled = False
        other = self.other
        if other is None or self._lost:
            return
        if other._lost:
            self._report_lost(
                ConnectionResetError("the other end is gone") if self._in_transit else None
            )
            return
        if not other._reading and not other._closing:
            return
        data = b"".join(self._in_transit)
        self._in_transit.clear()
        self._size = 0
        if data and not other._closing:
            other.session.data_received(data)
        if self._writer_paused:
            self._writer_paused = False
            self.session.resume_writing()
        if self._eof_written and not self._eof_delivered:
            self._eof_delivered = True
            if not other._closing and not other.session.eof_received():
                other.close()
        if self._closing:
            self._report_lost(None)

    def _report_lost(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.session.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self.other is not None:
            self.other._schedule()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def join_in_memory(dialer: Session, acceptor: Session) -> tuple[MemoryTransport, MemoryTransport]:
    """Connect two sessions in memory. Return their transports."""
    near, far = MemoryTransport(dialer), MemoryTransport(acceptor)
    near.other, far.other = far, near
    dialer.peer = acceptor.peer = "memory"
    for session in (dialer, acceptor):
        session.busy_poller.stop()  # the loop does not block while the other end has work
    dialer.connection_made(near)
    acceptor.connection_made(far)
    return near, far


class PipeOptions(TypedDict, total=False):
    """Keyword arguments of `pipe`."""

    limits: Limits | None
    timeouts: Timeouts | None


@overload
async def pipe(
    protocol: NERDBANK, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[NerdbankSession, NerdbankSession]: ...
@overload
async def pipe(
    protocol: OMNISTREAMS, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[OmnistreamsSession, OmnistreamsSession]: ...
@overload
async def pipe(
    protocol: STREAMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[StreamuxSession, StreamuxSession]: ...
@overload
async def pipe(
    protocol: MINMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[MinmuxSession, MinmuxSession]: ...
@overload
async def pipe(
    protocol: YAMUX, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[YamuxSession, YamuxSession]: ...
@overload
async def pipe(
    protocol: str, *, other: str | None = None, **options: Unpack[PipeOptions]
) -> tuple[Session, Session]: ...
async def pipe(
    protocol: str,
    *,
    other: str | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
) -> tuple[Session, Session]:
    """Connect two sessions in this process, without a network.

    Busy polling is off. If the call is cancelled or raises, both sessions are aborted.

    Args:
        protocol: Protocol string of the dialer, and of the acceptor unless `other` is given.
        other: Protocol string of the acceptor.
        limits: Limits of both sessions; `Limits()` by default.
        timeouts: Timeouts of both sessions in seconds; `Timeouts()` by default.

    Returns:
        The dialer's session and the acceptor's, after their handshake.

    Raises:
        SessionClosed: The handshake failed, for instance because the two strings do not match.
        PolymuxError: A protocol string is invalid.
        TypeError, ValueError: Another argument is invalid.
    """
    check_session_options(protocol, limits, timeouts)
    dialer = session_factory(protocol, DIALER, limits, timeouts, 0.0)()
    acceptor = session_factory(other or protocol, ACCEPTOR, limits, timeouts, 0.0)()
    join_in_memory(dialer, acceptor)
    try:
        for session in (dialer, acceptor):
            await asyncio.shield(session.ready)
            session.check_open()
    except BaseException:
        dialer.abort("connecting the two sessions failed")
        acceptor.abort("connecting the two sessions failed")
        raise
    return dialer, acceptor
