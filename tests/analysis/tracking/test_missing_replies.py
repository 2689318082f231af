"""Late and missing answers: one finding with the silent side and its duration."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.constructed_stalls import Case, Minmux, Mplex, Nerdbank, Omnistreams, Streamux
from tests.analysis.recorded_conversation import MS, Row, Stage, analyse

from polymux.analysis.options import AnalysisOptions


def replies(case: Case, tmp_path: Path) -> list[Row]:
    found = analyse(case.write(tmp_path / "a.pcapng"), plan=AnalysisOptions(case.protocol))
    return [row for row in found.rows("stalls") if row["cause"] == "no-reply"]


def begun(wire: Mplex) -> Case:
    case = Case("", wire.name)
    for side, data in wire.hello():
        case.send(0.0, side, data)
    for step, (side, data) in enumerate(wire.open(0, 1)):
        case.send(1.0 + step, side, data)
    return case


def test_a_half_that_ended_and_no_answer_names_the_silent_side(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"ask")
    stage.send(0, stream, b"question")
    stage.end(0, stream)
    stage.exchange()
    stage.wait(8_000 * MS)
    (row,) = analyse(stage.save(tmp_path / "a.pcapng")).rows("stalls")
    assert (row["cause"], row["sender"], row["stream"]) == ("no-reply", "acceptor", "d1")
    assert row["duration_us"] == pytest.approx(8_000_000, abs=2_000)
    assert row["detail"] == "no answer for 8 s after the dialer had ended its half"


def test_a_request_without_a_reply_says_so(tmp_path: Path) -> None:
    wire = Streamux()
    case = begun(wire)
    case.send(3.0, 0, wire.data(0, 0, 1, 50, last=True))
    case.ends = 4_003.0
    (row,) = replies(case, tmp_path)
    assert (row["sender"], row["stream"], row["duration_us"]) == ("acceptor", "d1", 4_000_000)
    assert row["detail"] == "no reply for 4 s to the dialer's request"


def test_a_reply_that_was_never_finished_says_so(tmp_path: Path) -> None:
    wire = Streamux()
    case = begun(wire)
    case.send(3.0, 0, wire.data(0, 0, 1, 50, last=True))
    case.send(5.0, 1, wire.data(1, 0, 1, 50))
    case.ends = 3_005.0
    (row,) = replies(case, tmp_path)
    assert row["detail"] == "the reply to the dialer's request stopped for 3 s and never ended"


def test_a_request_cancelled_after_seconds_had_no_reply_until_then(tmp_path: Path) -> None:
    wire = Streamux()
    case = begun(wire)
    case.send(3.0, 0, wire.data(0, 0, 1, 50, last=True))
    case.send(5_003.0, 0, (1).to_bytes(4, "little"))  # the requester cancels
    case.send(5_004.0, 1, (1 << 30 | 1).to_bytes(4, "little"))
    case.ends = 9_000.0
    (row,) = replies(case, tmp_path)
    assert (row["sender"], row["duration_us"]) == ("acceptor", 5_000_000)


def test_an_offer_that_was_never_answered_says_so(tmp_path: Path) -> None:
    wire = Nerdbank()
    case = Case("", wire.name)
    case.send(1.0, 1, wire.offer(1, 1))
    case.ends = 3_001.0
    (row,) = replies(case, tmp_path)
    assert (row["sender"], row["stream"], row["duration_us"]) == ("dialer", "a1", 3_000_000)
    assert row["detail"] == "the acceptor's offer was not answered for 3 s"


def test_an_offer_rejected_late_is_reported_once(tmp_path: Path) -> None:
    wire = Nerdbank()
    case = Case("", wire.name)
    case.send(1.0, 0, wire.offer(0, 1))
    case.send(4_001.0, 1, wire.frame(4, 1, 0, 1, None))
    case.send(4_002.0, 0, wire.frame(4, 0, 0, 1, None))
    case.ends = 4_100.0
    (row,) = replies(case, tmp_path)
    assert (row["sender"], row["duration_us"]) == ("acceptor", 4_000_000)
    assert row["detail"] == "the dialer's offer waited 4 s for an answer"


def test_an_end_without_content_is_an_answer(tmp_path: Path) -> None:
    for number, (at, rows) in enumerate(((900.0, 0), (3_004.0, 1))):
        wire = Mplex()
        case = begun(wire)
        case.send(4.0, 0, wire.end(0, 0, 1))
        case.send(at, 1, wire.end(1, 0, 1))
        case.ends = 9_000.0
        (tmp_path / str(number)).mkdir()
        found = replies(case, tmp_path / str(number))
        assert len(found) == rows
        assert all(row["duration_us"] == 3_000_000 for row in found)


@pytest.mark.parametrize("wire", [Omnistreams(), Minmux()], ids=["omnistreams", "minmux"])
def test_no_answer_is_expected_on_a_one_way_stream(wire: Mplex, tmp_path: Path) -> None:
    case = Case("", wire.name)
    for side, data in wire.open(0, 1, 100):
        case.send(1.0, side, data)
    case.send(3.0, 0, wire.data(0, 0, 1, 50))
    if isinstance(wire, Omnistreams):
        case.send(4.0, 0, wire.end(0, 0, 1))
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


@pytest.mark.parametrize("wire", [Mplex(), Nerdbank()], ids=["mplex", "nerdbank"])
def test_a_peer_that_has_answered_may_be_silent_later(wire: Mplex, tmp_path: Path) -> None:
    case = begun(wire)
    case.send(4.0, 0, wire.end(0, 0, 1))
    case.send(50.0, 1, wire.data(1, 0, 1, 50))  # a subscription, with its first content
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


def test_a_peer_in_the_middle_of_its_answer_is_answering(tmp_path: Path) -> None:
    wire = Mplex()
    case = begun(wire)
    case.send(4.0, 0, wire.end(0, 0, 1))
    case.send(50.0, 1, wire.data(1, 0, 1, 50_000)[:20_000])
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


def test_a_peer_without_credit_cannot_answer(tmp_path: Path) -> None:
    wire = Nerdbank()
    case = Case("", wire.name)
    case.send(1.0, 0, wire.offer(0, 1, 0))  # the dialer grants no window
    case.send(2.0, 1, wire.accept(0, 1))
    case.send(4.0, 0, wire.end(0, 0, 1))
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


def test_what_could_not_be_read_may_have_been_the_answer(tmp_path: Path) -> None:
    wire = Mplex()
    case = begun(wire)
    case.send(4.0, 0, wire.end(0, 0, 1))
    case.send(50.0, 1, b"\xff" * 12)
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


def test_no_answer_is_expected_on_a_stream_that_was_reset_or_reused(tmp_path: Path) -> None:
    wire = Mplex()
    case = begun(wire)
    case.send(4.0, 0, wire.end(0, 0, 1))
    case.send(50.0, 0, b"\x0e\0")  # a reset, within the time an answer may take
    (side, again) = wire.open(0, 1)[0]
    case.send(60.0, side, again)
    case.ends = 9_000.0
    assert replies(case, tmp_path) == []


def test_five_round_trips_are_no_silence(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stream = stage.open(0, b"ask")
    stage.send(0, stream, b"question")
    stage.end(0, stream)
    stage.exchange()
    stage.wait(500 * MS)
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    assert [row for row in found.rows("stalls") if row["cause"] == "no-reply"] == []
    assert found.stream("d1")["ending"] == "half-closed"


# Peers that are prevented from answering


def found_in(case: Case, tmp_path: Path) -> list[tuple[object, object]]:
    """Cause and sender of every stall that is a finding."""
    found = analyse(case.write(tmp_path / "a.pcapng"), plan=AnalysisOptions(case.protocol))
    rows = [row for row in found.rows("stalls") if row["cause"] != "sender-idle"]
    return [(row["cause"], row["sender"]) for row in rows]


def asked(wire: Mplex) -> Case:
    case = begun(wire)
    case.send(3.0, 0, wire.data(0, 0, 1, 5))
    case.send(4.0, 0, wire.end(0, 0, 1))
    return case


@pytest.mark.parametrize("content", [False, True], ids=["end", "content"])
def test_an_answer_held_up_by_a_closed_window_is_the_reader_s(
    content: bool, tmp_path: Path
) -> None:
    wire = Mplex()
    case = asked(wire)
    case.window(5.0, 0, 0)
    case.window(4_900.0, 0, 65535)
    if content:
        case.send(4_990.0, 1, wire.data(1, 0, 1, 5))
    case.send(4_990.0, 1, wire.end(1, 0, 1))
    case.ends = 6_000.0
    assert found_in(case, tmp_path) == [("slow-reader", "acceptor")]


@pytest.mark.parametrize("content", [False, True], ids=["end", "content"])
def test_an_answer_behind_a_full_line_waited_for_the_other_stream(
    content: bool, tmp_path: Path
) -> None:
    wire = Mplex()
    case = asked(wire)
    (side, opening) = wire.open(0, 3)[0]
    case.send(3.5, side, opening)
    at = 5.0
    for _ in range(4_000):
        at = case.send(at, 1, wire.data(1, 0, 3, 1_396), rate=1_400)
    case.send(at, 1, (wire.data(1, 0, 1, 2) if content else b"") + wire.end(1, 0, 1))
    for _ in range(20):
        at = case.send(at, 1, wire.data(1, 0, 3, 1_396), rate=1_400)
    case.ends = at + 10
    assert found_in(case, tmp_path) == [("head-of-line", "acceptor")]


def test_a_peer_whose_line_two_streams_fill_in_turn_is_not_silent(tmp_path: Path) -> None:
    wire = Mplex()
    case = asked(wire)
    for number in (3, 5):
        (side, opening) = wire.open(0, number)[0]
        case.send(3.5, side, opening)
    at = 5.0
    for turn in range(3_000):  # more runs than are remembered
        at = case.send(at, 1, wire.data(1, 0, 3 + turn % 2 * 2, 1_396), rate=1_400)
    case.send(at, 1, wire.end(1, 0, 1))
    case.ends = at + 10
    assert ("no-reply", "acceptor") not in found_in(case, tmp_path)


def test_no_answer_is_expected_from_a_peer_whose_receiver_closed_its_window(tmp_path: Path) -> None:
    case = asked(Mplex())
    case.window(5.0, 0, 0)
    case.window(8_000.0, 0, 65535)  # as the last packet of a connection may
    case.ends = 8_001.0
    assert found_in(case, tmp_path) == []


def test_an_open_window_excuses_no_silence(tmp_path: Path) -> None:
    wire = Mplex()
    case = asked(wire)
    case.window(5.0, 0, 0)
    case.window(1_000.0, 0, 65535)
    case.send(5_000.0, 1, wire.end(1, 0, 1))
    case.ends = 6_000.0
    assert found_in(case, tmp_path) == [("no-reply", "acceptor")]


@pytest.mark.parametrize("until", [1_500.0, 4_900.0])
def test_an_accept_held_up_by_a_closed_window_is_the_reader_s(until: float, tmp_path: Path) -> None:
    wire = Nerdbank()
    case = Case("", wire.name)
    case.send(1.0, 0, wire.offer(0, 1))
    case.window(2.0, 0, 0)
    case.window(until, 0, 65535)
    case.send(until + 1, 1, wire.accept(0, 1))
    case.send(until + 50, 0, wire.data(0, 0, 1, 50))
    case.ends = until + 100
    assert found_in(case, tmp_path) == [("slow-reader", "acceptor")]


def test_an_offer_before_a_closed_window_is_not_held_against_the_peer(tmp_path: Path) -> None:
    wire = Nerdbank()
    case = Case("", wire.name)
    case.send(1.0, 0, wire.offer(0, 1))
    case.window(2.0, 0, 0)
    case.ends = 5_000.0
    assert found_in(case, tmp_path) == []


def test_no_answer_is_expected_from_a_peer_that_answered_before_the_end(tmp_path: Path) -> None:
    wire = Mplex()
    case = begun(wire)
    case.send(4.0, 0, wire.data(0, 0, 1, 4))
    case.send(14.0, 1, wire.data(1, 0, 1, 4))
    case.send(24.0, 0, wire.end(0, 0, 1))
    case.ends = 6_000.0
    assert found_in(case, tmp_path) == []
