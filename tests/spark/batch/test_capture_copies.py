"""Copies of captures that are slow to read twice leave the disk to what a run cannot do without."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from polymux.spark.batch import index_stage
from polymux.spark.batch.capture_copies import COPY_SUFFIX, CaptureCopy
from polymux.spark.batch.index_stage import room_to_leave

Usage = namedtuple("Usage", ["total", "used", "free"])  # as `shutil.disk_usage` returns it
DISK = 1_000_000


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on a disk of `DISK` bytes."""

    def usage(path: object) -> Usage:
        used = sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
        return Usage(DISK, used, DISK - used)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(index_stage, "MIN_FREE_BYTES", 1000)
    return tmp_path


def test_copies_take_half_of_what_was_free_and_leave_the_rest(disk: Path) -> None:
    (disk / "references").write_bytes(bytes(200_000))
    leave = room_to_leave(str(disk))
    copies = [CaptureCopy(disk / "index", leave) for _ in range(100)]
    for copy in copies:
        for offset in range(0, 20_000, 5_000):
            copy.write(bytes(5_000), offset)
        copy.close()
    kept = [copy.name for copy in copies if copy.name]
    assert sorted(kept) == sorted(path.name for path in disk.rglob(f"*{COPY_SUFFIX}"))
    assert 15 <= len(kept) <= 20  # of 20,000 bytes each, in 400,000
    assert shutil.disk_usage(disk).free >= 400_000 - 5_000


def test_a_disk_that_is_nearly_full_gets_no_copies(disk: Path) -> None:
    (disk / "references").write_bytes(bytes(DISK - 900))
    copy = CaptureCopy(disk / "index", room_to_leave(str(disk)))
    copy.write(b"x", 0)
    assert copy.name == ""
