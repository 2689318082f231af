"""What belongs to one session and speaks to it.

It does not keep the session alive: a session that has ended and that nobody holds is gone at once,
with all it remembered, and does not wait for Python to look for cycles.
"""

from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

Owner = TypeVar("Owner", bound="Session")


class Belonging(Generic[Owner]):
    """A part of a session, which is there as long as anybody calls the part."""

    def __init__(self, session: Owner) -> None:
        self._session = ref(session)

    @property
    def session(self) -> Owner:
        found = self._session()
        assert found is not None
        return found


def let_go(session: "Session") -> None:
    """The connection is gone: the session keeps nothing that leads back to it, and no records.

    What came and was not read stays with the streams that the application holds.
    """
    for stream in session._live.values():
        stream.record.lane = None
    session._live.clear()
    session._room.clear()
    session._vigil.rest()
    leaving = session._leaving
    leaving.fd = -1
    leaving.soon = never
    leaving.look = nothing
    leaving.way = nowhere
    session._arrivals.finish(session._over)
    session.when_made = None
    session.endpoint.protocol.streams.clear()


def never(_: object) -> None:
    """Nobody is asked any more."""


def nothing() -> None:
    """There is nothing to do any more."""


def nowhere() -> None:
    """There is no way out any more."""
