"""The end of a channel removes pending replies that can no longer be sent."""

from __future__ import annotations

import pytest

from polymux.core.endpoint import Endpoint
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.rules import Certainty
from polymux.protocols.registry import create

OFFER = "94 00 {:02x} 01 c4 06 92 a1 78 cd 1000"
GROWTH_REQUEST = "93 08 {:02x} 01"
TERMINATED = "93 04 {:02x} 01"
ACCEPTED = "94 01 {:02x} ff c4 04 91 cd 1000"
COMPLETED = "93 03 {:02x} {}"


@pytest.mark.parametrize("answered", [False, True])
def test_a_growth_request_that_crosses_a_termination_does_not_stay_pending(
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
    assert [duty for duty in end.protocol.pending_replies.values() if duty.side == 1] == []


def test_a_channel_that_was_never_terminated_is_reported_once_when_evicted() -> None:
    observer = Observer(create("nerdbank", Limits(closed_streams_remembered=3)))
    reported = []
    for number in range(1, 11):
        observer.feed(0, bytes.fromhex(OFFER.format(number)), 0)
        observer.feed(1, bytes.fromhex(ACCEPTED.format(number)), 0)
        observer.feed(0, bytes.fromhex(COMPLETED.format(number, "01")), 0)
        observer.feed(1, bytes.fromhex(COMPLETED.format(number, "ff")), 0)
        assert len(observer.protocol.pending_replies) <= 2 * 3
        reported += observer.take_violations()
    assert len(reported) == 7
    observer.finish(1, True, True)
    reported += observer.take_violations()
    assert {violation.rule.name for violation in reported} == {"nerdbank.not-terminated"}
    assert [violation.stream for violation in reported] == [f"d{number}" for number in range(1, 11)]
    sure = [violation.certainty is Certainty.CERTAIN for violation in reported]
    assert sure == [False] * 7 + [True] * 3  # evicted channels may have been terminated later


@pytest.mark.parametrize(("side", "source"), [(0, "01"), (1, "ff")])
@pytest.mark.parametrize("code", ["06", "08"])
def test_an_unanswered_growth_request_is_pending_and_not_reported(
    code: str, side: int, source: str
) -> None:
    observer = Observer(create("nerdbank"))
    for sender, text in ((0, OFFER), (1, ACCEPTED), (side, f"93 {code} 01 {source}")):
        observer.feed(sender, bytes.fromhex(text.format(1)), 0)
    assert [duty.side for duty in observer.protocol.pending_replies.values()] == [1 - side]
    assert observer.protocol.finish(True) == []
