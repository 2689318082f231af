"""A capture divided into ranges: their indexes together equal that of the file."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.capture.capture_builder import Packet
from tests.capture.conftest import streams

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FilePool,
    FileRange,
    index_file,
    index_range,
    merge_summaries,
    plan_ranges,
    sessions_of,
    write_index,
)
from polymux.capture.io.sources import open_source
from polymux.capture.packets.indexer import range_at, scan_windows, scanner_for
from polymux.core.errors import CaptureError

SMALL = CaptureLimits(read_window_bytes=256)


def mixed() -> bytes:
    """Sections of both orders, several interfaces, comments, blocks to skip, two flows."""
    chance = random.Random(3)
    packets = build.talk(*[(n % 2, chance.randbytes(90)) for n in range(12)])
    packets += build.talk((0, b"other"), ends=(build.ALICE6, build.BOB6))
    packets.sort(key=lambda packet: packet.at)
    data = b""
    for n, packet in enumerate(packets):
        order = "<>"[n // 6 % 2]
        if n % 6 == 0:
            said = f"polymux: protocol=p{n}"
            data += build.section(said if n else "", order)
            data += build.interface(order=order, resolution=6)
            data += build.interface(order=order, comment=said if n == 6 else "")
        if n % 4 == 0:
            data += build.block(0xBAD, b"skipped", order)
        data += build.enhanced(Packet(packet.at, packet.data, interface=1), order)
    return data


def cuts_of(path: str, limits: CaptureLimits) -> list[FileRange]:
    """The state of the scan after every window: all positions where a range may start."""
    source = open_source(path, limits)
    scanner = scanner_for(FileRange(), limits)
    scanner.count_only = True
    states = [FileRange()]
    for offset in scan_windows(source, scanner, FileRange(), limits):
        if offset > states[-1].start:
            states.append(range_at(scanner, offset, -1))
    source.close()
    return states


def cut(states: list[FileRange], size: int) -> list[FileRange]:
    """Ranges between the given starts, the last one open."""
    starts = [*states, FileRange(start=-1)]
    return [replace(a, end=b.start) for a, b in itertools.pairwise(starts) if a.start < size]


def references(indexes: list[FileIndex]) -> dict[tuple[bytes, int], list[tuple[bytes, str]]]:
    """Every reference by flow and direction, its comment's number replaced by the text."""
    found: dict[tuple[bytes, int], list[tuple[bytes, str]]] = {}
    for index in indexes:
        for row in index.rows:
            for pos in range(0, len(row.refs), 32):
                record = row.refs[pos : pos + 32]
                plain = record[:27] + b"\0" + record[28:]
                known = found.setdefault((row.flow, row.direction), [])
                known.append((plain, row.hints[record[27]]))
    return found


def check(path: str, ranges: list[FileRange]) -> None:
    whole = index_file(path)
    parts = [index_range(path, span) for span in ranges]
    assert references(parts) == references([whole])
    assert merge_summaries(part.summary for part in parts) == whole.summary


def test_ranges_cut_at_every_block_give_the_union(write: Callable[..., str]) -> None:
    data = mixed()
    path = write(data)
    states = cuts_of(path, CaptureLimits(read_window_bytes=1))
    assert len(states) > 40
    check(path, cut(states, len(data)))
    for state in states[1:]:
        check(path, cut([states[0], state], len(data)))


@pytest.mark.parametrize("parts", [1, 2, 7, 64])
def test_any_number_of_ranges_gives_the_same_sessions(
    write: Callable[..., str], parts: int
) -> None:
    data = mixed()
    path = write(data)
    ranges = plan_ranges(path, target=max(len(data) // parts, 1), limits=SMALL)
    assert len(ranges) >= min(parts, 5)
    rows = [row for span in ranges for row in index_range(path, span).rows]
    random.Random(1).shuffle(rows)
    flows = sorted({row.flow for row in rows})
    expected = index_file(path).rows
    for flow in flows:
        got = sessions_of([r for r in rows if r.flow == flow], FilePool().reader)
        want = sessions_of([r for r in expected if r.flow == flow], FilePool().reader)
        assert [streams(s) for s in got] == [streams(s) for s in want]
        assert [(s.started_at, s.protocol_hint) for s in got] == [
            (s.started_at, s.protocol_hint) for s in want
        ]


def test_classic_captures_are_cut_too(write: Callable[..., str]) -> None:
    packets = build.talk(*[(n % 2, bytes(90)) for n in range(20)])
    for big, nano in itertools.product([False, True], repeat=2):
        path = write(build.pcap(packets, big=big, nano=nano))
        ranges = plan_ranges(path, target=300, limits=SMALL)
        assert len(ranges) > 4
        check(path, ranges)


@pytest.mark.parametrize("size", [-1, -9, -300])
def test_a_truncated_file_in_ranges_has_the_same_summary(
    write: Callable[..., str], size: int
) -> None:
    path = write(mixed()[:size])
    check(path, plan_ranges(path, target=300, limits=SMALL))


def test_a_damaged_file_in_ranges_has_the_same_summary(write: Callable[..., str]) -> None:
    data = mixed()
    state = cuts_of(write(data), CaptureLimits(read_window_bytes=1))[12]
    middle = state.start
    wrong = build.enhanced(Packet(0, b"x", interface=99), ">" if state.big_endian else "<")
    broken = data[:middle] + wrong + data[middle:] + bytes(64)
    path = write(broken)
    check(path, plan_ranges(path, target=300, limits=SMALL))
    summary = index_file(path).summary
    assert summary.status == "damaged"
    assert summary.error_offset == middle
    assert f"reading stopped at byte {len(data) + len(wrong)}" in (summary.error or "")


def test_payload_that_holds_captures_does_not_confuse_the_plan(write: Callable[..., str]) -> None:
    inner = mixed()
    lines = [(0, inner[n : n + 1000]) for n in range(0, len(inner), 1000)]
    path = write(build.pcapng(build.talk(*lines)))
    ranges = plan_ranges(path, target=500, limits=SMALL)
    assert len(ranges) > 3
    check(path, ranges)


def test_an_index_beside_the_file_saves_the_scan(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    data = mixed()
    path = write(data)
    expected = plan_ranges(path, target=900, limits=SMALL)
    name = write_index(path, limits=SMALL)
    assert name == f"{path}.idx"
    walked: list[int] = []
    real = scan_windows

    def watched(source: object, scanner: object, span: FileRange, limits: object) -> object:
        walked.append(span.start)
        return real(source, scanner, span, limits)  # type: ignore[arg-type]  # passed on

    monkeypatch.setattr("polymux.capture.pcapng.split_index.scan_windows", watched)
    assert plan_ranges(path, target=900, limits=SMALL) == expected
    assert walked == [cuts[-1] for cuts in [[s.start for s in marks(name)]]]
    check(path, expected)


def marks(name: str) -> list[FileRange]:
    written = json.loads(Path(name).read_text())
    return [FileRange(start=mark["start"], end=mark["end"]) for mark in written["marks"]]


def test_the_index_of_a_file_that_grew_is_extended_by_scanning_on(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    data = mixed()
    half = cuts_of(write(data), CaptureLimits(read_window_bytes=1))[20].start
    path = write(data[:half])
    write_index(path, limits=SMALL)
    write(data)
    ranges = plan_ranges(path, target=600, limits=SMALL)
    assert len(ranges) > 4
    check(path, ranges)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: "{",
        lambda text: "[]",
        lambda text: "null",
        lambda text: "{" * 100_000,
        lambda text: text.replace('"polymux-index": ', '"polymux-index": 9'),
        lambda text: text.replace('"bytes": ', '"bytes": 9'),
        lambda text: text.replace('"proof": "', '"proof": "0'),
        lambda text: text.replace('"start": 0', '"start": 4'),
        lambda text: text.replace('"big_endian": false', '"big_endian": "no"'),
        lambda text: text.replace('"interfaces": []', '"interfaces": 7'),
        lambda text: text.replace('"sensor_hint": ""', '"sensor_hint": 7'),
    ],
)
def test_an_index_that_does_not_match_is_not_used(
    write: Callable[..., str], spoil: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    path = write(mixed())
    expected = plan_ranges(path, target=900, limits=SMALL)
    name = Path(write_index(path, limits=SMALL))
    name.write_text(spoil(name.read_text()))
    assert plan_ranges(path, target=900, limits=SMALL) == expected


@pytest.mark.parametrize(
    ("place", "number"),
    [
        (0, -1), (0, 1 << 28), (0, "1"), (1, -1), (1, 1 << 32), (2, -40_000), (2, 256), (2, 6.5),
        (2, True), (3, 1 << 63), (3, -(1 << 63) - 1), (3, float("inf")), (4, "x" * 1025), (4, 7),
    ],
)  # fmt: skip
def test_an_index_with_an_invalid_interface_is_not_used(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch, place: int, number: object
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    path = write(mixed())
    expected = plan_ranges(path, target=900, limits=SMALL)
    name = Path(write_index(path, limits=SMALL))
    written = json.loads(name.read_text())
    for mark in written["marks"]:
        for interface in mark["interfaces"]:
            interface[place] = number
    name.write_text(json.dumps(written))
    assert plan_ranges(path, target=900, limits=SMALL) == expected


def test_an_index_with_more_interfaces_than_the_limit_is_not_used(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    path = write(mixed())
    expected = plan_ranges(path, target=900, limits=SMALL)
    name = Path(write_index(path, limits=SMALL))
    written = json.loads(name.read_text())
    for mark in written["marks"]:
        mark["interfaces"] *= SMALL.max_interfaces
    name.write_text(json.dumps(written))
    assert plan_ranges(path, target=900, limits=SMALL) == expected


def test_an_index_whose_marks_go_back_or_beyond_the_file_is_not_used(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polymux.capture.pcapng.split_index.MARK_INTERVAL_BYTES", 500)
    path = write(mixed())
    expected = plan_ranges(path, target=900, limits=SMALL)
    name = Path(write_index(path, limits=SMALL))
    for cut in (-500, 1 << 70):
        written = json.loads(name.read_text())
        written["marks"][1]["end"] = written["marks"][2]["start"] = cut
        name.write_text(json.dumps(written))
        assert plan_ranges(path, target=900, limits=SMALL) == expected


def test_a_range_that_ends_inside_a_block_is_reported(write: Callable[..., str]) -> None:
    path = write(mixed())
    first = plan_ranges(path, target=400, limits=SMALL)[0]
    wrong = FileRange(
        first.start, first.end + 4, *(first.file_format, first.big_endian, first.nanosecond_times)
    )
    summary = index_range(path, wrong).summary
    assert summary.status == "damaged"
    assert "does not match" in (summary.error or "")
    assert summary.error_offset == first.end


def test_an_index_is_only_written_for_captures(write: Callable[..., str]) -> None:
    for data in (b"no capture at all, just text", b""):
        with pytest.raises(CaptureError, match="not a capture"):
            write_index(write(data))
