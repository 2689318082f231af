"""What a channel's end leaves to be paid: nothing that could never be."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.protocols.registry import create

OFFER = "94 00 {:02x} 01 c4 06 92 a1 78 cd 1000"
GROWTH_REQUEST = "93 08 {:02x} 01"
TERMINATED = "93 04 {:02x} 01"


@pytest.mark.parametrize("answered", [False, True])
def test_a_wish_for_a_wider_window_that_crosses_our_termination_is_not_owed_for_ever(
    answered: bool,
) -> None:
    end = Endpoint(create("nerdbank", vantage=1), 1, direct=True)
    for number in range(1, 100):
        end.receive(bytes.fromhex(OFFER.format(number)), 0.0)
        stream = end.protocol.streams.find(number * 4)
        assert stream is not None
        end.abort(stream)
        end.data_to_send()
        end.receive(bytes.fromhex(GROWTH_REQUEST.format(number)), 0.0)
        if answered:
            end.receive(bytes.fromhex(TERMINATED.format(number)), 0.0)
        end.data_to_send()
    assert [duty for duty in end.protocol.duties.values() if duty.side == 1] == []
