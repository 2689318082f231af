"""Errors of live sessions, and their texts: one line that says what is wrong."""

import ssl

from polymux.core.errors import LimitExceeded, PolymuxError, SessionClosed

MAX_PEER_TEXT_CHARS = 300  # of a text from the peer, quoted in an error message


class Unreachable(PolymuxError):
    """The URL could not be connected to, or not be listened on. The text says why."""


class NotListening(Unreachable):
    """Nothing listens at the URL yet; `connect(wait=...)` tries again."""


class SessionLimit(SessionClosed, LimitExceeded):
    """The session was ended because the peer exceeded a limit; the text names it."""


def describe_os_error(error: BaseException) -> str:
    """Describe an error of the system or of TLS, without numeric codes and C source locations."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def printable(text: bytes) -> str:
    """Decode a text from the peer, escaped and shortened so that one line can show it safely."""
    shown = text[: 4 * MAX_PEER_TEXT_CHARS].decode("utf-8", "replace")
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown[:MAX_PEER_TEXT_CHARS])
    return line + ("..." if len(shown) > MAX_PEER_TEXT_CHARS else "")


def limit_notice(problem: PolymuxError) -> str:
    """Return what to tell the peer of a limit it exceeded: name and value, at most 120 bytes."""
    return str(problem).partition(";")[0].encode()[:120].decode("utf-8", "ignore")


def copy_of(problem: PolymuxError) -> PolymuxError:
    """Return a new exception with the same text, so that each caller raises its own."""
    return type(problem)(str(problem))


def as_session_closed(problem: PolymuxError) -> SessionClosed:
    """Return the SessionClosed that waiting calls raise when `problem` ends the session."""
    return problem if isinstance(problem, SessionClosed) else SessionLimit(str(problem))
