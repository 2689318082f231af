"""Rotated files of a recording follow each other as they were written, whatever the clock says."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest
from tests.capture.capture_builder import MS, START
from tests.capture.conftest import streams

from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import (
    RotatingWriter,
    TcpConnectionWriter,
    hint_comment,
    index_range,
    plan_ranges,
    read_sessions,
)

HOUR = 3600 * 1000 * MS
DIALER, ACCEPTOR = ("192.0.2.1", 40000), ("192.0.2.2", 9000)
MESSAGES = 60


def message(number: int) -> bytes:
    """An mplex message of 250 bytes on stream 1 of the dialer."""
    return bytes((0x0A, 0xFA, 0x01)) + bytes([number]) * 250


def record(folder: Path, steps: dict[int, int], name: str = "tap.pcapng") -> list[str]:
    """A session over several files; `steps` says by how much the clock steps at which message."""
    writer = RotatingWriter(folder / name, max_bytes=2000, sync="none")
    comment = hint_comment("mplex", "middle")
    offset = 0
    session = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START, comment=comment)
    session.data(0, b"\x08\x01a", START)
    for number in range(MESSAGES):
        offset += steps.get(number, 0)
        now = START + offset + number * MS
        session.data(0, message(number), now)
        session.data(1, b"\x09\x01x", now)
    session.data(0, b"\x0c\x00", START + offset + MESSAGES * MS)
    session.close(START + offset + (MESSAGES + 1) * MS)
    return writer.close()


EXPECTED = b"\x08\x01a" + b"".join(map(message, range(MESSAGES))) + b"\x0c\x00"


@pytest.mark.parametrize(
    "steps",
    [
        {30: -HOUR},
        {30: HOUR},
        {10: -HOUR, 20: -HOUR, 40: 3 * HOUR},
        dict.fromkeys(range(1, MESSAGES), -HOUR),
        {30: -20 * MS},
    ],
    ids=["back", "forth", "several", "always", "a-little"],
)
def test_a_clock_that_steps_across_rotations_leaves_one_session_without_violations(
    tmp_path: Path, steps: dict[int, int]
) -> None:
    names = record(tmp_path, steps)
    assert len(names) > 5
    [session] = read_sessions([str(tmp_path)])
    assert session.saw_syn
    assert session.ordered
    assert streams(session)[0] == EXPECTED
    summary = analyze_session(session, AnalysisOptions(), lambda table, batch: None)
    assert (summary.violations, summary.ending) == (0, "clean")
    assert [os.path.basename(name) for name in session.captures] == [
        os.path.basename(name) for name in names
    ]


def test_names_do_not_matter_to_the_order(tmp_path: Path) -> None:
    names = record(tmp_path, {30: -HOUR})
    for number, name in enumerate(reversed(names)):
        os.rename(name, tmp_path / f"{number:03}.pcapng")
    [session] = read_sessions([str(tmp_path)])
    assert streams(session)[0] == EXPECTED


def test_copies_of_rotated_files_change_nothing(tmp_path: Path) -> None:
    for number, name in enumerate(record(tmp_path, {30: -HOUR})):
        if number % 2:
            shutil.copy(name, tmp_path / f"copy-{number}.pcapng")
    [session] = read_sessions([str(tmp_path)])
    assert session.ordered
    assert streams(session)[0] == EXPECTED


def test_a_missing_file_is_a_gap_and_the_rest_keeps_its_order(tmp_path: Path) -> None:
    names = record(tmp_path, {30: -HOUR})
    os.unlink(names[4])
    [session] = read_sessions([str(tmp_path)])
    content = streams(session)[0]
    assert session.missing_bytes[0] > 0
    places = [content.find(message(number)) for number in range(MESSAGES)]
    found = [place for place in places if place >= 0]
    assert len(found) > MESSAGES // 2
    assert all(one < other for one, other in itertools.pairwise(found))


def test_two_recordings_in_one_directory_are_ordered_each_by_itself(tmp_path: Path) -> None:
    """The same ports were used again: the sessions follow each other by the clock."""
    record(tmp_path, {30: -HOUR // 2}, "one.pcapng")
    second = RotatingWriter(tmp_path / "two.pcapng", max_bytes=2000, sync="none")
    later = START + HOUR
    session = TcpConnectionWriter(second, DIALER, ACCEPTOR, later)
    for number in range(MESSAGES):
        session.data(0, message(number), later + number * MS)
    session.close(later + HOUR)
    second.close()
    first_read, second_read = read_sessions([str(tmp_path)])
    assert streams(first_read)[0] == EXPECTED
    assert streams(second_read)[0] == b"".join(map(message, range(MESSAGES)))


def test_a_file_with_sections_of_two_recordings_has_the_place_of_its_first(tmp_path: Path) -> None:
    names = record(tmp_path, dict.fromkeys(range(1, MESSAGES), -HOUR))
    other = RotatingWriter(tmp_path / "other.pcapng", max_bytes=10**6, sync="none")
    TcpConnectionWriter(other, ("192.0.2.3", 40000), ACCEPTOR, START).close(START + MS)
    [appended] = other.close()
    with open(names[0], "ab") as first:
        first.write(Path(appended).read_bytes())
    os.unlink(appended)
    session = next(s for s in read_sessions([str(tmp_path)]) if s.packets > 4)
    assert streams(session)[0] == EXPECTED
    ranges = plan_ranges(names[0], target=500)
    assert len(ranges) > 1
    rows = [row for span in ranges for row in index_range(names[0], span).rows]
    assert {row.file_number for row in rows} == {1}
    assert len({row.recording for row in rows}) == 1
