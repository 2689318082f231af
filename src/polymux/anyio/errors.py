"""Errors of sessions and streams that are errors of anyio's resources too."""

from anyio import BrokenResourceError, BusyResourceError, ClosedResourceError

from polymux.core.errors import SessionClosed, StreamAborted, StreamEnded
from polymux.live.errors import AbortedHere, AlreadyReading, ClosedHere, PeerStoppedReading

RESOURCE_ERRORS = (SessionClosed, StreamAborted, StreamEnded, AlreadyReading)
# Of which anyio's errors they are; the first that fits.
KINDS: dict[type[Exception], type[Exception]] = {
    AlreadyReading: BusyResourceError,
    PeerStoppedReading: BrokenResourceError,
    AbortedHere: ClosedResourceError,
    ClosedHere: ClosedResourceError,
    StreamEnded: ClosedResourceError,
    StreamAborted: BrokenResourceError,
    SessionClosed: BrokenResourceError,
}

resource_classes: dict[type[Exception], type[Exception]] = {}  # made when first raised


def resource_error(problem: Exception) -> Exception:
    """Return one of `RESOURCE_ERRORS` as an error that anyio's code can catch as well."""
    kind = type(problem)
    made = resource_classes.get(kind)
    if made is None:
        theirs = next(theirs for ours, theirs in KINDS.items() if issubclass(kind, ours))
        names = {"__module__": kind.__module__, "__doc__": kind.__doc__}
        made = resource_classes[kind] = type(kind.__name__, (kind, theirs), names)
        resource_classes[made] = made  # raised by a handler, it comes by here again
    return made(str(problem))
