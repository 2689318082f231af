"""What a peer that speaks something else began with: its first octets, and what they look like.

Only for the text of an error: a peer whose first frame cannot be one mostly speaks another version,
or another protocol, or is a program that prints text.
"""

from typing import TYPE_CHECKING

from polymux.aio.errors import plain
from polymux.core.errors import PeerViolation, PolymuxError

if TYPE_CHECKING:
    from polymux.aio.session.session import Session

SHOWN = 48  # octets
NERDBANK = "nerdbank"
NEWEST = 3  # version of it


def told(session: "Session", problem: PolymuxError, data: bytes) -> PolymuxError:
    """The same problem; if it lies in the peer's first frame, with what the peer began with.

    `data` is what was read when it happened.
    """
    if not isinstance(problem, PeerViolation) or not _is_first(session):
        return problem
    heard = session.endpoint.conversation.direction(1 - session.endpoint.side)
    if heard.octets > len(data):
        return problem  # it began with another chunk
    return PeerViolation(f"{problem}; {_began(session, data)}")


def ended_early(session: "Session") -> str:
    """What to add when the peer closed the connection: empty if it had sent anything sound."""
    if not _is_first(session):
        return ""
    began = _waiting(session)
    if began:
        return f"; {_began(session, began)}"
    if not session.ready.done() and session.endpoint.protocol.name == NERDBANK:
        return f" before its handshake; {_no_handshake()}"
    return ""


def still_awaited(session: "Session") -> str:
    """What to add when no handshake came in time."""
    began = _waiting(session) if _is_first(session) else b""
    if began:
        return f"; {_began(session, began)}"
    return f"; {_no_handshake()}" if session.endpoint.protocol.name == NERDBANK else ""


def nerdbank_version(data: bytes) -> int:
    """The version whose first octets these are; 0 if they are of none.

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


def _is_first(session: "Session") -> bool:
    """Whether no whole frame of the peer's has been read before."""
    endpoint = session.endpoint
    if endpoint.carrier is not None or session.preamble is not None:
        return False
    return endpoint.conversation.direction(1 - endpoint.side).framed == 0


def _waiting(session: "Session") -> bytes:
    """Octets of the peer's first frame, which is not whole."""
    heard = session.endpoint.conversation.direction(1 - session.endpoint.side)
    heard.gather()
    return heard.pending


def _began(session: "Session", data: bytes) -> str:
    if session.endpoint.protocol.name == NERDBANK:
        version = nerdbank_version(data)
        if version and str(version) != session.endpoint.protocol.version():
            known = f"write nerdbank:version={version}" if version <= NEWEST else "it is not known"
            return f"the peer speaks Nerdbank version {version}: {known}"
    head = data[:SHOWN]
    more = "..." if len(data) > SHOWN else ""
    if _is_text(head):
        return f'the peer began with text: "{plain(head)}"{more}'
    return f"the peer began with the bytes {head[:16].hex(' ')}{'...' if len(data) > 16 else ''}"


def _is_text(head: bytes) -> bool:
    return all(32 <= octet < 127 or octet in b"\t\r\n" for octet in head)


def _no_handshake() -> str:
    return "Nerdbank version 3 has none: if the peer speaks that, write nerdbank:version=3"
