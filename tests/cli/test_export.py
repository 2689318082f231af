"""`polymux export`: Perfetto traces and qlog files hold what the tables hold."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

# Field numbers of Perfetto's protos by message: the scalar ones, and those that are messages.
SCALARS = {
    "TracePacket": {8, 10}, "TrackDescriptor": {1, 2, 5}, "TrackEvent": {9, 11, 22, 23},
    "DebugAnnotation": {4, 6, 10},
}  # fmt: skip
MESSAGES = {
    "Trace": {1: "TracePacket"},
    "TracePacket": {11: "TrackEvent", 60: "TrackDescriptor"},
    "TrackEvent": {4: "DebugAnnotation"},
}
Decoded = dict[int, list[object]]


def varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[pos] & 127) << shift
        shift += 7
        pos += 1
        if data[pos - 1] < 128:
            return value, pos


def decoded(data: bytes, message: str) -> Decoded:
    """A protobuf message; fails on a field that the schema does not have."""
    found: Decoded = {}
    pos = 0
    while pos < len(data):
        tag, pos = varint(data, pos)
        field, wire = tag >> 3, tag & 7
        value: object
        value, pos = varint(data, pos)
        if wire == 2:
            assert isinstance(value, int)
            body = data[pos : pos + value]
            assert len(body) == value
            pos += value
            inner = MESSAGES.get(message, {}).get(field)
            value = decoded(body, inner) if inner else body.decode()
        else:
            assert wire == 0
        if field not in MESSAGES.get(message, {}):
            assert field in SCALARS[message]
        found.setdefault(field, []).append(value)
    return found


def qlog_records(path: Path) -> Iterator[dict[str, object]]:
    for text in path.read_text("ascii").split("\x1e")[1:]:
        assert text.endswith("\n")
        yield json.loads(text)


def test_a_perfetto_trace_has_every_frame_violation_and_stream_on_its_track(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source, out = capture(), tmp_path / "out.perfetto-trace"
    assert run("export", source, "--format", "perfetto", "-o", str(out)).code == 0
    packets = decoded(out.read_bytes(), "Trace")[1]
    tracks, kinds, depth = set(), Counter[str](), Counter[int]()
    for packet in packets:
        assert isinstance(packet, dict)
        for track in packet.get(60, []):
            tracks.add(track[1][0])
            assert track.get(5, [0])[0] in {0, *tracks}
        for event in packet.get(11, []):
            assert event[11][0] in tracks
            depth[event[11][0]] += {1: 1, 2: -1, 3: 0}[event[9][0]]
            kinds.update(event.get(22, []))
    assert kinds == {"frame": 6, "violation": 1, "stream": 2, "session": 1}
    assert set(depth.values()) == {0}
    assert stat.S_IMODE(out.stat().st_mode) == 0o600


def test_a_qlog_file_is_a_json_text_sequence_with_the_rows_of_the_tables(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    source, out = capture(), tmp_path / "out.sqlog"
    assert run("export", source, "--format", "qlog", "-o", str(out)).code == 0
    head, *events = qlog_records(out)
    assert head["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    assert head["serialization_format"] == "application/qlog+json-seq"
    assert Counter(str(event["name"]) for event in events) == {
        "polymux:frame": 6, "polymux:violation": 1, "polymux:stream": 2, "polymux:session": 1,
    }  # fmt: skip
    rows = [json.loads(line) for line in run("frames", source, "--json").out.splitlines()]
    frames = [event["data"] for event in events if event["name"] == "polymux:frame"]
    for row, frame in zip(rows, frames, strict=True):
        assert isinstance(frame, dict)
        assert {name: row[name] for name in frame} == frame
    for event in events:
        assert isinstance(event["time"], float)
        assert event["group_id"] == rows[0]["session_id"]


@pytest.mark.parametrize("form", ["perfetto", "qlog"])
def test_an_existing_file_is_not_replaced_and_a_failure_leaves_none(
    form: str, capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"mine")
    assert run("export", capture(), "--format", form, "-o", str(out)).code == 2
    assert out.read_bytes() == b"mine"
    other = tmp_path / "other"
    source = str(tmp_path / "talk.pcapng")
    asked = ("--format", form, "-o", str(other), "--filter", "no flow")
    assert run("export", source, *asked).code == 2
    assert not other.exists()
