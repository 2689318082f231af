"""The sentences of findings: each names the side at fault, the stream and the cost."""

import pytest

from polymux.analysis.schema.tables import SIDES, STALL_CAUSES, STREAM_ENDINGS
from polymux.report.render.wording import (
    ABORTED_ENDINGS,
    PEER,
    STALL_HEADLINES,
    Stall,
    StreamEnding,
    capture_sentence,
    ending_sentence,
    findings_sentence,
    gap_sentence,
    is_window_limited,
    no_findings_sentence,
    stall_sentence,
    violation_sentence,
    window_sentence,
)


def test_a_window_limited_stream_is_reported_with_its_numbers() -> None:
    assert window_sentence(102_400, 80_000) == (
        "window-limited: 100 KiB window, 80 ms round trip, so at most 10 Mbit/s"
    )


@pytest.mark.parametrize("waiting", SIDES)
def test_the_side_at_fault_comes_first_and_the_side_that_waited_second(waiting: str) -> None:
    other = PEER[waiting]
    for cause, at_fault, told in (
        ("slow-reader", other, f"{other} did not read d3: {waiting} waited 1.2 s (slow-reader)"),
        (
            "no-credit",
            other,
            f"{other} granted no credit on d3: {waiting} was blocked for 1.2 s (no-credit)",
        ),
    ):
        sentence = stall_sentence(Stall("d3", waiting, 1_200_000, cause))
        assert sentence == told
        assert sentence.startswith(at_fault)


def test_a_side_that_does_not_answer_is_named_as_the_one_at_fault() -> None:
    silent = Stall("d1", "acceptor", 12_000_000, "no-reply")
    assert stall_sentence(silent) == "acceptor did not answer dialer on d1 for 12 s (no-reply)"


def test_a_head_of_line_blocked_stream_names_the_blocking_stream() -> None:
    stall = Stall("d5", "dialer", 312_000, "head-of-line", blocking_stream="d3")
    assert stall_sentence(stall) == (
        "dialer's d5 was head-of-line blocked by d3 for 312 ms (head-of-line)"
    )
    named = Stall("d5", "dialer", 312_000, "head-of-line", "d3", "logs")
    assert stall_sentence(named).startswith("dialer's d5 was head-of-line blocked by d3 (logs) for")
    unknown = Stall("d5", "dialer", 312_000, "head-of-line")
    assert stall_sentence(unknown).startswith(
        "dialer's d5 was head-of-line blocked by another stream"
    )


@pytest.mark.parametrize("cause", sorted({*STALL_CAUSES, *STALL_HEADLINES, "a-new-one"}))
def test_every_cause_has_a_sentence_with_its_stream_its_time_and_its_name(cause: str) -> None:
    sentence = stall_sentence(Stall("d1", "dialer", 1_500_000, cause))
    assert " d1" in f" {sentence}"
    assert "1.5 s" in sentence
    assert sentence.endswith(f"({cause})")


def test_every_cause_but_idleness_is_a_finding() -> None:
    assert set(STALL_CAUSES) - set(STALL_HEADLINES) == {"sender-idle"}


def test_a_violation_says_which_side_broke_what_and_where() -> None:
    told = violation_sentence("mplex.write-after-close", "dialer", "d3", "20 bytes", "certain")
    assert told == "dialer broke mplex.write-after-close on d3: 20 bytes"
    assert violation_sentence("mplex.bad-flag", "acceptor", None, None, "certain") == (
        "acceptor broke mplex.bad-flag"
    )


def test_a_possible_violation_is_not_reported_as_certain() -> None:
    told = violation_sentence("mplex.bad-flag", "acceptor", None, None, "possible")
    assert told == "acceptor may have broken mplex.bad-flag"


def test_a_stream_that_was_aborted_names_the_side_that_did_it() -> None:
    for ending in ("reset", "cancelled", "rejected"):
        end = StreamEnding("d5", ending, "dialer", "acceptor", "disk quota exceeded")
        assert ending_sentence(end) == f"acceptor {ending} d5: disk quota exceeded"
        assert ending_sentence(StreamEnding("d5", ending)) == f"d5 was {ending}"
    assert (
        ending_sentence(StreamEnding("a2", "never-accepted", "acceptor"))
        == "dialer was not seen to accept a2"
    )


def test_a_stream_not_over_at_the_end_says_what_is_missing() -> None:
    assert ending_sentence(StreamEnding("d1", "open")) == "d1 was not seen to end"
    half = StreamEnding("d1", "half-closed", ended_dialer="ended")
    assert ending_sentence(half) == "acceptor was not seen to end its half of d1"
    half = StreamEnding("d1", "half-closed", ended_acceptor="ended")
    assert ending_sentence(half) == "dialer was not seen to end its half of d1"


@pytest.mark.parametrize("ending", sorted(set(STREAM_ENDINGS) - {"clean"}))
def test_every_ending_names_its_stream(ending: str) -> None:
    assert "d7" in ending_sentence(StreamEnding("d7", ending)).split()
    assert set(ABORTED_ENDINGS) < set(STREAM_ENDINGS)


def test_counts_have_proper_plurals() -> None:
    assert findings_sentence(1, 0, 0) == "1 violation, 0 stalls"
    assert findings_sentence(0, 1, 1) == "0 violations, 1 stall, 1 stream not seen to end"
    assert findings_sentence(1200, 2, 2).startswith("1,200 violations, 2 stalls, 2 streams not")


def test_an_open_stream_never_comes_under_nothing_wrong() -> None:
    assert no_findings_sentence(0) == "nothing wrong was found"
    assert "nothing" not in no_findings_sentence(1)
    assert no_findings_sentence(1).endswith("1 stream not seen to end")


def test_a_torn_capture_says_where_and_what_was_kept() -> None:
    assert capture_sentence("x.pcapng", "truncated", "211 of 1,514 bytes", 88_120) == (
        "x.pcapng ends inside a block at byte 88,120 (211 of 1,514 bytes); "
        "everything before that was read"
    )
    assert capture_sentence("y", "unreadable", None, None) == "y could not be read"


def test_missing_bytes_are_reported_with_their_sessions() -> None:
    assert gap_sentence(4380, 1).startswith("4.3 KiB are missing from the capture in 1 session;")
    assert gap_sentence(1, 1).startswith("1 byte is missing")
    assert "in 2,000 sessions" in gap_sentence(1, 2000)


def test_a_sender_that_used_up_its_window_each_round_trip_is_limited_by_it() -> None:
    assert is_window_limited(102_400, 80_000, 10_000_000, 9_000_000, 6_000_000)


@pytest.mark.parametrize(
    ("window", "rtt", "sent", "lasted", "blocked"),
    [
        (None, 80_000, 10_000_000, 9_000_000, 6_000_000),
        (102_400, None, 10_000_000, 9_000_000, 6_000_000),
        (102_400, 80_000, 10_000_000, 9_000_000, None),
        (102_400, 80_000, 10_000_000, 9_000_000, 1_700_000),  # mostly had credit
        (102_400, 80_000, 1_000_000, 9_000_000, 6_000_000),  # had little to send
        (102_400, 80_000, 102_400, 200_000, 160_000),  # too short to tell
    ],
)
def test_a_stream_is_not_window_limited_without_evidence(
    window: int | None, rtt: int | None, sent: int, lasted: int, blocked: int | None
) -> None:
    assert not is_window_limited(window, rtt, sent, lasted, blocked)
