"""What a live session tells whoever counts; `polymux.metrics.Meter` is one."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from polymux.aio.session.session import Session


class SessionMeter(Protocol):
    """Hears of each session once when it begins and once when it has ended."""

    def begun(self, session: "Session") -> None:
        """The connection stands."""

    def ended(self, session: "Session") -> None:
        """The connection is gone; `session.failure` says why, if it was no orderly end."""
