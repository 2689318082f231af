"""Interfaces of what can observe live sessions: recorders and meters."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from polymux.live.transport import Transport

if TYPE_CHECKING:
    from polymux.live.session.session import Session


class SessionRecorder(Protocol):
    """Records one session, byte for byte, in the order in which this process reads and writes.

    Frames that were queued before a chunk is processed are written before `read` is called with it.
    `polymux.record.Recorder` creates such recorders.
    """

    def begin(self, transport: Transport) -> Transport:
        """Called when the connection is made. Return a transport that records what is written."""

    def read(self, data: bytes) -> None:
        """Called with each received chunk before it is processed."""

    def ended(self) -> None:
        """Called when the peer has ended its direction."""

    def closed(self, error: Exception | None) -> None:
        """Called when the connection is gone; with an error if the peer or the network broke it."""


RecorderFactory = Callable[[str, int], SessionRecorder]
"""Given the protocol string and this process's side, returns the recorder of a new session."""


class SessionMeter(Protocol):
    """Notified once when a session begins and once when it has ended, and of refused peers.

    `polymux.metrics.Meter` is one, `polymux.record.AuditLog` another.
    """

    def begun(self, session: "Session") -> None:
        """Called when the connection is made."""

    def ended(self, session: "Session") -> None:
        """Called when the connection is gone; `session.failure` says why, if it failed."""

    def refused(self, peer: str, reason: str) -> None:
        """Called when a server refuses a peer, named by its address."""


@runtime_checkable
class LimitMeter(Protocol):
    """A meter that also counts the limits of a server, which belong to no session."""

    def limit_hit(self, protocol: str, limit: str) -> None:
        """Called when a limit on the connections of a server was hit."""
