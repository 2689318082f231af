"""What can go wrong below a session, each as one clear line."""

import ssl

from polymux.core.errors import LimitExceeded, PolymuxError, SessionClosed

MAX_PEER_TEXT_CHARS = 300  # characters of a peer's text that an error message repeats


class Unreachable(PolymuxError):
    """Nobody could be reached at the URL; the text says why and what to look at."""


class NotListening(Unreachable):
    """Nothing listens at the URL; it may yet, see `connect(wait=...)`."""


class SessionLimit(SessionClosed, LimitExceeded):
    """The session was ended because the peer went past a limit; the text names it."""


def describe_os_error(error: BaseException) -> str:
    """A failure of the system in the user's words, without addresses of C files or codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def printable(text: bytes) -> str:
    """Bytes that a peer sent as text, safe to print on one line."""
    shown = text[: 4 * MAX_PEER_TEXT_CHARS].decode("utf-8", "replace")
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown[:MAX_PEER_TEXT_CHARS])
    return line + ("..." if len(shown) > MAX_PEER_TEXT_CHARS else "")


def limit_notice(problem: PolymuxError) -> str:
    """What a peer is told of a limit it went past: which, not how to raise it; 120 bytes."""
    return str(problem).partition(";")[0].encode()[:120].decode("utf-8", "ignore")


def copy_of(problem: PolymuxError) -> PolymuxError:
    """The same problem as a fresh exception, for one more caller who must hear of it."""
    return type(problem)(str(problem))


def as_session_closed(problem: PolymuxError) -> SessionClosed:
    """Why a session ends, as everybody who waits on it is told."""
    return problem if isinstance(problem, SessionClosed) else SessionLimit(str(problem))
