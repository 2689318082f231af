"""Hints for error messages: what the first bytes of a peer look like.

A peer whose first frame is invalid usually speaks another version or another protocol, or is a
program that prints text.
"""

from polymux.core.errors import PeerViolation, PolymuxError
from polymux.core.side import DIALER
from polymux.core.token_exchange import PREFIX as TOKEN_PREFIX
from polymux.live.errors import printable
from polymux.live.session.interface import SessionInterface
from polymux.live.session.socket_options import transport_info

MAX_SHOWN_BYTES = 48
NERDBANK = "nerdbank"
NEWEST_NERDBANK_VERSION = 3
TLS_RECORDS = (b"\x15", b"\x16")  # the types of an alert and of a handshake message


def explain_first_frame_error(
    session: SessionInterface, problem: PolymuxError, data: bytes
) -> PolymuxError:
    """Return `problem`, with a description of the peer's first bytes if its first frame caused it.

    `data` is the chunk that was being processed.
    """
    if not isinstance(problem, PeerViolation) or not _no_frame_received(session):
        return problem
    direction = session.endpoint.connection.direction(1 - session.endpoint.side)
    if direction.total_bytes > len(data):
        return problem  # the first frame began in an earlier chunk
    return PeerViolation(f"{problem}; {_describe_first_bytes(session, data)}")


def early_end_hint(session: SessionInterface) -> str:
    """Return what to add to "the peer closed the connection"; empty after its first frame."""
    if not _no_frame_received(session):
        return ""
    first_bytes = _first_frame_bytes(session)
    if first_bytes:
        return f"; {_describe_first_bytes(session, first_bytes)}"
    if not session.ready.done() and session.endpoint.protocol.name == NERDBANK:
        return f" before its handshake; {_no_handshake_hint()}"
    return tls_refusal_hint(session)


def tls_refusal_hint(session: SessionInterface) -> str:
    """Return what to add when a TLS connection ends before the peer has sent anything on it.

    In TLS 1.3 a client learns after its handshake that its certificate was refused, and servers
    that close at once do not say why.
    """
    direction = session.endpoint.connection.direction(1 - session.endpoint.side)
    if (
        session.endpoint.side != DIALER
        or direction.total_bytes
        or transport_info(session.transport, "ssl_object") is None
    ):
        return ""
    return (
        "; it was the first thing after the TLS handshake: the peer may require a client "
        "certificate, or not accept the one presented"
    )


def missing_handshake_hint(session: SessionInterface) -> str:
    """Return what to add to the error when no handshake came in time."""
    first_bytes = _first_frame_bytes(session) if _no_frame_received(session) else b""
    if first_bytes:
        return f"; {_describe_first_bytes(session, first_bytes)}"
    return f"; {_no_handshake_hint()}" if session.endpoint.protocol.name == NERDBANK else ""


def nerdbank_version(data: bytes) -> int:
    """Return the Nerdbank version that begins with these bytes; 0 if none does.

    Version 1 begins with a magic number, version 2 with [[major, minor], ...]; version 3 has no
    handshake and begins with a frame: an array of 3 or 4 items, of which the first is below 9.
    """
    if data.startswith(b"\x2f\xdf\x1d\x50"):
        return 1
    if data.startswith(b"\x92\x92") and len(data) > 2:
        return data[2]
    if len(data) > 1 and data[0] in (0x93, 0x94) and data[1] < 9:
        return 3
    return 0


def _no_frame_received(session: SessionInterface) -> bool:
    """Return whether no complete frame has been received yet."""
    endpoint = session.endpoint
    if endpoint.websocket is not None or session.preamble is not None:
        return False
    return endpoint.connection.direction(1 - endpoint.side).framed_bytes == 0


def _first_frame_bytes(session: SessionInterface) -> bytes:
    """Return the received bytes of the peer's first, incomplete frame."""
    direction = session.endpoint.connection.direction(1 - session.endpoint.side)
    direction.join_buffered()
    return direction.pending


def _describe_first_bytes(session: SessionInterface, data: bytes) -> str:
    if session.endpoint.protocol.name == NERDBANK:
        version = nerdbank_version(data)
        if version and str(version) != session.endpoint.protocol.version():
            known = (
                f"write nerdbank:version={version}"
                if version <= NEWEST_NERDBANK_VERSION
                else "it is not known"
            )
            return f"the peer speaks Nerdbank version {version}: {known}"
    if data[:1] in TLS_RECORDS and data[1:2] == b"\x03":
        return "the peer speaks TLS: use tls:// or wss:// on this side too"
    if data.startswith(TOKEN_PREFIX):
        return "the peer asks for a token: present it with token=..."
    head = data[:MAX_SHOWN_BYTES]
    more = "..." if len(data) > MAX_SHOWN_BYTES else ""
    if _is_text(head):
        return f'the peer began with text: "{printable(head)}"{more}'
    return f"the peer began with the bytes {head[:16].hex(' ')}{'...' if len(data) > 16 else ''}"


def _is_text(head: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)


def _no_handshake_hint() -> str:
    return "Nerdbank version 3 has none: if the peer speaks that, write nerdbank:version=3"
