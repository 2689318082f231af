"""Captures of several hosts with the same addresses: one flow for each sensor."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import MS, START, Found, Record, Stage
from tests.capture import capture_builder as build

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import (
    CaptureLimits,
    FileRange,
    FlowRefs,
    PcapngWriter,
    SensorNaming,
    TcpConnectionWriter,
    index_file,
    index_range,
    plan_ranges,
    read_sessions,
    write_index,
)
from polymux.capture.packets.flows import DEFAULT_SENSOR, local_sensor, sensor_of_flow
from polymux.capture.pcapng.comments import sensor_comment

HOSTS = 50
ENDS = (("10.0.0.2", 40000), ("10.0.0.1", 9000))


def conversation(host: int, messages: int = 6) -> Record:
    stage = Stage("mplex")
    stream = stage.open(0, b"host %d" % host)
    stage.exchange()
    for n in range(messages):
        stage.wait(MS)
        stage.send(0, stream, b"%d of host %d" % (n, host))
        stage.exchange()
        stage.send(1, stage.peer_stream(0, stream), b"answer to %d" % host)
        stage.exchange()
    stage.end(0, stream)
    stage.exchange()
    return stage.record


def recorded(path: Path, record: Record, host: int = 0, comment: str = "") -> str:
    """The record as a capture; the sequence numbers depend on the host, the times do not much."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shift = host * 977
    with PcapngWriter(str(path), sync="none", comment=comment) as writer:
        connection = TcpConnectionWriter(writer, *ENDS, START + shift)
        for side, data, at in record:
            connection.data(side, data, at + shift)
        connection.close(record[-1][2] + shift + MS)
    return str(path)


def analysed(paths: list[str], sensors: SensorNaming | None = None) -> Found:
    found = Found()
    options = AnalysisOptions("mplex", sensors=sensors or SensorNaming())
    with read_sessions(paths, sensors=options.sensors) as reader:
        found.sessions = [analyze_session(session, options, found.emit) for session in reader]
    return found


def table(found: Found, name: str) -> list[tuple[object, ...]]:
    return sorted(tuple(map(str, row.values())) for row in found.rows(name))


@pytest.fixture
def hosts(tmp_path: Path) -> list[str]:
    return [
        recorded(tmp_path / f"host-{n:02}" / "day" / "talk.pcapng", conversation(n), n)
        for n in range(HOSTS)
    ]


def test_fifty_sensors_together_equal_the_union_of_fifty_runs(hosts: list[str]) -> None:
    naming = SensorNaming(pattern="{sensor}/day/*.pcapng")
    together = analysed(hosts, naming)
    apart = [analysed([path], naming) for path in hosts]
    assert len(together.sessions) == HOSTS
    assert len({session.sensor for session in together.sessions}) == HOSTS
    assert len({session.session_id for session in together.sessions}) == HOSTS
    for name in ("sessions", "streams", "frames", "violations", "stalls", "timeline"):
        union = sorted(row for found in apart for row in table(found, name))
        assert table(together, name) == union, name
    assert all(session.balanced for session in together.sessions)


def captured(path: Path, record: Record, host: int) -> str:
    """The record as a capture of a host that chose its initial sequence numbers at random."""
    ends = (build.End(*ENDS[0]), build.End(*ENDS[1]))
    due = [host * 0x12345678 & 0xFFFFFFFF, host * 0x23456789 + 77 & 0xFFFFFFFF]
    at = record[0][2] - 1000 + host
    packets = [
        build.Packet(at, build.frame(*ends, due[0], 0, 0x02)),
        build.Packet(at + 1, build.frame(ends[1], ends[0], due[1], due[0] + 1, 0x12)),
    ]
    due = [due[0] + 1, due[1] + 1]
    for side, data, moment in record:
        made = build.frame(ends[side], ends[1 - side], due[side], due[1 - side], 0x10, data)
        packets.append(build.Packet(moment + host, made))
        due[side] = (due[side] + len(data)) & 0xFFFFFFFF
    path.write_bytes(build.pcap(packets))
    return str(path)


def test_different_connections_at_once_are_kept_apart_without_sensors(tmp_path: Path) -> None:
    paths = [captured(tmp_path / f"{n}.pcap", conversation(n), n) for n in range(1, 5)]
    together = analysed(paths)
    assert len(together.sessions) == 4
    assert sorted(session.frames for session in together.sessions) == sorted(
        analysed([path]).sessions[0].frames for path in paths
    )
    for session in together.sessions:
        assert session.sensor == DEFAULT_SENSOR
        assert "name their sensors" in str(session.note)
        assert session.missing_bytes_dialer == 0


def test_the_default_sensor_changes_no_session_id(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.pcapng", conversation(1))
    (plain,) = analysed([path]).sessions
    (named,) = analysed([path], SensorNaming("default")).sessions
    (other,) = analysed([path], SensorNaming("web-1")).sessions
    assert plain.session_id == named.session_id != other.session_id
    assert (plain.sensor, other.sensor) == ("default", "web-1")
    assert plain.connection_id == other.connection_id is not None


def test_one_connection_captured_at_both_ends_joins_by_its_connection(tmp_path: Path) -> None:
    record = conversation(3)
    paths = [recorded(tmp_path / name / "c.pcapng", record) for name in ("client", "server")]
    both = analysed(paths, SensorNaming(pattern="{sensor}/*.pcapng")).sessions
    assert {session.sensor for session in both} == {"client", "server"}
    assert len({session.session_id for session in both}) == 2
    assert len({session.connection_id for session in both}) == 1
    (merged,) = analysed(paths).sessions  # without sensors: one connection, captured twice
    assert merged.frames == both[0].frames
    assert merged.note is None


def test_a_connection_without_its_syn_has_no_connection_id(tmp_path: Path) -> None:
    data = Path(recorded(tmp_path / "a.pcapng", conversation(1))).read_bytes()
    blocks, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + 4)
        blocks.append(data[at : at + size])
        at += size
    late = tmp_path / "late.pcapng"
    late.write_bytes(b"".join(blocks[:2] + blocks[5:]))
    (session,) = analysed([str(late)]).sessions
    assert session.connection_id is None


def test_the_sensor_is_read_from_the_section(tmp_path: Path) -> None:
    noted = recorded(tmp_path / "a.pcapng", conversation(1), comment=sensor_comment("web-1"))
    (session,) = analysed([noted]).sessions
    assert session.sensor == "web-1"
    (given,) = analysed([noted], SensorNaming("other")).sessions
    assert given.sensor == "other"
    (by_path,) = analysed([noted], SensorNaming(pattern="**/{sensor}.pcapng")).sessions
    assert by_path.sensor == "a"
    body = (
        struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1) + struct.pack("<HH", 2, 9) + b"rack 7; b\0\0\0"
    )
    section = build.block(0x0A0D0D0A, body + bytes(4))
    plain = Path(recorded(tmp_path / "b.pcapng", conversation(1))).read_bytes()
    (size,) = struct.unpack_from("<I", plain, 4)
    (tmp_path / "c.pcapng").write_bytes(section + plain[size:])
    (hardware,) = analysed([str(tmp_path / "c.pcapng")]).sessions
    assert hardware.sensor == "rack 7, b"


def test_a_file_of_several_sections_has_the_sensor_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (
        Path(recorded(tmp_path / name, conversation(1), n, comment=comment)).read_bytes()
        for n, (name, comment) in enumerate(
            [("a.pcapng", sensor_comment("web-1")), ("b.pcapng", sensor_comment("web-2"))]
        )
    )
    path = tmp_path / "both.pcapng"
    path.write_bytes(first + second)
    assert {session.sensor for session in analysed([str(path)]).sessions} == {"web-1"}
    with read_sessions([path]) as reader:
        assert [file.sensor for file in reader.files] == ["web-1"]

    whole = index_file(path)
    flows = {row.flow for row in whole.rows}
    assert {sensor_of_flow(flow) for flow in flows} == {whole.summary.sensor} == {"web-1"}
    small = CaptureLimits(read_window_bytes=256)

    def planned() -> list[FileRange]:
        ranges = plan_ranges(path, target=1000, limits=small)
        assert sum(span.start >= len(first) for span in ranges) > 1
        return ranges

    parts = [index_range(path, span) for span in planned()]
    assert {part.summary.sensor for part in parts} == {"web-1"}
    assert {row.flow for part in parts for row in part.rows} == flows
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    write_index(path, limits=small)
    parts = [index_range(path, span) for span in planned()]
    assert {row.flow for part in parts for row in part.rows} == flows

    emitted: list[FlowRefs] = []
    monkeypatch.setattr("polymux.capture.packets.indexer.EMIT_PACKETS", 4)
    rest = index_range(path, FileRange(), limits=small, emit=emitted.extend)
    assert emitted
    assert {row.flow for row in emitted + rest.rows} == flows


def test_a_first_section_without_a_sensor_has_the_default_one(tmp_path: Path) -> None:
    plain = Path(recorded(tmp_path / "a.pcapng", conversation(1))).read_bytes()
    named = recorded(tmp_path / "b.pcapng", conversation(1), 1, comment=sensor_comment("web-2"))
    path = tmp_path / "both.pcapng"
    path.write_bytes(plain + Path(named).read_bytes())
    parts = [
        index_range(path, span)
        for span in plan_ranges(path, target=1000, limits=CaptureLimits(read_window_bytes=256))
    ]
    assert len(parts) > 2
    assert {part.summary.sensor for part in parts} == {DEFAULT_SENSOR}


def test_files_say_their_sensor_too(hosts: list[str]) -> None:
    with read_sessions(hosts[:3], sensors=SensorNaming(pattern="{sensor}/day/**")) as reader:
        assert [file.sensor for file in reader.files] == ["host-00", "host-01", "host-02"]


@pytest.mark.parametrize(
    ("name", "pattern", "message"),
    [
        ("a", "{sensor}/*", "not by both"),
        ("", "captures/*", "write {sensor} once"),
        ("a;b", "", "a semicolon"),
        (" a", "", "begins or ends"),
        ("x" * 300, "", "at most 200 bytes"),
    ],
)
def test_a_sensor_that_cannot_be_used_is_refused(name: str, pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SensorNaming(name, pattern)


def test_the_options_and_escapes_of_a_url_are_no_part_of_the_path_of_a_sensor() -> None:
    naming = SensorNaming(pattern="captures/{sensor}/*.pcap")
    url = "s3://bucket/captures/web%201/a.pcap?region=eu-west-1&endpoint_override=a%2Fb"
    assert naming.sensor_of(url, "") == "web 1"
    assert naming.sensor_of("/captures/web%201/a.pcap", "") == "web%201"


def test_this_host_has_a_usable_name() -> None:
    assert SensorNaming(local_sensor()).sensor_of("x", "") == local_sensor()


def test_a_name_without_end_is_cut_and_stays_one_of_its_own(tmp_path: Path) -> None:
    """A capture may name its sensor at length, and the name is in the key of every flow."""
    record = conversation(1)
    names = ["s" * 1000 + "1", "s" * 1000 + "2", "é" * 150, "é" * 100]
    sensors = []
    for number, name in enumerate(names):
        path = recorded(tmp_path / f"{number}.pcapng", record, 0, sensor_comment(name))
        with read_sessions([path]) as reading:
            sensors += [session.sensor for session in reading]
    assert all(len(sensor.encode()) <= 200 for sensor in sensors)
    assert [len(sensor) for sensor in sensors[:3]] == [200, 200, 108]
    assert sensors[3] == names[3]
    assert len(set(sensors)) == 4
