"""The properties hold for every protocol, and can fail."""

import os

import pytest

from polymux.core import connection
from polymux.core.observer import Observer
from polymux.core.side import Vantage
from polymux.protocols.registry import create
from polymux.testing import PROPERTIES
from polymux.testing.properties import (
    a_wrong_vantage_reports_false_violations,
    honest_peers_may_reuse_ids,
)

COMPILED = not connection.__file__.endswith(".py")
SOAK = "POLYMUX_SOAK" in os.environ
RUNS = (20_000 if SOAK else 1000) if COMPILED else 40

# Protocol of the dialer, and of the acceptor if it differs.
PROTOCOLS = [
    ("mplex", ""),
    ("mplex:ids=counting", ""),
    ("nerdbank", ""),
    ("nerdbank:version=1", ""),
    ("nerdbank:version=2", ""),
    ("omnistreams", ""),
    ("omnistreams:numbering=legacy", ""),
    ("omnistreams:carrier=websocket", ""),
    ("streamux", ""),
    ("streamux:length_bits=10,id_bits=4", "streamux:length_bits=7,id_bits=7"),
    ("minmux", ""),
    ("yamux", "yamux:dialect=libp2p,window=300000"),
]


@pytest.mark.parametrize("check", PROPERTIES, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("protocol", "other"), PROTOCOLS)
def test_the_battery(protocol: str, other: str, check: object) -> None:
    assert callable(check)
    check(protocol, range(RUNS), other)


def test_the_battery_lets_mplex_peers_use_ids_again() -> None:
    honest_peers_may_reuse_ids("mplex:ids=counting", range(RUNS))


def test_the_naive_rule_reports_honest_peers_and_is_found_out() -> None:
    assert a_wrong_vantage_reports_false_violations("mplex", range(200))


def test_a_frame_that_began_before_the_reset_was_read_is_no_violation() -> None:
    beside = Observer(create("mplex", vantage=Vantage.DIALER))
    beside.feed(0, bytes.fromhex("0800 0a 05 6865"), 1)  # half of a frame is sent
    beside.feed(1, bytes.fromhex("0d00"), 2)  # when the reset is read
    beside.feed(0, bytes.fromhex("6c6c6f"), 3)  # the other half must follow
    assert beside.take_violations() == []
    beside.feed(0, bytes.fromhex("0a 01 21"), 4)  # but no other frame may
    assert [v.rule.name for v in beside.take_violations()] == ["mplex.write-after-peer-reset"]
