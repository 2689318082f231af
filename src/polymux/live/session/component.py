"""Base class for the components of a session.

A component holds a weak reference to its session. A session therefore never refers to itself
through its components, and a finished session that the application has dropped is freed at once
instead of waiting for Python's cycle collector.
"""

from typing import Generic, TypeVar
from weakref import ref

Owner = TypeVar("Owner")


class SessionComponent(Generic[Owner]):
    """A component of one session of type `Owner`."""

    def __init__(self, session: Owner) -> None:
        self._session_ref = ref(session)

    @property
    def session(self) -> Owner:
        """The session. Only for code that the session itself calls: it is alive then."""
        session = self._session_ref()
        assert session is not None  # the caller holds it
        return session

    def session_or_none(self) -> Owner | None:
        """The session, or None if it has been freed. For timers and scheduled callbacks."""
        return self._session_ref()
