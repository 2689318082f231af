"""Two omnistreams endpoints, and helpers to exchange messages with them in hex."""

from polymux.core.endpoint import Endpoint
from polymux.core.events import Event
from polymux.core.limits import Limits
from polymux.core.streams import StreamState
from polymux.protocols.registry import create

CONTROL, CREATE, DATA, END, CANCEL_RECEIVE, REQUEST, CANCEL_SEND, UNKNOWN = range(8)
SPEC, LEGACY = "omnistreams:carrier=length", "omnistreams:numbering=legacy,carrier=length"


def ends(text: str = SPEC, limits: Limits | None = None) -> tuple[Endpoint, Endpoint]:
    dialer, acceptor = (
        Endpoint(create(text, limits=limits or Limits(), vantage=side), side) for side in (0, 1)
    )
    return dialer, acceptor


def messages(data: bytes) -> list[str]:
    """Split length-prefixed messages; each is returned in hex without its length."""
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size].hex())
        data = data[4 + size :]
    return found


def sent_messages(end: Endpoint) -> list[str]:
    return messages(end.data_to_send())


def receive_messages(end: Endpoint, *texts: str) -> list[Event]:
    """Pass messages of the peer, in hex, to an endpoint."""
    data = b""
    for text in texts:
        message = bytes.fromhex(text)
        data += len(message).to_bytes(4, "big") + message
    return end.receive(data, 0.0)


def names(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def carry(a: Endpoint, b: Endpoint) -> list[Event]:
    return b.receive(a.data_to_send(), 0.0)


def fill(end: Endpoint, count: int = 256) -> list[StreamState]:
    return [end.open() for _ in range(count)]
