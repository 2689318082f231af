"""Each cause in a sentence a person can act on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.analysis.tables import STALL_CAUSES
from polymux.report.sentences import (
    STALL_HEADLINES,
    Stall,
    capture_sentence,
    duration,
    gap_sentence,
    is_window_limited,
    octets,
    rate,
    stall_sentence,
    violation_sentence,
    window_sentence,
)


def test_a_window_limited_stream_is_told_with_its_numbers() -> None:
    assert window_sentence(102_400, 80_000) == (
        "window-limited: 100 KiB window, 80 ms round trip, so at most 10 Mbit/s"
    )


def test_a_slow_reader_is_told_with_its_time() -> None:
    stall = Stall("d3", "dialer", 5_000_000, "slow-reader")
    assert stall_sentence(stall) == (
        "reader did not read for 5.0 s: the acceptor left octets unacknowledged"
    )


def test_a_stream_behind_another_names_the_culprit() -> None:
    stall = Stall("d5", "dialer", 312_000, "behind-other-stream", culprit="d3")
    assert stall_sentence(stall) == "waited 312 ms behind stream d3"
    named = Stall("d5", "dialer", 312_000, "behind-other-stream", "d3", "logs")
    assert stall_sentence(named) == "waited 312 ms behind stream d3 (logs)"
    unknown = Stall("d5", "dialer", 312_000, "behind-other-stream")
    assert stall_sentence(unknown) == "waited 312 ms behind another stream"


def test_a_stream_without_leave_names_who_gave_none_and_the_window() -> None:
    stall = Stall("a2", "acceptor", 800_000, "no-credit", window=65_536)
    assert stall_sentence(stall) == (
        "no leave to send for 800 ms once its 64 KiB window was full: the dialer granted nothing"
    )


@pytest.mark.parametrize("cause", STALL_CAUSES)
def test_every_cause_has_a_sentence_with_its_time(cause: str) -> None:
    assert "1.5 s" in stall_sentence(Stall("d1", "dialer", 1_500_000, cause))


def test_every_cause_but_idleness_is_a_finding() -> None:
    assert set(STALL_CAUSES) - set(STALL_HEADLINES) == {"sender-idle"}


def test_a_violation_says_who_where_and_what() -> None:
    told = violation_sentence("mplex.write-after-close", "dialer", "d3", "20 octets", "certain")
    assert told == "the dialer on stream d3: 20 octets"
    assert violation_sentence("mplex.bad-flag", "acceptor", None, None, "certain") == (
        "the acceptor broke mplex.bad-flag"
    )


def test_a_possible_violation_says_that_it_may_be_excused() -> None:
    told = violation_sentence("mplex.bad-flag", "acceptor", None, None, "possible")
    assert told.endswith("(possible: what was not captured could excuse it)")


def test_a_torn_capture_says_where_and_what_was_kept() -> None:
    assert capture_sentence("x.pcapng", "truncated", "211 of 1,514 octets", 88_120) == (
        "x.pcapng ends inside a block at octet 88,120 (211 of 1,514 octets); "
        "everything before that was read"
    )
    assert capture_sentence("y", "unreadable", None, None) == "y could not be read"


def test_missing_octets_are_told_with_their_sessions() -> None:
    assert gap_sentence(4380, 1).startswith("4.3 KiB missing from the capture in 1 session:")
    assert "in 2,000 sessions" in gap_sentence(1, 2000)


def test_a_sender_that_used_up_its_window_each_round_trip_is_limited_by_it() -> None:
    assert is_window_limited(102_400, 80_000, 10_000_000, 9_000_000, 6_000_000)


@pytest.mark.parametrize(
    ("window", "rtt", "sent", "lasted", "blocked"),
    [
        (None, 80_000, 10_000_000, 9_000_000, 6_000_000),
        (102_400, None, 10_000_000, 9_000_000, 6_000_000),
        (102_400, 80_000, 10_000_000, 9_000_000, None),
        (102_400, 80_000, 10_000_000, 9_000_000, 1_700_000),  # mostly had leave
        (102_400, 80_000, 1_000_000, 9_000_000, 6_000_000),  # had little to send
        (102_400, 80_000, 102_400, 200_000, 160_000),  # too short to tell
    ],
)
def test_without_proof_the_window_is_not_blamed(
    window: int | None, rtt: int | None, sent: int, lasted: int, blocked: int | None
) -> None:
    assert not is_window_limited(window, rtt, sent, lasted, blocked)


@pytest.mark.parametrize(
    ("us", "told"),
    [
        (0, "0 µs"),
        (850, "850 µs"),
        (8_300, "8.3 ms"),
        (9_949, "9.9 ms"),
        (80_000, "80 ms"),
        (999_499, "999 ms"),
        (999_500, "1.0 s"),
        (5_000_000, "5.0 s"),
        (59_960_000, "1 min 0 s"),
        (200_000_000, "3 min 20 s"),
        (7_500_000_000, "2 h 5 min"),
    ],
)
def test_durations_read_naturally(us: int, told: str) -> None:
    assert duration(us) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 octets"),
        (1, "1 octet"),
        (1023, "1023 octets"),
        (1024, "1 KiB"),
        (102_400, "100 KiB"),
        (1_572_864, "1.5 MiB"),
        (1 << 40, "1 TiB"),
        (1 << 62, "4,194,304 TiB"),
    ],
)
def test_octets_read_naturally(count: int, told: str) -> None:
    assert octets(count) == told


@given(st.floats(min_value=0, max_value=1e15))
def test_rates_have_a_unit_that_fits(bits: float) -> None:
    number, unit = rate(bits).split()
    assert unit.endswith("bit/s")
    assert float(number.replace(",", "")) < 1000 or unit == "Tbit/s"
