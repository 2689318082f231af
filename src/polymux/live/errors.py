"""Errors of live sessions, and their texts: one line that says what is wrong."""

import ssl

from polymux.core.errors import (
    LimitExceeded,
    PolymuxError,
    SessionClosed,
    StreamAborted,
    StreamEnded,
)

MAX_PEER_TEXT_CHARS = 300  # of a text from the peer, quoted in an error message


class Unreachable(PolymuxError):
    """The URL could not be connected to, or not be listened on. The text says why."""


class NotListening(Unreachable):
    """Nothing listens at the URL yet; `connect(wait=...)` tries again."""


class SessionLimit(SessionClosed, LimitExceeded):
    """The session was ended because the peer exceeded a limit; the text names it."""


class PeerStoppedReading(StreamEnded):
    """Nothing more can be sent on the stream: the peer reads no more of it."""


class AbortedHere(StreamAborted):
    """The application on this side has aborted the stream."""


class ClosedHere(SessionClosed):
    """The application on this side has closed or aborted the session."""


class AlreadyReading(RuntimeError):
    """Another task reads the stream, and only one may at a time."""


# Results of OpenSSL's verification of a certificate (X509_V_ERR_*).
NOT_YET_VALID, EXPIRED, REVOKED = 9, 10, 23
UNKNOWN_AUTHORITY = (2, 18, 19, 20, 21, 24)  # also a certificate that is its own authority
OTHER_NAME, OTHER_MAIL, OTHER_IP = 62, 63, 64
# Reasons of OpenSSL's errors that do not say in words what to do. An alert is what the peer
# reports about this side.
TLS_REASONS = {
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS: it sent something else",
    "HTTP_REQUEST": "the peer does not speak TLS: it sent a plain HTTP request",
    "PACKET_LENGTH_TOO_LONG": "the peer does not speak TLS: it sent something else",
    "RECORD_LAYER_FAILURE": "the peer does not speak TLS: it sent something else",
    "UNSUPPORTED_PROTOCOL": "the peer speaks only TLS versions below 1.2",
    "TLSV1_ALERT_PROTOCOL_VERSION": "the peer speaks none of the TLS versions from 1.2",
    "UNEXPECTED_EOF_WHILE_READING": "the peer ended the connection without ending TLS",
    "NO_SHARED_CIPHER": "the two sides have no cipher in common",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": "the peer refused the handshake: it may require a client "
    "certificate, or have no cipher in common",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer requires a client certificate, and none was "
    "presented",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer presented no certificate, and one is required",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the peer refused this side's certificate",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "the peer refused this side's certificate: it is revoked",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer refused this side's certificate: it has expired",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the peer refused this side's certificate",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer refused this side's certificate: the peer does not trust "
    "its authority",
    "KEY_VALUES_MISMATCH": "the private key does not belong to the certificate",
}


def describe_os_error(error: BaseException) -> str:
    """Describe an error of the system or of TLS, without numeric codes and C source locations."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return describe_certificate_error(error)
    if isinstance(error, ssl.SSLError):
        reason = error.reason or str(error)
        return f"TLS failed: {TLS_REASONS.get(reason, reason.lower().replace('_', ' '))}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def describe_certificate_error(error: ssl.SSLCertVerificationError) -> str:
    """Describe why the peer's certificate was refused."""
    text = error.verify_message.rstrip(".")
    code = error.verify_code
    if code in (OTHER_NAME, OTHER_MAIL, OTHER_IP):
        # OpenSSL's text: "Hostname mismatch, certificate is not valid for 'name'".
        return f"the certificate is for another name: {text.replace('certificate is', 'it is')}"
    if code == EXPIRED:
        return "the certificate has expired"
    if code == NOT_YET_VALID:
        return "the certificate is not valid yet; is the clock right?"
    if code == REVOKED:
        return "the certificate was revoked by its authority"
    if code in UNKNOWN_AUTHORITY:
        return f"the certificate is not trusted: its authority is unknown ({text})"
    return f"the certificate is not trusted: {text}"


def certificate_remedy(error: ssl.SSLCertVerificationError) -> str:
    """Return what the caller of `connect` can do about it; empty if only the peer can."""
    if error.verify_code in (OTHER_NAME, OTHER_MAIL, OTHER_IP):
        return "; if it is the right peer, give the name it has with server_hostname=..."
    if error.verify_code in UNKNOWN_AUTHORITY:
        return "; give a context that trusts its issuer with tls=..."
    return ""


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


def only_polymux_errors(problem: Exception) -> bool:
    """Return whether `problem` is a group of PolymuxErrors only: several tasks lost the peer."""
    return isinstance(problem, ExceptionGroup) and problem.split(PolymuxError)[1] is None
