"""What a peer that speaks something else began with: its first bytes, and what they look like.

Only for the text of an error: a peer whose first frame cannot be one mostly speaks another version,
or another protocol, or is a program that prints text.
"""

from typing import TYPE_CHECKING

from polymux.aio.errors import printable
from polymux.core.errors import PeerViolation, PolymuxError

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

MAX_SHOWN_BYTES = 48  # bytes
NERDBANK = "nerdbank"
NEWEST_NERDBANK_VERSION = 3  # version of it


def explain_first_frame_error(
    session: "Session", problem: PolymuxError, data: bytes
) -> PolymuxError:
    """The same problem; if it lies in the peer's first frame, with what the peer began with.

    `data` is what was read when it happened.
    """
    if not isinstance(problem, PeerViolation) or not _no_frame_received(session):
        return problem
    heard = session.endpoint.connection.direction(1 - session.endpoint.side)
    if heard.total_bytes > len(data):
        return problem  # it began with another chunk
    return PeerViolation(f"{problem}; {_describe_first_bytes(session, data)}")


def early_end_hint(session: "Session") -> str:
    """What to add when the peer closed the connection: empty if it had sent anything sound."""
    if not _no_frame_received(session):
        return ""
    began = _first_frame_bytes(session)
    if began:
        return f"; {_describe_first_bytes(session, began)}"
    if not session.ready.done() and session.endpoint.protocol.name == NERDBANK:
        return f" before its handshake; {_no_handshake_hint()}"
    return ""


def missing_handshake_hint(session: "Session") -> str:
    """What to add when no handshake came in time."""
    began = _first_frame_bytes(session) if _no_frame_received(session) else b""
    if began:
        return f"; {_describe_first_bytes(session, began)}"
    return f"; {_no_handshake_hint()}" if session.endpoint.protocol.name == NERDBANK else ""


def nerdbank_version(data: bytes) -> int:
    """The version whose first bytes these are; 0 if they are of none.

    Version 1 begins with a magic number, version 2 with [[major, minor], ...]; version 3 has no
    handshake and begins with a frame: an array of three or four, whose first is a code below 9.
    """
    if data.startswith(b"\x2f\xdf\x1d\x50"):
        return 1
    if data.startswith(b"\x92\x92") and len(data) > 2:
        return data[2]
    if len(data) > 1 and data[0] in (0x93, 0x94) and data[1] < 9:
        return 3
    return 0


def _no_frame_received(session: "Session") -> bool:
    """Whether no whole frame of the peer's has been read before."""
    endpoint = session.endpoint
    if endpoint.websocket is not None or session.preamble is not None:
        return False
    return endpoint.connection.direction(1 - endpoint.side).framed_bytes == 0


def _first_frame_bytes(session: "Session") -> bytes:
    """Bytes of the peer's first frame, which is not whole."""
    heard = session.endpoint.connection.direction(1 - session.endpoint.side)
    heard.join_buffered()
    return heard.pending


def _describe_first_bytes(session: "Session", data: bytes) -> str:
    if session.endpoint.protocol.name == NERDBANK:
        version = nerdbank_version(data)
        if version and str(version) != session.endpoint.protocol.version():
            known = (
                f"write nerdbank:version={version}"
                if version <= NEWEST_NERDBANK_VERSION
                else "it is not known"
            )
            return f"the peer speaks Nerdbank version {version}: {known}"
    head = data[:MAX_SHOWN_BYTES]
    more = "..." if len(data) > MAX_SHOWN_BYTES else ""
    if _is_text(head):
        return f'the peer began with text: "{printable(head)}"{more}'
    return f"the peer began with the bytes {head[:16].hex(' ')}{'...' if len(data) > 16 else ''}"


def _is_text(head: bytes) -> bool:
    return all(32 <= byte < 127 or byte in b"\t\r\n" for byte in head)


def _no_handshake_hint() -> str:
    return "Nerdbank version 3 has none: if the peer speaks that, write nerdbank:version=3"
