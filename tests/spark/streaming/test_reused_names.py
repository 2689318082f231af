"""A forgotten name that stands for another file is found soon, for few questions at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polymux.spark.streaming.folder_listing import FULL_LOOK_SECONDS
from polymux.spark.streaming.offset import NameRanges
from polymux.spark.streaming.reused_names import NAMES_PER_LOOK, ReusedNames

NAMES = [f"{number:03}.pcap" for number in range(3 * NAMES_PER_LOOK)]


@pytest.fixture
def forgotten(tmp_path: Path) -> NameRanges:
    for name in NAMES:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1000, 1000))
    return NameRanges().with_files(dict.fromkeys(NAMES, 1_000_000))


def write_again(path: Path) -> None:
    os.utime(path, (1001, 1001))


@pytest.mark.parametrize("name", [NAMES[0], NAMES[100], NAMES[-1]])
def test_all_names_have_their_turn(tmp_path: Path, forgotten: NameRanges, name: str) -> None:
    reused = ReusedNames(str(tmp_path), clock=lambda: 0.0)
    assert reused.look(forgotten) == set()
    write_again(tmp_path / name)
    looks = [reused.look(forgotten) for _ in range(6)]
    assert sorted(map(len, looks)) == [0, 0, 0, 0, 0, 1], "it is said once"
    assert {name}.union(*looks) == {name} == reused.found
    assert reused.look(forgotten.without_names([name])) == set() == reused.found


def test_the_first_look_and_one_a_minute_ask_for_all(tmp_path: Path, forgotten: NameRanges) -> None:
    now = [0.0]
    reused = ReusedNames(str(tmp_path), clock=lambda: now[0])
    write_again(tmp_path / NAMES[-1])
    assert reused.look(forgotten) == {NAMES[-1]}
    write_again(tmp_path / NAMES[-2])
    (tmp_path / NAMES[-3]).unlink()
    now[0] += FULL_LOOK_SECONDS
    assert reused.look(forgotten) == {NAMES[-2]}
    assert reused.found == {NAMES[-1], NAMES[-2]}
