"""Two sessions in one process, joined without a network."""

import asyncio
from typing import Any

from ..core.limits import Limits, Policy
from ..core.side import ACCEPTOR, DIALER
from .making import session_maker
from .session import Session

ROOM = 256 * 1024  # octets under way before the writer is told to wait


class Pipe(asyncio.Transport):
    """One end of an in-memory connection; what is written here is read at the other end."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.other: Pipe | None = None
        self._under_way: list[bytes] = []
        self._size = 0
        self._reading = True
        self._closing = False
        self._told = False
        self._scheduled = False

    def write(self, data: Any) -> None:
        if self._closing:
            return
        self._under_way.append(bytes(data))
        self._size += len(data)
        if self._size > ROOM and not self._told:
            self._told = True
            self.session.pause_writing()
        self.schedule()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.session.loop.call_soon(self.deliver)

    def deliver(self) -> None:
        self._scheduled = False
        other = self.other
        if other is None or not other._reading or other._closing:
            return
        data = b"".join(self._under_way)
        self._under_way.clear()
        self._size = 0
        if data:
            other.session.data_received(data)
        if self._told:
            self._told = False
            self.session.resume_writing()
        if self._closing and not other._closing:
            other.session.eof_received()
            other.close()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.schedule()
            self.session.loop.call_soon(self.session.connection_lost, None)

    def abort(self) -> None:
        self._under_way.clear()
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self.other is not None:
            self.other.schedule()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return self._size

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


async def pipe(
    protocol: str,
    *,
    other: str | None = None,
    limits: Limits | None = None,
    policy: Policy | None = None,
) -> tuple[Session, Session]:
    """Two joined sessions, dialer and acceptor; `other` if the acceptor's string differs."""
    dialer = session_maker(protocol, DIALER, limits, policy, 0.0)()
    acceptor = session_maker(other or protocol, ACCEPTOR, limits, policy, 0.0)()
    near, far = Pipe(dialer), Pipe(acceptor)
    near.other, far.other = far, near
    dialer.peer = acceptor.peer = "memory"
    dialer.connection_made(near)
    acceptor.connection_made(far)
    await dialer.ready
    await acceptor.ready
    return dialer, acceptor
