# mypyc: compiled
"""The exceptions that polymux raises.

What a peer did wrong is a `Violation`, which is data; an exception is raised only where the session
cannot go on, and its text names the violation. What a caller did wrong is raised before anything
has changed.

`allow_interpreted_subclasses` marks classes that have subclasses outside of the compiled code:
without it mypyc would not accept an instance of those where this class is expected.
"""

from mypy_extensions import mypyc_attr

from polymux.core.urls import without_credentials


@mypyc_attr(allow_interpreted_subclasses=True)
class PolymuxError(Exception):
    """Base class of all exceptions that polymux raises deliberately."""


class LocalProtocolError(PolymuxError):
    """The caller asked for something the protocol forbids; nothing was sent or changed."""


class Unsupported(PolymuxError):
    """The protocol does not have this feature (names in Streamux, windows in mplex, ...)."""


class NoFreeIds(LocalProtocolError):
    """Every stream id this side may use is taken; open a new connection."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionClosed(PolymuxError):
    """The session is over; the text says which side ended it and why."""


class PeerViolation(SessionClosed):
    """The session was ended because the peer broke a rule; the text names the rule."""


class StreamAborted(PolymuxError):
    """The stream was reset, cancelled or terminated before its natural end."""


class StreamEnded(PolymuxError):
    """That direction of the stream has ended: nothing more can be sent, or received, on it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LimitExceeded(PolymuxError):
    """A limit was exceeded; the text gives its name, its value and how to raise it."""


@mypyc_attr(allow_interpreted_subclasses=True)
class CaptureError(PolymuxError):
    """A capture file is unreadable or damaged.

    Args:
        message: what is wrong.
        path: the file; "": not known. A URL is named without what gives access to it.
        offset: the byte offset in the file; -1: not known.
    """

    def __init__(self, message: str, path: str = "", offset: int = -1) -> None:
        self.path = path
        self.offset = offset
        place = without_credentials(path)
        if offset >= 0:
            place = f"{place} at byte {offset}" if place else f"byte {offset}"
        super().__init__(f"{place}: {message}" if place else message)


class CaptureUnavailable(CaptureError):
    """A capture could not be opened or read, or is not the file any more that was indexed.

    Nothing is known to be wrong with its content: another attempt, or another machine, may succeed.
    """


@mypyc_attr(allow_interpreted_subclasses=True)
class UnreadableInput(PolymuxError):
    """A file other than a capture, such as a table, is missing or damaged; the text says which."""


@mypyc_attr(allow_interpreted_subclasses=True)
class UnwritableOutput(PolymuxError):
    """Output could not be written; the text says where and why."""


class MissingExtra(PolymuxError):
    """An optional dependency is not installed; the text has the command that installs it."""

    def __init__(self, extra: str, purpose: str) -> None:
        self.extra = extra
        super().__init__(f"{purpose} needs an optional part: pip install 'polymux[{extra}]'")
