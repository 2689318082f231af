"""Request latencies of each requesting side."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import MS, Found, Stage, analyse

from polymux.analysis.tracking.request_latency import RequesterLatency


def asked(tmp_path: Path, times: list[int]) -> Found:
    """Requests of the dialer, one after another, each answered after this many milliseconds; a
    negative time: never."""
    stage = Stage("streamux")
    for lasts in times:
        stream = stage.open(0)
        stage.send(0, stream, b"question")
        stage.end(0, stream)
        stage.exchange()
        stage.wait(abs(lasts) * MS)
        if lasts >= 0:
            there = stage.peer_stream(0, stream)
            stage.send(1, there, b"answer")
            stage.end(1, there)
            stage.exchange()
    return analyse(stage.save(tmp_path / "a.pcapng"))


def test_percentiles_of_a_session_stand_in_its_row(tmp_path: Path) -> None:
    (row,) = asked(tmp_path, [10] * 60 + [100] * 35 + [1000] * 5 + [-1]).rows("requests")
    assert (row["opener"], row["requests"], row["answered"]) == ("dialer", 101, 100)
    for name, ms in (("p50", 10), ("p90", 100), ("p99", 1000)):
        found = row[f"latency_{name}_us"]
        assert isinstance(found, int)
        assert ms * 1000 <= found <= ms * 1010
    assert row["latency_max_us"] == 1_000_000


def test_a_side_whose_requests_were_never_answered_has_no_latency(tmp_path: Path) -> None:
    (row,) = asked(tmp_path, [-5]).rows("requests")
    assert (row["requests"], row["answered"], row["latency_p50_us"]) == (1, 0, None)
    assert row["latency_max_us"] is None


def test_a_protocol_without_requests_has_no_rows(tmp_path: Path) -> None:
    stage = Stage("mplex")
    stage.send(0, stage.open(0, b"x"), b"hello")
    stage.exchange()
    assert analyse(stage.save(tmp_path / "a.pcapng")).rows("requests") == []


@given(st.lists(st.integers(0, 2**40), min_size=1), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_a_percentile_is_never_too_low_and_at_most_one_percent_too_high(
    times: list[int], share: float
) -> None:
    row = RequesterLatency(0)
    for us in times:
        row.add(us)
    exact = sorted(times)[-int(-share * len(times) // 1) - 1]
    found = row.percentile(share)
    assert found is not None
    assert exact <= found <= exact * 1.01
