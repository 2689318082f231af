"""Ends, aborts, closes and acceptances that cross: no violations, and nothing is left."""

from __future__ import annotations

import pytest
from tests.stateful.teardown_orders import Script, orders

DEPTH = 8
DUPLEX = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3", "yamux"]
OMNI = "omnistreams:carrier=length"

CASES: list[tuple[str, Script, Script, bool]] = []
for protocol in DUPLEX:
    for near in (("send", "end", "abort"), ("abort", "end"), ("hush", "end")):
        for far in (("send", "end"), ("abort",), ("end", "hush", "abort")):
            CASES.append((protocol, near, far, True))
for protocol in DUPLEX[1:]:
    CASES.append((protocol, ("send", "abort"), ("accept", "send", "end"), False))
    CASES.append((protocol, ("end",), ("abort",), False))
CASES += [
    (OMNI, ("send", "end"), ("abort",), True),
    (OMNI, ("send", "abort"), ("abort",), True),
    (OMNI, ("send", "end"), ("accept", "abort"), False),
    ("streamux", ("abort",), ("send", "end"), True),
    ("streamux", ("abort",), ("end",), False),
    ("streamux", ("abort",), ("send", "send", "end"), False),
    ("minmux", ("stop",), ("stop",), True),
]


@pytest.mark.parametrize(("protocol", "near", "far", "accepted"), CASES)
def test_every_order_of_a_teardown_ends_clean(
    protocol: str, near: Script, far: Script, accepted: bool
) -> None:
    count = 0
    for path, world in orders(protocol, (near, far), DEPTH, accepted):
        world.wind_up()
        left = world.leftovers()
        assert not left, f"{protocol} {near} {far}: {path}: {left}"
        count += 1
    assert count > 1
    print(f"R16 {protocol} {near} {far}: {count} orders to depth {DEPTH}")
