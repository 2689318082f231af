"""`polymux export`: Perfetto traces and qlog files hold what the tables hold."""

from __future__ import annotations

import json
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran

# The fields of Perfetto's messages, as its own descriptor has them.
SCHEMA = json.loads((Path(__file__).parent / "perfetto_schema.json").read_text())
VARINTS = ("bool", "enum", "int32", "int64", "uint32", "uint64", "sint32", "sint64")
MAX_VALUES = {"bool": 1, "uint32": (1 << 32) - 1}
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
    """A protobuf message; fails on what its schema does not have, or has otherwise."""
    found: Decoded = {}
    chosen: dict[str, int] = {}
    pos = 0
    while pos < len(data):
        tag, pos = varint(data, pos)
        number = tag >> 3
        field = SCHEMA["messages"][message][str(number)]
        value: object
        value, pos = varint(data, pos)
        assert isinstance(value, int)
        if field["type"] in VARINTS:
            assert tag & 7 == 0, field
            assert value <= MAX_VALUES.get(field["type"], (1 << 64) - 1), field
            assert field["type"] != "enum" or value in SCHEMA["enums"][field["of"]], field
        else:
            assert tag & 7 == 2, field
            assert field["type"] in ("message", "string", "bytes"), field
            body = data[pos : pos + value]
            assert len(body) == value
            pos += value
            is_message = field["type"] == "message"
            value = decoded(body, field["of"]) if is_message else body.decode()
        assert field.get("repeated") or number not in found, field
        if "oneof" in field:
            assert chosen.setdefault(field["oneof"], number) == number, field
        found.setdefault(number, []).append(value)
    return found


@pytest.mark.parametrize(
    ("trace", "problem"),
    [
        ("0a03 d80f01", KeyError),  # a field that TracePacket does not have
        ("0a02 4200", AssertionError),  # its timestamp, as bytes
        ("0a04 5802 5803", AssertionError),  # two track events, and numbers instead of messages
        ("0a04 5a02 4863", AssertionError),  # a track event of type 99
    ],
)
def test_what_perfetto_does_not_know_is_noticed(trace: str, problem: type[Exception]) -> None:
    with pytest.raises(problem):
        decoded(bytes.fromhex(trace), "Trace")


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


# The main schema of qlog (draft-ietf-quic-qlog-main-schema), for JSON text sequences: each field
# with its type, or the fields of its object; `?` marks those that may be absent.
QLOG_SEQUENCE = {
    "file_schema": str, "serialization_format": str, "?title": str, "?description": str,
    "trace": {
        "?title": str, "?description": str,
        "?common_fields": {
            "?path": str, "?time_format": str, "?group_id": str,
            "?reference_time": {"clock_type": str, "epoch": str, "?wall_clock_time": str},
        },
        "?vantage_point": {"?name": str, "type": str, "?flow": str},
        "event_schemas": list,
    },
}  # fmt: skip
QLOG_EVENT = {
    "time": float, "name": str, "data": dict, "?path": str, "?time_format": str, "?group_id": str,
    "?system_info": dict,
}  # fmt: skip
VANTAGE_POINTS = {"client", "server", "network", "unknown"}


def check_qlog(value: object, schema: dict[str, Any], place: str = "") -> None:
    """Fail unless an object has the fields of a schema, all that are required and no others."""
    assert isinstance(value, dict), place
    known = {name.removeprefix("?"): expected for name, expected in schema.items()}
    assert set(value) <= set(known), place
    assert {name for name in schema if not name.startswith("?")} <= set(value), place
    for name, found in value.items():
        expected = known[name]
        if isinstance(expected, dict):
            check_qlog(found, expected, f"{place}.{name}")
        else:
            assert isinstance(found, expected), f"{place}.{name}"


def test_qlog_files_follow_the_main_schema(
    capture: Callable[..., str], run: Callable[..., Ran], tmp_path: Path
) -> None:
    out = tmp_path / "out.sqlog"
    assert run("export", capture(), "--format", "qlog", "-o", str(out)).code == 0
    data = out.read_bytes()
    assert data[:1] == b"\x1e"  # RFC 7464: every text between a record separator and a line end
    assert data[-1:] == b"\n"
    assert data.count(b"\x1e") == data.count(b"\n")
    head, *events = qlog_records(out)
    check_qlog(head, QLOG_SEQUENCE)
    trace: Any = head["trace"]
    vantage = trace["vantage_point"]
    assert {vantage["type"], vantage["flow"]} <= VANTAGE_POINTS  # a network trace has a flow
    assert trace["common_fields"]["time_format"] in (
        "relative_to_epoch", "relative_to_previous_event",
    )  # fmt: skip
    assert trace["common_fields"]["reference_time"]["clock_type"] in ("system", "monotonic")
    namespaces = {schema.partition("#")[0].split(":")[1] for schema in trace["event_schemas"]}
    for event in events:
        check_qlog(event, QLOG_EVENT)
        namespace, colon, kind = str(event["name"]).partition(":")
        assert (namespace in namespaces, colon, bool(kind)) == (True, ":", True)


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
