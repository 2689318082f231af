"""One relay: streams taken from one end and re-opened at another.

An `End` is a session of a protocol, a set of sockets, or a recording. `Relay` joins two of them,
and `RelayedStream` two channels; the `Pump` below is the only code that moves content.
`polymux.relay.replay` speaks recordings; it needs the extra `captures`.
"""

from polymux.relay.bridging import Bridge, bridge
from polymux.relay.channels import Channel, StreamChannel
from polymux.relay.chaos import ChaosProxy
from polymux.relay.ends import Arrival, End, SessionEnd
from polymux.relay.engine import FilterFactory, Relay, RelayStats, StreamInfo
from polymux.relay.faults.rules import BadRule, FaultRule, RuleSet, parse_rule
from polymux.relay.pump import Filter, Pump, RelayedStream
from polymux.relay.sockets import SocketChannel
from polymux.relay.traits import CannotRelay, Shape, Traits

__all__ = [
    "Arrival",
    "BadRule",
    "Bridge",
    "CannotRelay",
    "Channel",
    "ChaosProxy",
    "End",
    "FaultRule",
    "Filter",
    "FilterFactory",
    "Pump",
    "Relay",
    "RelayStats",
    "RelayedStream",
    "RuleSet",
    "SessionEnd",
    "Shape",
    "SocketChannel",
    "StreamChannel",
    "StreamInfo",
    "Traits",
    "bridge",
    "parse_rule",
]
