"""The capture part of the benchmark runs, and its captures contain what they claim to."""

from pathlib import Path

import pytest
from bench import captures, harness, session_costs, tls_captures
from bench.capture_writer import FORMATS, one_way_packets, packets_carrying
from bench.harness import Effort, NotMeasured

from polymux.capture import read_sessions


def test_the_capture_part_measures_all_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "EFFORT", Effort(seconds=0))
    monkeypatch.setattr(captures, "PAYLOAD", 1 << 20)
    monkeypatch.setattr(captures, "LISTED", 400_000)
    monkeypatch.setattr(captures, "SLOW", 1)
    monkeypatch.setattr(captures, "COLD_ROUNDS", 1)
    monkeypatch.setattr(session_costs, "SESSIONS", 2)
    monkeypatch.setattr(session_costs, "ROUNDS", 1)
    monkeypatch.setattr(tls_captures, "OPENED_BYTES", 1 << 20)
    monkeypatch.setattr(tls_captures, "LISTED_BYTES", 400_000)
    monkeypatch.setattr(tls_captures, "KEY_LOG_LINES", 1000)
    monkeypatch.setattr(tls_captures, "SLOW", 1)
    lines = [line for line in captures.measure() if not isinstance(line, NotMeasured)]
    assert [line.name.split(",")[0] for line in lines] == [
        "scan", "scan", "scan and reassembly", "polymux ls", "polymux ls", "key log", "TLS opened",
        "TLS opened", "polymux ls", "session of 7 packets", "session of 115 frames",
    ]  # fmt: skip
    assert all(line.value > 0 for line in lines)
    targets = [[verdict.target for verdict in line.comparisons()] for line in lines]
    assert targets[2:8] == [[0.15], [1.0, None], [0.4], [1.0], [0.6], [None]]
    assert targets[8][-3:] == [0.6, None, None]
    assert all(each[:2] == [0.8, 60.0] for each in targets[:2])


@pytest.mark.parametrize("form", FORMATS)
def test_the_measured_flows_are_whole(form: str, tmp_path: Path) -> None:
    path = tmp_path / form
    path.write_bytes(FORMATS[form](list(one_way_packets(300 * 1448, flows=5))))
    with read_sessions([str(path)]) as reading:
        found = [session.scan_packets() for session in reading]
    assert len(found) == 5
    assert sum(session.reassembled_bytes[0] for session in found) == 300 * 1448
    assert all(
        session.ends == ("fin", None) and session.missing_bytes == (0, 0) for session in found
    )


def test_a_talk_is_carried_by_every_flow_to_both_ends(tmp_path: Path) -> None:
    path = tmp_path / "carried.pcap"
    talk = bytes(range(256)) * 20
    path.write_bytes(FORMATS["pcap"](list(packets_carrying(talk, flows=3))))
    with read_sessions([str(path)]) as reading:
        found = list(reading)
        assert [b"".join(b.data for b in session.batches()) for session in found] == [talk] * 3
    assert all(session.ends == ("fin", "fin") for session in found)
