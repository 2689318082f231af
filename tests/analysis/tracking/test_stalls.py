"""Streams that stalled, each with the constructed cause and no other."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.packet_script import Wire, wire
from tests.analysis.recorded_conversation import MS, START, Found, Record, Row, Stage, analyse

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.tracking.stall_evidence import Intervals
from polymux.capture.packets.packet_refs import ACK, PSH
from polymux.core.streams import StreamState
from polymux.text.units import duration_text, rate_text, size_text

US = 1000


def findings(found: Found) -> list[Row]:
    return [row for row in found.rows("stalls") if row["cause"] != "sender-idle"]


def nerdbank(window: int) -> tuple[Stage, StreamState]:
    """A conversation with one accepted channel of this window."""
    stage = Stage("nerdbank:version=3")
    stream = stage.open(0, b"bulk", window=window)
    stage.exchange()
    stage.accept(1, window=window)
    stage.exchange()
    return stage, stream


# no-credit


def test_a_grant_that_came_late_is_no_credit_with_its_figures(tmp_path: Path) -> None:
    stage, stream = nerdbank(102_400)
    stage.reading = False
    stage.send(0, stream, b"x" * 150_000)
    stage.exchange()
    stage.wait(900 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 102_400)
    stage.exchange()
    stage.wait(2_000 * MS)  # it ends long after its last content: that is no finding
    stage.end(0, stream)
    stage.exchange()
    found = analyse(wire(tmp_path / "a.pcapng", stage.record, rtt=80 * MS))
    (row,) = findings(found)
    assert (row["cause"], row["stream"], row["sender"]) == ("no-credit", "d1", "dialer")
    assert row["duration_us"] == 900_000
    told = "the window of 100 KiB was full for 900 ms: the reader was slow to grant credit"
    assert row["detail"] == told


@pytest.mark.parametrize(
    ("windows", "rtt", "nap"), [(12, 80, 500), (100, 20, 1_800)], ids=["short", "long"]
)
def test_a_reader_that_slept_is_not_a_small_window_however_fast_it_was_before(
    windows: int, rtt: int, nap: int, tmp_path: Path
) -> None:
    stage, stream = nerdbank(102_400)
    stage.reading = False
    for _ in range(windows):  # one per round trip, then the reader pauses
        stage.send(0, stream, b"x" * 102_400)
        stage.exchange()
        stage.wait(rtt * MS)
        stage.ends[1].read(stage.peer_stream(0, stream), 102_400)
        stage.exchange()
    stage.send(0, stream, b"x" * 204_800)
    stage.exchange()
    stage.wait(nap * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 102_400)
    stage.exchange()
    stage.end(0, stream)
    stage.end(1, stage.peer_stream(0, stream))
    stage.exchange()
    (row,) = findings(analyse(wire(tmp_path / "a.pcapng", stage.record, rtt=rtt * MS)))
    assert (row["cause"], row["duration_us"]) == ("no-credit", nap * 1000)
    assert str(row["detail"]).endswith("the reader was slow to grant credit")


def test_the_window_stands_beside_what_it_allows_and_what_was_reached(tmp_path: Path) -> None:
    stage, stream = nerdbank(102_400)
    stage.reading = False
    stage.send(0, stream, b"x" * 150_000)
    stage.exchange()
    stage.wait(900 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 102_400)
    stage.exchange()
    row = analyse(wire(tmp_path / "a.pcapng", stage.record, rtt=80 * MS)).stream("d1")
    assert (row["window_bytes_dialer"], row["window_limit_bps_dialer"]) == (102_400, 10_240_000)
    assert row["throughput_bps_dialer"] == pytest.approx(150_000 * 8 / 0.9, rel=0.02)
    assert (row["stalled_us_dialer"], row["hol_blocked_us_dialer"]) == (900_000, 0)
    assert row["throughput_bps_acceptor"] is None


def test_an_offer_accepted_late_is_no_credit_once_content_follows(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stream = stage.open(0, b"late")
    stage.exchange()
    stage.wait(300 * MS)
    stage.accept(1)
    stage.exchange()
    stage.send(0, stream, b"at last")
    stage.exchange()
    (row,) = findings(analyse(stage.save(tmp_path / "a.pcapng")))
    assert (row["cause"], row["duration_us"]) == ("no-credit", 300_000)
    assert row["detail"] == "no send credit for 300 ms before its first byte"


def test_an_unused_channel_did_not_stall(tmp_path: Path) -> None:
    stage = Stage("nerdbank:version=3")
    stage.open(0, b"never used")
    stage.exchange()
    stage.wait(300 * MS)
    stage.accept(1)
    stage.exchange()
    stage.wait(300 * MS)
    assert analyse(stage.save(tmp_path / "a.pcapng")).rows("stalls") == []


def test_without_a_round_trip_the_window_is_named_all_the_same(tmp_path: Path) -> None:
    stage, stream = nerdbank(4096)
    stage.reading = False
    stage.send(0, stream, b"x" * 5000)
    stage.exchange()
    stage.wait(300 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 4096)
    stage.exchange()
    (row,) = findings(analyse(stage.save(tmp_path / "a.pcapng")))
    assert row["detail"] == "the window of 4 KiB was full for 300 ms"


def test_five_round_trips_are_not_a_stall(tmp_path: Path) -> None:
    stage, stream = nerdbank(1000)
    stage.reading = False
    stage.send(0, stream, b"x" * 1500)
    stage.exchange()
    stage.wait(100 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 1000)
    stage.exchange()
    assert findings(analyse(wire(tmp_path / "near.pcapng", stage.record, rtt=MS))) != []
    assert findings(analyse(wire(tmp_path / "far.pcapng", stage.record, rtt=21 * MS))) == []


# slow-reader


def test_bytes_that_are_never_acknowledged_are_a_slow_reader(tmp_path: Path) -> None:
    stage, stream = nerdbank(5000)
    stage.reading = False
    stage.send(0, stream, b"x" * 9000)
    stage.exchange()
    stage.wait(4_000 * MS)
    found = analyse(stage.save(tmp_path / "a.pcapng"))
    (row,) = findings(found)
    assert (row["cause"], row["stream"], row["sender"]) == ("slow-reader", "d1", "dialer")
    assert row["duration_us"] == 4_001_000  # up to the end of the capture
    assert "4.9 KiB were never acknowledged" in str(row["detail"])


def test_a_window_that_never_opens_again_is_a_slow_reader(tmp_path: Path) -> None:
    made = Wire(tmp_path / "a.pcapng")
    made.data(0, b"\x08\x01x", START + MS)
    made.data(0, b"\x0a\xc8\x01" + b"m" * 200, START + 2 * MS)
    made.window(1, 0, START + 3 * MS)
    made.window(1, 0, START + 2_003 * MS)
    (row,) = findings(analyse(made.close(), plan=AnalysisOptions("mplex")))
    assert (row["cause"], row["stream"], row["duration_us"]) == ("slow-reader", "d1", 2_000_000)
    assert "did not open it again" in str(row["detail"])


def test_a_closed_tcp_window_is_a_slow_reader(tmp_path: Path) -> None:
    made = Wire(tmp_path / "a.pcapng")
    made.data(0, b"\x08\x01x", START + MS)
    made.data(0, b"\x0a\xc8\x01" + b"m" * 200, START + 2 * MS)
    made.window(1, 0, START + 3 * MS)
    made.window(1, 500, START + 802 * MS)
    made.data(0, b"\x0a\x05later", START + 803 * MS)
    path = made.close()
    (row,) = findings(analyse(path, plan=AnalysisOptions("mplex")))
    assert (row["cause"], row["sender"]) == ("slow-reader", "dialer")
    assert "TCP window was closed for 799 ms" in str(row["detail"])


@pytest.mark.parametrize(("window", "later"), [(100, 65_535), (1, 4_000), (1_000, 64_000)])
def test_a_tcp_window_too_small_for_the_next_segment_is_a_slow_reader(
    tmp_path: Path, window: int, later: int
) -> None:
    made = Wire(tmp_path / "a.pcapng")
    made.data(0, b"\x08\x01x", START + MS)
    made.data(0, b"\x0a\xc8\x01" + b"m" * 200, START + 2 * MS)
    made.window(1, window, START + 3 * MS)
    made.window(1, later, START + 502 * MS)
    made.data(0, b"\x0a\xd0\x0f" + b"m" * 2000, START + 503 * MS)
    (row,) = findings(analyse(made.close(), plan=AnalysisOptions("mplex")))
    assert (row["cause"], row["sender"], row["stream"]) == ("slow-reader", "dialer", "d1")
    assert row["duration_us"] == pytest.approx(500_000, abs=2_000)


@pytest.mark.parametrize(
    ("window", "later"),
    [
        (500, 500),  # it did not change
        (1_500, 3_000),  # there was room all the time
        (500, 1_000),  # more than that is sent, so the number in the packets is scaled
    ],
)
def test_a_tcp_window_that_kept_nothing_back_leaves_the_sender_idle(
    tmp_path: Path, window: int, later: int
) -> None:
    made = Wire(tmp_path / "a.pcapng")
    made.data(0, b"\x08\x01x", START + MS)
    made.data(0, b"\x0a\xc8\x01" + b"m" * 200, START + 2 * MS)
    made.window(1, window, START + 3 * MS)
    made.window(1, later, START + 502 * MS)
    made.data(0, b"\x0a\xac\x0a" + b"m" * 1324, START + 503 * MS)
    (row,) = analyse(made.close(), plan=AnalysisOptions("mplex")).rows("stalls")
    assert row["cause"] == "sender-idle"


# head-of-line


def hog(tmp_path: Path, frames: Record, name: str = "a.pcapng") -> Found:
    return analyse(wire(tmp_path / name, frames, rtt=MS), plan=AnalysisOptions("mplex"))


def busy(begin: int, end: int, size: int = 8000) -> Record:
    """Stream 1 sends without a pause."""
    message = b"\x0a" + _varint(size) + b"h" * size
    return [(0, message, START + at * MS) for at in range(begin, end, 5)]


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


OPENINGS = [(0, b"\x08\x03hog", START + 5 * MS), (0, b"\x18\x04ping", START + 5 * MS)]


def test_an_answer_that_is_head_of_line_blocked_names_the_blocking_stream(tmp_path: Path) -> None:
    asked = [(1, b"\x18\x04echo", START + 8 * MS), (1, b"\x18\x00", START + 8 * MS)]
    frames = [
        *OPENINGS[:1],
        asked[0],
        (1, b"\x1a\x02hi", START + 9 * MS),
        *busy(10, 700),
        (0, b"\x19\x02ok", START + 700 * MS),
    ]
    (row,) = findings(hog(tmp_path, frames))
    assert (row["cause"], row["blocking_stream"]) == ("head-of-line", "d1")
    assert (row["stream"], row["sender"]) == ("a3", "dialer")
    assert row["duration_us"] == pytest.approx(690_000, abs=10_000)
    assert "of d1 passed first" in str(row["detail"])


def test_a_stream_opened_behind_a_hog_waits_for_its_first_bytes(tmp_path: Path) -> None:
    frames = [*OPENINGS, *busy(10, 400), (0, b"\x1a\x02hi", START + 401 * MS)]
    (row,) = findings(hog(tmp_path, frames))
    assert (row["cause"], row["blocking_stream"], row["stream"]) == ("head-of-line", "d1", "d3")


def test_a_backlog_that_comes_out_behind_a_hog_was_waiting(tmp_path: Path) -> None:
    first = (0, b"\x1a\x02hi", START + 6 * MS)
    backlog = [(0, b"\x1a\x02hi", START + 400 * MS), (0, b"\x1a\x02hi", START + 401 * MS)]
    (row,) = findings(hog(tmp_path, [*OPENINGS, first, *busy(10, 400), *backlog]))
    assert (row["cause"], row["blocking_stream"], row["stream"]) == ("head-of-line", "d1", "d3")


def test_a_backlog_in_one_packet_was_waiting_too(tmp_path: Path) -> None:
    first = (0, b"\x1a\x02hi", START + 6 * MS)
    backlog = (0, b"\x1a\x02hi\x1a\x02hi", START + 400 * MS)
    (row,) = findings(hog(tmp_path, [*OPENINGS, first, *busy(10, 400), backlog]))
    assert (row["cause"], row["blocking_stream"], row["stream"]) == ("head-of-line", "d1", "d3")


def test_what_waiting_behind_others_cost_stands_with_the_victim(tmp_path: Path) -> None:
    frames = [*OPENINGS, *busy(10, 400), (0, b"\x1a\x02hi", START + 401 * MS)]
    found = hog(tmp_path, frames)
    (row,) = findings(found)
    victim, culprit = found.stream("d3"), found.stream("d1")
    assert victim["hol_blocked_us_dialer"] == victim["stalled_us_dialer"] == row["duration_us"]
    assert (victim["hol_blocked_us_acceptor"], culprit["hol_blocked_us_dialer"]) == (0, 0)


def test_a_stream_with_nothing_to_send_beside_a_busy_one_is_idle(tmp_path: Path) -> None:
    pings = [(0, b"\x1a\x02hi", START + at * MS) for at in (6, 206, 406, 606)]
    frames = sorted([*OPENINGS, *busy(10, 700), *pings], key=lambda line: line[2])
    found = hog(tmp_path, frames)
    assert findings(found) == []
    assert [(row["cause"], row["duration_us"]) for row in found.rows("stalls")] == [
        ("sender-idle", 200_000)
    ] * 3


def test_a_fair_share_of_others_is_no_hog(tmp_path: Path) -> None:
    frames = [*OPENINGS, *busy(10, 400, size=50), (0, b"\x1a\x02hi", START + 401 * MS)]
    assert findings(hog(tmp_path, frames)) == []


def test_a_server_that_takes_its_time_beside_a_busy_stream_is_idle(tmp_path: Path) -> None:
    asked = [(1, b"\x18\x04echo", START + 8 * MS), (1, b"\x1a\x02hi", START + 9 * MS)]
    frames = [*OPENINGS[:1], *asked, *busy(10, 900), (0, b"\x19\x02ok", START + 409 * MS)]
    found = hog(tmp_path, sorted(frames, key=lambda line: line[2]))
    assert findings(found) == []
    (row,) = [row for row in found.rows("stalls") if row["stream"] == "a3"]
    assert (row["cause"], row["sender"]) == ("sender-idle", "dialer")
    assert found.stream("a3")["hol_blocked_us_dialer"] == pytest.approx(0, abs=5_000)


def test_waits_too_short_for_a_stall_add_up_to_what_they_cost(tmp_path: Path) -> None:
    frames: Record = [*OPENINGS[:1], (1, b"\x18\x04echo", START + 8 * MS)]
    for at in range(10, 10 + 64 * 33, 33):
        frames += [(1, b"\x1a\x02hi", START + at * MS), *busy(at + 4, at + 33, 5000)]
        frames += [(0, b"\x19\x02ok", START + (at + 32) * MS)]
    found = hog(tmp_path, sorted(frames, key=lambda line: line[2]))
    assert found.rows("stalls") == []
    assert found.stream("a3")["hol_blocked_us_dialer"] == pytest.approx(2_048_000, rel=0.1)


def test_credit_that_came_back_and_then_a_hog_are_two_stalls(tmp_path: Path) -> None:
    stage, stream = nerdbank(1000)
    other = stage.open(0, b"hog", window=10_000_000)
    stage.exchange()
    stage.accept(1, window=10_000_000)
    stage.exchange()
    stage.reading = False
    stage.send(0, stream, b"x" * 1000)
    stage.exchange()
    stage.wait(60 * MS)
    stage.ends[1].read(stage.peer_stream(0, stream), 1000)
    stage.exchange()
    for _ in range(120):
        stage.wait(5 * MS)
        stage.send(0, other, b"h" * 8000)
        stage.exchange()
    stage.send(0, stream, b"x" * 900)
    stage.exchange()
    found = analyse(wire(tmp_path / "a.pcapng", stage.record, rtt=MS))
    first, second = sorted(findings(found), key=lambda row: str(row["started_at"]))
    assert (first["cause"], first["duration_us"]) == ("no-credit", 60_000)
    assert (second["cause"], second["blocking_stream"]) == ("head-of-line", "d2")
    assert second["duration_us"] == pytest.approx(600_000, rel=0.02)
    assert found.stream("d1")["hol_blocked_us_dialer"] == second["duration_us"]


# transport and pauses inside frames


def test_a_retransmission_is_the_transport(tmp_path: Path) -> None:
    made = Wire(tmp_path / "a.pcapng")
    made.data(0, b"\x08\x01x", START + MS)
    made.data(0, b"\x0a\x05first", START + 2 * MS)
    behind = made.next[0] + 7
    made.packet(0, START + 3 * MS, behind, 901, PSH | ACK, b"\x0a\x05after")
    made.data(0, b"\x0a\x05again", START + 602 * MS)
    path = made.close()
    (row,) = findings(analyse(path, plan=AnalysisOptions("mplex")))
    assert (row["cause"], row["sender"], row["stream"]) == ("transport", "dialer", "d1")
    assert row["duration_us"] == 600_000


def test_a_pause_inside_a_frame_belongs_to_its_stream(tmp_path: Path) -> None:
    frames = [
        (0, b"\x08\x01x", START + 5 * MS),
        (0, b"\x0a\x14" + b"m" * 10, START + 6 * MS),
        (0, b"m" * 10, START + 306 * MS),
    ]
    (row,) = hog(tmp_path, frames).rows("stalls")
    assert (row["stream"], row["cause"], row["duration_us"]) == ("d1", "sender-idle", 300_000)
    assert "inside a frame" in str(row["detail"])


def test_a_large_frame_on_a_slow_line_is_not_a_stall(tmp_path: Path) -> None:
    head = b"\x0a" + _varint(100_000)
    body = [(0, b"m" * 1000, START + (10 + 10 * n) * MS) for n in range(100)]
    frames = [(0, b"\x08\x01x", START + 5 * MS), (0, head, START + 6 * MS), *body]
    assert hog(tmp_path, frames).rows("stalls") == []


def test_a_sender_that_pauses_is_idle_and_no_finding(tmp_path: Path) -> None:
    frames = [
        (0, b"\x08\x01x", START + 5 * MS),
        (0, b"\x0a\x01m", START + 6 * MS),
        (0, b"\x0a\x01m", START + 906 * MS),
    ]
    (row,) = hog(tmp_path, frames).rows("stalls")
    assert (row["cause"], row["duration_us"], row["blocking_stream"]) == (
        "sender-idle",
        900_000,
        None,
    )


# Units


def test_units_are_formatted_in_stall_details() -> None:
    assert duration_text(350 * US) == "350 us"
    assert duration_text(80 * MS) == "80 ms"
    assert duration_text(2_500 * MS) == "2.5 s"
    assert duration_text(200_000 * MS) == "3 min 20 s"
    assert size_text(1) == "1 byte"
    assert size_text(102_400) == "100 KiB"
    assert size_text(3 << 30) == "3 GiB"
    assert rate_text(102_400, 80 * MS) == "10 Mbit/s"
    assert rate_text(0, 0) == "0 bit/s"


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_overlap_of_spans_counts_every_instant_once(
    pairs: list[tuple[int, int]], began: int, ended: int
) -> None:
    spans = [(min(pair), max(pair)) for pair in pairs]
    instants = {n for low, high in spans for n in range(low, high) if began <= n < ended}
    assert Intervals(spans).overlap(began, ended) == len(instants)
