"""One relay: streams taken from one end and re-opened at another.

An `End` is a session of a protocol, a set of sockets, or a recording. `Relay` joins two of them,
and `RelayedStream` two channels; the `Pump` below is the only code that moves content.
`polymux.relay.replay` speaks recordings; it needs the extra `captures`.
"""

from polymux.relay.bridging import Bridge, bridge
from polymux.relay.channels import Channel, StreamChannel
from polymux.relay.chaos import ChaosProxy
from polymux.relay.ends import Arrival, End, SessionEnd
from polymux.relay.engine import Relay, RelayStats, StreamInfo
from polymux.relay.faults.rules import BadRule, FaultRule, RuleSet, parse_rule
from polymux.relay.pump import Filter, Pump, RelayedStream
from polymux.relay.sockets import SocketChannel
from polymux.relay.traits import CannotRelay, Shape, Traits
from polymux.relay.tunnel.client import TunnelClient
from polymux.relay.tunnel.forwards import (
    LocalForward,
    RemoteForward,
    parse_dynamic,
    parse_local,
    parse_remote,
)
from polymux.relay.tunnel.server import TunnelServer
from polymux.relay.tunnel.targets import BadForward, Target, TargetRefused

__all__ = [
    "Arrival",
    "BadForward",
    "BadRule",
    "Bridge",
    "CannotRelay",
    "Channel",
    "ChaosProxy",
    "End",
    "FaultRule",
    "Filter",
    "LocalForward",
    "Pump",
    "Relay",
    "RelayStats",
    "RelayedStream",
    "RemoteForward",
    "RuleSet",
    "SessionEnd",
    "Shape",
    "SocketChannel",
    "StreamChannel",
    "StreamInfo",
    "Target",
    "TargetRefused",
    "Traits",
    "TunnelClient",
    "TunnelServer",
    "bridge",
    "parse_dynamic",
    "parse_local",
    "parse_remote",
    "parse_rule",
]
