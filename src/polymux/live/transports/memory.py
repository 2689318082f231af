"""A connection between two sessions in memory."""

from collections.abc import Callable, Coroutine
from typing import Any

from polymux.core.limits import Limits, Timeouts
from polymux.core.side import ACCEPTOR, DIALER
from polymux.live.arguments import check_session_options
from polymux.live.factory import session_factory
from polymux.live.runtime import Runtime, wait_done
from polymux.live.session.session import Session

PIPE_HIGH_WATER_BYTES = 256 * 1024  # undelivered bytes above which writing is paused


class MemoryTransport:
    """One end of an in-memory connection; bytes written here are received at the other end.

    It behaves like a TCP connection: each side ends its own direction, `close` delivers the bytes
    in transit first, `abort` drops them. Delivery happens soon, never within `write`.
    """

    def __init__(self, session: Session) -> None:
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

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        if self._closing or self._eof_written:
            return
        self._in_transit.append(bytes(data))
        self._size += len(data)
        if self._size > PIPE_HIGH_WATER_BYTES and not self._writer_paused:
            self._writer_paused = True
            self.session.pause_writing()
        self._schedule()

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
            self.session.runtime.call_soon(self._report_lost, None)
            other = self.other
            if other is not None and not other._lost:
                reset = ConnectionResetError("the other end was aborted")
                self.session.runtime.call_soon(other._report_lost, reset)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.session.runtime.call_soon(self._deliver)

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

    def get_protocol(self) -> Session:
        return self.session

    def set_protocol(self, protocol: Any, /) -> None:
        self.session = protocol

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


def pipe_maker(
    protocol: str,
    other: str | None = None,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    *,
    runtime: Callable[[], Runtime],
) -> Callable[[], Coroutine[Any, Any, tuple[Session, Session]]]:
    """Check the arguments of `pipe` now, and return a coroutine function that makes the sessions.

    Args:
        runtime: Returns where the sessions run. It is called when they are made.
        protocol, other, limits, timeouts: See `polymux.pipe`.
    """
    check_session_options(protocol, limits, timeouts)
    make_dialer, make_acceptor = (
        session_factory(text, side, limits, timeouts, 0.0, runtime=runtime)
        for text, side in ((protocol, DIALER), (other or protocol, ACCEPTOR))
    )

    async def pipe() -> tuple[Session, Session]:
        dialer, acceptor = make_dialer(), make_acceptor()
        join_in_memory(dialer, acceptor)
        try:
            for session in (dialer, acceptor):
                await wait_done(session.runtime, session.ready)
                session.check_open()
        except BaseException:
            for session in (dialer, acceptor):
                session.abort("connecting the two sessions failed")
            raise
        return dialer, acceptor

    return pipe
