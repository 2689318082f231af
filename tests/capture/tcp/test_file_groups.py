"""Files of one flow are grouped by the positions of their connections at the same time."""

from __future__ import annotations

import struct

import pytest

from polymux.capture.packets.indexer import FlowRefs
from polymux.capture.packets.packet_refs import ACK, REF_BYTES, SYN
from polymux.capture.tcp.file_groups import FilePositions, group_rows

SECOND = 1_000_000_000
MB = 1_000_000
ANSWERS = 3 << 30  # position of the acceptor, which sends nothing


def packet(number: int, at: int, seq: int, ack: int) -> bytes:
    words = (number * 2000 << 20, at * SECOND, (seq % 2**32) << 32 | ack, int(ACK) << 16)
    return struct.pack("<QqQQ", *words)


def row(
    file: str, direction: int, seconds: range, rate: int = MB, base: int = 0, stored: bool = False
) -> FlowRefs:
    """One direction of a file with a packet each second of a connection that sends `rate`."""
    refs = b""
    for number, at in enumerate(seconds):
        places = (base + at * rate) % 2**32, ANSWERS
        refs += packet(number, at, places[direction], places[1 - direction])
    ends = seconds[0] * SECOND, seconds[-1] * SECOND
    if not stored:
        return FlowRefs(bytes(36), direction, file, 0, *ends, refs)
    return FlowRefs(
        bytes(36),
        direction,
        file,
        0,
        *ends,
        b"",
        stored=lambda start, size: refs[start : start + size],
        records=len(refs) // REF_BYTES,
    )


def both(
    file: str, seconds: range, rate: int = MB, base: int = 0, stored: bool = False
) -> list[FlowRefs]:
    return [row(file, direction, seconds, rate, base, stored) for direction in (0, 1)]


def grouped(rows: list[FlowRefs]) -> list[set[str]]:
    return [{row.file for row in group} for group in group_rows(rows)]


@pytest.mark.parametrize("stored", [False, True])
def test_a_second_capture_that_starts_later_and_stops_earlier_is_the_same_connection(
    stored: bool,
) -> None:
    rows = both("eth0", range(201), stored=stored) + both("bond0", range(70, 131), stored=stored)
    assert grouped(rows) == [{"eth0", "bond0"}]


def test_captures_of_one_direction_each_are_the_same_connection() -> None:
    rows = [row("sent", 0, range(201)), row("answered", 1, range(70, 131))]
    assert grouped(rows) == [{"sent", "answered"}]


def test_rows_of_several_ranges_are_searched_like_one() -> None:
    parts = [range(60), range(60, 65), range(65, 140), range(140, 201)]
    rows = [one._replace(start=part.start) for part in parts for one in both("eth0", part, 10 * MB)]
    assert grouped(rows + both("bond0", range(100, 111), 10 * MB)) == [{"eth0", "bond0"}]


def test_a_packet_in_both_captures_is_of_one_connection_whatever_was_before() -> None:
    """The first ends with the SYN of the next connection, which the second has whole."""
    opened, far = 20 * SECOND, 1 << 30
    words = 11 << 20, opened, far << 32, int(SYN) << 16
    syn = FlowRefs(bytes(36), 0, "first", 1, opened, opened, struct.pack("<QqQQ", *words))
    answers = [packet(12 + n, 21 + n, ANSWERS - far, far + 1 + n) for n in range(2)]
    ends = 21 * SECOND, 22 * SECOND
    answered = FlowRefs(bytes(36), 1, "second", 1, *ends, b"".join(answers))
    rows = [*both("first", range(10)), syn, syn._replace(file="second"), answered]
    assert grouped(rows) == [{"first", "second"}]


def test_another_connection_in_the_middle_of_a_long_one_stays_apart() -> None:
    rows = both("eth0", range(201)) + both("other", range(70, 131), base=1 << 30)
    assert grouped(rows) == [{"eth0"}, {"other"}]


def test_a_connection_that_was_at_these_positions_at_another_time_stays_apart() -> None:
    """It is at second 70 where the first is at second 130."""
    rows = both("eth0", range(201), 10 * MB)
    assert grouped(rows + both("other", range(70, 131), 10 * MB, base=600 * MB)) == [
        {"eth0"},
        {"other"},
    ]


def test_the_files_of_a_rotation_are_compared_with_those_of_the_same_time_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = 0
    honest = FilePositions.distance

    def distance(one: FilePositions, other: FilePositions) -> int:
        nonlocal compared
        compared += 1
        return honest(one, other)

    monkeypatch.setattr(FilePositions, "distance", distance)
    looks = 0
    overlaps = FilePositions.overlaps

    def look(one: FilePositions, other: FilePositions) -> bool:
        nonlocal looks
        looks += 1
        return overlaps(one, other)

    monkeypatch.setattr(FilePositions, "overlaps", look)
    rows = [
        row
        for host, base in (("a", 0), ("b", 1 << 30))
        for turn in range(300)
        for row in both(f"{host}{turn:03}", range(4 * turn, 4 * turn + 5), base=base)
    ]
    groups = grouped(rows)
    assert sorted(map(len, groups)) == [300, 300]
    assert all(len({file[0] for file in group}) == 1 for group in groups)
    assert compared < 5 * 600
    assert looks < 5 * 600
