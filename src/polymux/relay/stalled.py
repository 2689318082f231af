"""Which relayed streams stand still at the moment, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import monotonic

from polymux.relay.channels import NO_CREDIT
from polymux.relay.engine import Relay
from polymux.relay.pump import Pump
from polymux.relay.sockets import SocketChannel


@dataclass(frozen=True)
class Stall:
    """One direction of a relayed stream whose content waits.

    Attributes:
        name: What the stream was opened for, or its label.
        source: Where the content comes from.
        sink: What does not take it.
        cause: `no-credit`, `slow-reader` or `transport`.
        explanation: The cause in words.
        seconds: For how long it waits.
        moved: Bytes that were moved in this direction before.
    """

    name: str
    source: str
    sink: str
    cause: str
    explanation: str
    seconds: float
    moved: int


def stalled_streams(relays: Mapping[Relay, str], at_least: float) -> Iterator[tuple[Pump, Stall]]:
    """Yield the directions that have waited for `at_least` seconds, with the pump of each.

    Args:
        relays: Relays that are running, and the peer of each.
        at_least: In seconds.
    """
    now = monotonic()
    for relay, peer in relays.items():
        for relayed in relay.streams:
            for pump in (relayed.forward, relayed.backward):
                if pump is None or not pump.stalled_at or now - pump.stalled_at < at_least:
                    continue
                name = relayed.name.decode("utf-8", "replace") or relayed.near.label
                yield (
                    pump,
                    Stall(
                        name,
                        pump.source.label,
                        pump.sink.label,
                        pump.stall_cause,
                        explain(pump, peer),
                        now - pump.stalled_at,
                        pump.bytes,
                    ),
                )


def explain(pump: Pump, peer: str) -> str:
    """Say why content waits."""
    cause = pump.stall_cause
    if isinstance(pump.sink, SocketChannel):
        return f"{pump.sink.label} does not read"
    if cause == NO_CREDIT:
        return f"{peer} gives no more credit: what it forwards to does not read"
    return f"the connection to {peer} is full"
