"""What belongs to one session and speaks to it.

It does not keep the session alive: a session that has ended and that nobody holds is gone at once,
with all it remembered, and does not wait for Python to look for cycles.
"""

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

Owner = TypeVar("Owner", bound="Session")


class SessionComponent(Generic[Owner]):
    """A part of a session, which is there as long as anybody calls the part."""

    def __init__(self, session: Owner) -> None:
        self._session_ref = ref(session)

    @property
    def session(self) -> Owner:
        found = self._session_ref()
        assert found is not None
        return found


def release_references(session: "Session") -> None:
    """The connection is gone: the session keeps nothing that leads back to it, and no records.

    What came and was not read stays with the streams that the application holds.
    """
    for stream in session.streams.values():
        stream.state.buffers = None
    session.streams.clear()
    session.send_waiters.clear()
    session.busy_poller.stop()
    leaving = session.socket_writer
    leaving.fd = -1
    leaving.call_soon = ignore_callback
    leaving.after_write = do_nothing
    leaving.writable_transport = no_transport
    session.accept_queue.detach(session.close_reason)
    session.on_connection_made = None
    session.endpoint.protocol.streams.clear()


def ignore_callback(_: object) -> None:
    """Nobody is asked any more."""


def do_nothing() -> None:
    """There is nothing to do any more."""


def no_transport() -> None:
    """There is no way out any more."""
