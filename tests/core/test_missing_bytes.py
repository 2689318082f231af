"""Frames that were cut or not captured: what was not seen is neither reported nor measured."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.analysis.recorded_conversation import MS, Record, Stage, analyse
from tests.capture import capture_builder as build

from polymux.analysis.options import AnalysisOptions
from polymux.core.observer import Observer
from polymux.core.rules import Severity
from polymux.core.streams import StreamState
from polymux.protocols.registry import create
from polymux.testing.simulator import Simulation

PROTOCOLS = [
    "mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
    "omnistreams:carrier=length", "omnistreams:carrier=websocket", "streamux", "minmux",
    "yamux",
]  # fmt: skip
DIALER, ACCEPTOR = build.End("192.0.2.1", 40000), build.End("198.51.100.2", 9000)
HEADERS = 14 + 20 + 20
ACK, SYN = 0x10, 0x02
WINDOW = 50_000


def reported_violations(observer: Observer) -> list[str]:
    return [
        str(violation)
        for violation in observer.take_violations()
        if violation.rule.severity is not Severity.NOTE
    ]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_that_were_not_captured_cause_no_violations(protocol: str) -> None:
    holes = 0
    for seed in range(25):
        world = Simulation(protocol, seed)
        world.run(200)
        chance = Random(seed)
        rate = chance.choice([0.01, 0.1])
        observer = Observer(create(protocol))
        for side, data, at in world.record:
            if chance.random() < rate:
                observer.gap(side, len(data), at)
                holes += 1
            else:
                observer.feed(side, data, at)
        observer.finish(world.now, True, True)
        assert reported_violations(observer) == [], f"seed {seed}"
        assert observer.accounts_for_all_bytes()
    assert holes > 25


# Captures


def bulk(megabytes: float = 0.5) -> Record:
    """A channel on which much more is sent than its window."""
    stage = Stage("nerdbank:version=3")
    stream = stage.open(0, b"bulk")
    stage.exchange()
    stage.accept(1, WINDOW)
    stage.exchange()
    left = int(megabytes * 1e6)
    while left > 0:
        stage.send(0, stream, bytes(min(left, 40_000)))
        left -= 40_000
        stage.wait(2 * MS)
        stage.exchange()
    stage.end(0, stream)
    stage.end(1, stage.peer_stream(0, stream))
    stage.exchange()
    return stage.record


def captured(path: Path, record: Record, snap: int, missing: range) -> str:
    """A capture in packets; those in `missing` are left out, the others cut to `snap` bytes."""
    ends = (DIALER, ACCEPTOR)
    due = [101, 901]
    packets = [
        build.Packet(record[0][2] - 2, build.frame(DIALER, ACCEPTOR, 100, 0, SYN)),
        build.Packet(record[0][2] - 1, build.frame(ACCEPTOR, DIALER, 900, 101, SYN | ACK)),
    ]
    number = 0
    for side, data, at in record:
        for start in range(0, len(data), 1400):
            part = data[start : start + 1400]
            made = build.frame(
                ends[side], ends[1 - side], due[side], due[1 - side], ACK, part, window=65535
            )
            due[side] += len(part)
            number += 1
            if number not in missing:
                packets.append(build.Packet(at, made[: snap + HEADERS], len(made)))
    path.write_bytes(build.pcap(packets))
    return str(path)


@pytest.mark.parametrize(
    ("snap", "missing"),
    [
        (96, range(0)),
        (1399, range(0)),
        (65535, range(30, 60)),
        (65535, range(2, 3)),
        (65535, range(30, 31)),
        (500, range(80, 90)),
    ],
)
def test_credit_is_not_tracked_after_a_gap_in_a_capture(
    snap: int, missing: range, tmp_path: Path
) -> None:
    path = captured(tmp_path / "holes.pcap", bulk(), snap, missing)
    found = analyse(path, plan=AnalysisOptions(protocol="nerdbank:version=3"))
    said = [row for row in found.rows("violations") if row["severity"] != "note"]
    assert said == []
    (stream,) = found.rows("streams")
    peak = stream["peak_in_flight_bytes_dialer"]
    assert isinstance(peak, int)
    assert 0 <= peak <= WINDOW


# Frames that are cut


def nerdbank(steps: list[tuple[int, str, int]]) -> Observer:
    observer = Observer(create("nerdbank:version=3"))
    for side, data, at in steps:
        observer.feed(side, bytes.fromhex(data), at)
    return observer


def stream_of(observer: Observer) -> StreamState:
    (stream,) = observer.protocol.streams.all()
    return stream


# An offer with a window of 100 for the acceptor, accepted with one of 8 for the dialer.
OPENED = [(0, "940001 01 c404 92a16164", 0), (1, "940101ff c402 9108", 0)]
EIGHT = "940201 01 c408"


def test_an_acknowledgement_is_validated_only_while_the_acknowledged_frames_are_seen() -> None:
    eight = (1, "940501ff c402 9108", 3)
    assert "nerdbank.acknowledged-too-much" in str(reported_violations(nerdbank([*OPENED, eight])))
    observer = nerdbank(OPENED)
    observer.gap(0, 14, 2)
    observer.feed(1, bytes.fromhex(eight[1]), 3)
    assert reported_violations(observer) == []


def test_an_end_inside_a_frame_names_that_frame() -> None:
    observer = nerdbank([*OPENED, (0, EIGHT + "6162", 5)])
    observer.finish(9, True, True)
    (cut,) = [v for v in observer.take_violations() if v.rule.name == "nerdbank.truncated"]
    assert (cut.frame_index, cut.stream) == (1, "d1")
    whole = nerdbank([*OPENED, (0, EIGHT + "6162636465666768" + "9402", 5)])
    whole.finish(9, True, True)
    (cut,) = [v for v in whole.take_violations() if v.rule.name == "nerdbank.truncated"]
    assert (cut.frame_index, cut.stream) == (2, "")


def test_a_cut_frame_is_not_counted_as_in_flight() -> None:
    observer = nerdbank([*OPENED, (0, EIGHT + "6162", 5)])
    observer.finish(9, True, True)
    assert stream_of(observer).dialer.peak_in_flight == 0
    observer = nerdbank([*OPENED, (0, EIGHT + "6162", 5), (0, "636465666768", 6)])
    assert stream_of(observer).dialer.peak_in_flight == 8


def test_a_side_is_blocked_from_the_last_byte_of_its_content() -> None:
    observer = nerdbank([*OPENED, (0, EIGHT + "6162", 5), (0, "636465666768", 50)])
    observer.finish(150, True, True)
    assert stream_of(observer).dialer.blocked_ns == 100


def test_other_frames_of_the_stream_do_not_start_that_time_earlier() -> None:
    completed = (1, "930301ff", 7)
    observer = nerdbank([*OPENED, (0, EIGHT + "6162", 5), completed, (0, "636465666768", 50)])
    observer.finish(150, True, True)
    assert stream_of(observer).dialer.blocked_ns == 100
