"""One relay: streams taken from one end and re-opened at another.

An `End` is a session of a protocol, a set of sockets, or a recording. `Relay` joins two of them,
and `RelayedStream` two channels; the `Pump` below is the only code that moves content.
"""

from polymux.relay.bridging import Bridge, bridge
from polymux.relay.channels import Channel, StreamChannel
from polymux.relay.ends import Arrival, End, SessionEnd
from polymux.relay.engine import FilterFactory, Relay, RelayStats, StreamInfo
from polymux.relay.pump import Filter, Pump, RelayedStream
from polymux.relay.sockets import SocketChannel
from polymux.relay.traits import CannotRelay, Shape, Traits

__all__ = [
    "Arrival",
    "Bridge",
    "CannotRelay",
    "Channel",
    "End",
    "Filter",
    "FilterFactory",
    "Pump",
    "Relay",
    "RelayStats",
    "RelayedStream",
    "SessionEnd",
    "Shape",
    "SocketChannel",
    "StreamChannel",
    "StreamInfo",
    "Traits",
    "bridge",
]
