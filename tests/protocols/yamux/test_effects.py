"""Details of yamux that no exchange of frames shows by itself: bounds, saved state, effects."""

from __future__ import annotations

import pytest
from tests.attacks import raw_frames as words

from polymux.core.endpoint import Endpoint
from polymux.core.errors import LocalProtocolError, Unsupported
from polymux.core.frames import ABORTS, ACCEPTS, ENDS, GRANTS, OPENS
from polymux.core.limits import Limits
from polymux.core.observer import Observer
from polymux.core.side import ACCEPTOR, DIALER
from polymux.protocols.registry import create
from polymux.protocols.yamux.pings import Pings
from polymux.protocols.yamux.rules import window_update_effect

MAX_WINDOW = 2**32 - 1


@pytest.mark.parametrize("flags", range(16))
def test_an_opening_outranks_a_reset_and_a_reset_an_acceptance_or_an_end(flags: int) -> None:
    syn, ack, fin, rst = flags & 1, flags & 2, flags & 4, flags & 8
    expected = (
        OPENS if syn else ABORTS if rst else ACCEPTS if ack else ENDS if fin else GRANTS
    )  # fmt: skip
    assert window_update_effect(flags) == expected


def test_the_round_trip_is_the_shortest_and_the_sum_of_both_sides_parts() -> None:
    pings = Pings({}, 10)
    assert pings.round_trip_ns() == -1
    for value, taken in ((1, 50), (2, 30), (3, 40)):
        pings.sent(DIALER, value, 0, 100)
        pings.answered(DIALER, value, 100 + taken)
    assert pings.round_trip_ns() == 30
    assert pings.latest[DIALER] == 40
    pings.sent(ACCEPTOR, 9, 0, 100)
    pings.answered(ACCEPTOR, 9, 100)
    assert pings.round_trip_ns() == 30  # the other part takes no time
    only_acceptor = Pings({}, 10)
    only_acceptor.sent(ACCEPTOR, 1, 0, 0)
    only_acceptor.answered(ACCEPTOR, 1, 7)
    assert only_acceptor.round_trip_ns() == 7


@pytest.mark.parametrize("sent", [1, 5])
def test_saved_pings_are_restored_as_they_were(sent: int) -> None:
    pings = Pings({}, 2)
    pings.sent(DIALER, 77, 0, 1)
    pings.answered(DIALER, 77, 12)
    pings.sent(ACCEPTOR, 78, 0, 1)
    pings.answered(ACCEPTOR, 78, 24)
    for value in range(sent):
        pings.sent(DIALER, value, value, 5)
    restored = Pings({}, 2)
    restored.load(pings.save())
    assert restored.save() == pings.save()
    assert restored.forgotten is (sent > 2)
    assert restored.latest == [11, 23]
    assert restored.is_expected(DIALER, 12345) is (sent > 2)


def test_a_second_ping_of_the_same_value_is_answered_by_the_second_answer() -> None:
    pings = Pings({}, 10)
    pings.sent(DIALER, 5, 3, 0)
    pings.sent(DIALER, 5, 4, 0)
    assert pings.total == 2
    assert pings.answered(DIALER, 5, 10) == 3
    assert pings.round_trip_ns() == -1  # either ping may have been meant
    assert pings.answered(DIALER, 5, 20) == 3
    assert pings.answered(DIALER, 5, 30) == -1
    assert pings.total == 0


@pytest.mark.parametrize(("side", "first"), [(DIALER, 1), (ACCEPTOR, 2)])
def test_an_opening_that_is_refused_uses_no_id(side: int, first: int) -> None:
    endpoint = Endpoint(create("yamux", Limits(), side), side)
    with pytest.raises(Unsupported, match="no names"):
        endpoint.open(b"x")
    with pytest.raises(LocalProtocolError, match="at most 4294967295 bytes, not 4294967296"):
        endpoint.open(b"", MAX_WINDOW + 1)
    assert endpoint.open(b"", MAX_WINDOW).key == first
    assert endpoint.open(b"").key == first + 2


@pytest.mark.parametrize(
    ("text", "code"),
    [(b"code 7", 7), (b"code 4294967295", MAX_WINDOW), (b"code 9999999999", MAX_WINDOW),
     (b"code 10000000000", 0), (b"code x", 0), (b"code ", 0), (b"7", 0)],
)  # fmt: skip
def test_only_libp2p_sends_the_code_of_a_reset(text: bytes, code: int) -> None:
    for dialect, expected in (("libp2p", code), ("hashicorp", 0)):
        protocol = create(f"yamux:dialect={dialect}", Limits(), DIALER)
        endpoint = Endpoint(protocol, DIALER)
        stream = endpoint.open(b"")
        found = protocol.abort_frame(DIALER, stream, text)
        assert found is not None
        assert found.amount == expected


@pytest.mark.parametrize(("code", "reported"), [(0, False), (2, False), (3, True)])
def test_a_go_away_has_one_of_the_three_codes_unless_libp2p_sends_it(
    code: int, reported: bool
) -> None:
    observer = Observer(create("yamux:dialect=hashicorp"))
    observer.feed(ACCEPTOR, words.yamux(words.YAMUX_GO_AWAY, 0, 0, code), 0)
    names = {violation.rule.name for violation in observer.take_violations()}
    assert ("yamux.goaway-code" in names) is reported
