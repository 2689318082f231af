"""yamux is recognised from its first bytes, and its dialect told with evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, analyse, save
from tests.attacks import raw_frames as words

from polymux.analysis.detection.detector import detect
from polymux.analysis.detection.sample import SessionSample

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA
OPEN = words.yamux(UPDATE, words.SYN, 1)
ACCEPT = words.yamux(UPDATE, words.ACK, 1)
PING = words.yamux(words.YAMUX_PING, words.SYN, 0)
PONG = words.yamux(words.YAMUX_PING, words.ACK, 0)
LINES = (b"/multistream/1.0.0\n", b"/yamux/1.0.0\n")
SELECT = b"".join(bytes([len(line)]) + line for line in LINES)


def test_one_opening_is_enough() -> None:
    detection = detect(SessionSample(((0, OPEN, 0),)))
    assert detection.protocol == "yamux"
    assert "stream 1 is opened first" in detection.evidence


@pytest.mark.parametrize(
    ("pieces", "evidence"),
    [
        (((1, words.yamux(DATA, words.SYN, 2, 0, b"hello"), 0),), "stream 2 is opened first"),
        (((0, PING, 0), (1, PONG, 0)), "the session begins with a ping"),
        (((0, PING + OPEN, 0), (1, PONG, 0)), "the dialer pings before anything else"),
    ],
)
def test_the_first_bytes_are_evidence(
    pieces: tuple[tuple[int, bytes, int], ...], evidence: str
) -> None:
    detection = detect(SessionSample(pieces))
    assert detection.protocol == "yamux"
    assert evidence in detection.evidence


def test_a_negotiated_session_is_of_libp2p() -> None:
    detection = detect(SessionSample(((0, SELECT + OPEN, 0), (1, SELECT + ACCEPT, 0))))
    assert detection.protocol == "yamux:dialect=libp2p"
    assert detection.skip_bytes == (len(SELECT), len(SELECT))
    assert "multistream-select before it" in detection.evidence


def test_the_session_has_its_dialect_its_evidence_and_a_round_trip(tmp_path: Path) -> None:
    large = words.yamux(DATA, 0, 1, 0, bytes(100_000))
    steps = [(0, OPEN, 0), (1, ACCEPT, 1), (0, large, 2), (0, PING, 20), (1, PONG, 30)]
    record = [(side, data, START + at * MS) for side, data, at in steps]
    found = analyse(save(tmp_path / "a.pcapng", record, START + 50 * MS))
    assert (found.session.protocol, found.session.dialect) == ("yamux", "hashicorp")
    assert "the dialer sends 100000 bytes in a frame as HashiCorp's do" in str(
        found.session.evidence
    )
    assert found.session.rtt_us is not None
    (stream,) = found.rows("streams")
    assert (stream["window_bytes_dialer"], stream["bytes_dialer"]) == (262144, 100_000)
