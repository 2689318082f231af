"""The counters of relays as metric families, for `polymux.metrics`."""

from __future__ import annotations

from collections.abc import Iterable

from polymux.metrics.families import COUNTER, GAUGE, Family
from polymux.relay.engine import Relay, RelayStats


def relay_families(stats: RelayStats, relays: Iterable[Relay]) -> list[Family]:
    """Return the families of relays that count in `stats`.

    Args:
        stats: Their counters, which leave out the bytes and stalls of streams that are open.
        relays: The relays that are running.
    """
    a, b, stalls, waiting = stats.bytes_a, stats.bytes_b, stats.stalls, 0
    for relay in relays:
        moving = relay.moving()
        a, b = a + moving.bytes_a, b + moving.bytes_b
        stalls, waiting = stalls + moving.stalls, waiting + moving.waiting
    return [
        Family("relay_streams", COUNTER, "Streams that were relayed.", (), {(): stats.streams}),
        Family(
            "relay_rejected",
            COUNTER,
            "Streams that could not be opened at the other end.",
            (),
            {(): stats.rejected},
        ),
        Family(
            "relay_aborted",
            COUNTER,
            "Relayed streams that ended by an abort.",
            (),
            {(): stats.aborted},
        ),
        Family(
            "relay_bytes",
            COUNTER,
            "Content relayed, by the end that it came from.",
            ("end",),
            {("a",): a, ("b",): b},
        ),
        Family(
            "relay_stalls",
            COUNTER,
            "Times that content waited for the other end to take it.",
            (),
            {(): stalls},
        ),
        Family(
            "relay_lost",
            COUNTER,
            "What could not be passed on, by what it is.",
            ("what",),
            {(what,): count for what, count in stats.lost.items()},
        ),
        Family("relay_open", GAUGE, "Relayed streams that are open.", (), {(): stats.open}),
        Family("relay_waiting", GAUGE, "Directions whose content waits now.", (), {(): waiting}),
    ]
