"""Helpers of the Streamux tests: one endpoint, and its bytes in hex."""

from polymux.core.endpoint import Endpoint
from polymux.core.events import Event, Opened
from polymux.core.limits import Limits
from polymux.core.streams import StreamState
from polymux.protocols.registry import create
from polymux.protocols.streamux.protocol import Streamux

HELLO = "010a0464"  # 10/4


def side(which: int = 0, text: str = "streamux:length_bits=10,id_bits=4,timeout=10",
         peer: str = HELLO, limits: Limits | None = None) -> Endpoint:  # fmt: skip
    """Return an endpoint that has sent its initiator and read the peer's, if there is one."""
    endpoint = Endpoint(create(text, limits, vantage=which), which)
    endpoint.start()
    endpoint.data_to_send()
    if peer:
        receive_hex(endpoint, peer)
    return endpoint


def receive_hex(endpoint: Endpoint, data: str) -> list[Event]:
    return endpoint.receive(bytes.fromhex(data), 0.0)


def sent_hex(endpoint: Endpoint) -> str:
    return endpoint.data_to_send().hex()


def send_request(endpoint: Endpoint, data: bytes = b"?") -> StreamState:
    """Send a complete request in one chunk."""
    stream = endpoint.open()
    endpoint.send(stream, data)
    endpoint.end(stream)
    return stream


def opened_stream(events: list[Event]) -> StreamState:
    stream = next(event.stream for event in events if isinstance(event, Opened))
    assert stream is not None
    return stream


def protocol(endpoint: Endpoint) -> Streamux:
    assert isinstance(endpoint.protocol, Streamux)
    return endpoint.protocol
