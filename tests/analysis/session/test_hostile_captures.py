"""Hostile captures: consistent rows, bounded memory, no exception."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.analysis.recorded_conversation import MS, START, Found, Record, analyse, save

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session import analyzer as walking
from polymux.testing.simulator import Simulation

PROTOCOLS = (
    "mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
    "omnistreams:numbering=spec", "omnistreams:numbering=legacy", "streamux", "minmux",
    "yamux",
)  # fmt: skip


def analysed(record: Record, plan: AnalysisOptions) -> Found:
    with tempfile.TemporaryDirectory() as folder:
        return analyse(save(Path(folder) / "a.pcapng", record, START + 10_000 * MS), plan=plan)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_traffic_is_accounted_for_byte_by_byte(protocol: str, seed: int) -> None:
    world = Simulation(protocol, seed)
    world.run(200)
    rng = random.Random(seed)
    record: Record = []
    for side, data, at in world.record:
        raw = bytearray(data)
        if rng.random() < 0.2:
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        if rng.random() < 0.05:
            raw = raw[: rng.randrange(len(raw))]
        record.append((side, bytes(raw), START + at))
    check(analysed(record, AnalysisOptions(protocol).with_content()), record)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(PROTOCOLS),
    st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=200)), max_size=10),
)
def test_any_bytes_are_accounted_for(protocol: str, pieces: list[tuple[int, bytes]]) -> None:
    record = [(side, data, START + (n + 1) * MS) for n, (side, data) in enumerate(pieces)]
    check(analysed(record, AnalysisOptions(protocol).with_content()), record)


def check(found: Found, record: Record) -> None:
    session, frames = found.session, found.rows("frames")
    assert session.balanced
    assert session.frames == len(frames)
    assert session.streams == len(found.rows("streams"))
    assert session.violations == len(found.rows("violations"))
    for side, word in enumerate(("dialer", "acceptor")):
        assert getattr(session, f"bytes_{word}") == sum(len(d) for s, d, _ in record if s == side)
    keys = [(row["sender"], row["frame_index"]) for row in frames]
    assert len(set(keys)) == len(keys)
    labels = [row["stream"] for row in found.rows("streams")]
    assert len(set(labels)) == len(labels)
    buckets = [(row["stream"], row["sender"], row["bucket"]) for row in found.rows("timeline")]
    assert len(set(buckets)) == len(buckets)


def test_too_many_open_streams_end_the_decoding_with_a_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walking, "MAX_OPEN_STREAMS", 1000)
    monkeypatch.setattr(walking, "BATCH_BYTES", 1)
    openings = b"".join(_varint(number * 8) + b"\x00" for number in range(1, 6000, 2))
    record = [(0, openings[n : n + 500], START + n * 1000) for n in range(0, len(openings), 500)]
    found = analysed(record, AnalysisOptions("mplex"))
    assert 1000 <= found.session.streams < 1500
    assert "more than 1000 streams are open at once" in (found.session.note or "")
    assert found.session.ending == "undecodable"
    assert found.session.balanced


def _varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def test_stream_rows_are_emitted_while_the_session_continues(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(walking, "CLOSED_STREAMS_REMEMBERED", 10)
    monkeypatch.setattr(walking, "BATCH_BYTES", 2000)
    record: Record = []
    for n in range(200):
        number = (
            _varint((2 * n + 1) * 8),
            _varint((2 * n + 1) * 8 + 2),
            _varint((2 * n + 1) * 8 + 6),
        )
        frames = number[0] + b"\x01x" + number[1] + b"\x03abc" + number[2] + b"\x00"
        record.append((0, frames, START + n * MS))
    found = analysed(record, AnalysisOptions("mplex").with_content())
    check(found, record)
    assert [row["ending"] for row in found.rows("streams")] == ["reset"] * 200
    assert sum(int(str(row["bytes"])) for row in found.rows("timeline")) == 600
