"""Recordings of a directory while they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from polymux.capture.io.growing import CaptureFolder
from polymux.core.errors import CaptureError


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(20):
        (tmp_path / f"{chr(97 + number)}.pcapng").write_bytes(b"x" * 100)
    return tmp_path


def test_files_that_were_read_are_closed_and_opened_again_when_they_grow(folder: Path) -> None:
    before = open_descriptors()
    recordings = CaptureFolder(str(folder)).new_recordings()
    assert [recording.read() for recording in recordings] == [b"x" * 100] * 20
    assert [recording.read() for recording in recordings] == [None] * 20
    assert open_descriptors() == before
    for more in (b"yyy", b"zz"):
        with open(folder / "c.pcapng", "ab") as file:
            file.write(more)
        assert [recording.read() for recording in recordings] == [None] * 2 + [more] + [None] * 17
        assert [recording.read() for recording in recordings] == [None] * 20
        assert open_descriptors() == before


def test_a_closed_file_that_becomes_shorter_is_an_error_and_one_that_is_gone_is_not(
    folder: Path,
) -> None:
    first, second, third, *_ = CaptureFolder(str(folder)).new_recordings()
    for recording in (first, second, third):
        assert recording.read() == b"x" * 100
        assert recording.read() is None
    os.truncate(folder / "a.pcapng", 10)
    with pytest.raises(CaptureError, match="became shorter"):
        first.read()
    first.close()
    os.unlink(folder / "b.pcapng")
    assert second.read() is None
    (folder / "other").write_bytes(b"another file" * 20)
    os.replace(folder / "other", folder / "c.pcapng")
    assert third.read() is None


def test_all_recordings_of_a_directory_share_one_listing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listings = []
    listdir = os.listdir

    def counted(path: str) -> list[str]:
        listings.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    captures = CaptureFolder(str(folder))
    recordings = captures.new_recordings()
    for _ in range(3):
        for recording in recordings:
            recording.read()
    assert len(listings) == 1
    captures.list_again()
    assert captures.new_recordings() == []
    assert len(listings) == 2


def test_a_rotation_goes_on_with_its_next_file_after_the_last_one_was_closed(
    tmp_path: Path,
) -> None:
    (tmp_path / "talk-1.pcapng").write_bytes(b"first")
    captures = CaptureFolder(str(tmp_path))
    (recording,) = captures.new_recordings()
    assert recording.read() == b"first"
    assert recording.read() is None
    part = tmp_path / "talk-2.pcapng.part"
    part.write_bytes(b"second")
    captures.list_again()
    assert recording.read() == b"second"
    assert recording.is_recording
    assert recording.read() is None
    os.rename(part, tmp_path / "talk-2.pcapng")
    assert recording.read() is None
    assert not recording.is_recording
    with open(tmp_path / "talk-2.pcapng", "ab") as file:
        file.write(b" and more")
    assert recording.read() == b" and more"
    recording.close()
