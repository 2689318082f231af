# mypyc: compiled
"""The exceptions a user of polymux can meet.

Blame is data: what a peer did wrong is a `Violation`, and an exception that concerns a peer
carries it. What a caller did wrong is raised before anything has changed.

Some have subclasses outside of the compiled code: it must be told of those, or a name of their type
would refuse them.
"""

from mypy_extensions import mypyc_attr


@mypyc_attr(allow_interpreted_subclasses=True)
class PolymuxError(Exception):
    """Anything polymux raises on purpose."""


class LocalProtocolError(PolymuxError):
    """The caller asked for something the protocol forbids; nothing was sent or changed."""


class Unsupported(PolymuxError):
    """The protocol has no such thing (names in Streamux, a window in mplex, ...)."""


class NoFreeIds(LocalProtocolError):
    """Every id this side may use is taken; the connection should be retired."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionClosed(PolymuxError):
    """The session is over; the text says who ended it and why."""


class PeerViolation(SessionClosed):
    """The session was ended because the peer broke a rule; the text names the rule."""


class StreamAborted(PolymuxError):
    """The stream was reset, cancelled or terminated before its natural end."""


class StreamEnded(PolymuxError):
    """This side of the stream has already ended; nothing more can be sent on it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LimitExceeded(PolymuxError):
    """A limit was hit; the text says its name, its value and how to raise it."""


class CaptureError(PolymuxError):
    """A capture file is unreadable or damaged; says where."""

    def __init__(self, message: str, path: str = "", offset: int = -1) -> None:
        self.path = path
        self.offset = offset
        place = path
        if offset >= 0:
            place = f"{path} at byte {offset}" if path else f"byte {offset}"
        super().__init__(f"{place}: {message}" if place else message)


@mypyc_attr(allow_interpreted_subclasses=True)
class UnreadableInput(PolymuxError):
    """Files other than captures, such as tables, are missing or damaged; says which."""


@mypyc_attr(allow_interpreted_subclasses=True)
class UnwritableOutput(PolymuxError):
    """What was to be written could not be; says where and why."""


class MissingExtra(PolymuxError):
    """An optional part of polymux is not installed; the text is the command that installs it."""

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs an optional part: pip install 'polymux[{extra}]'")
