"""Files that are replaced in one step: complete under their name, or not there at all."""

import os
import stat
from pathlib import Path

import pytest

from polymux.capture.io.atomic_write import write_atomically
from polymux.capture.io.paths import PRIVATE_FILE


@pytest.mark.parametrize("sync", [False, True])
def test_a_file_is_replaced_and_no_temporary_file_is_left(tmp_path: Path, sync: bool) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old and longer")
    write_atomically(path, b"new", sync=sync)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_file_that_is_replaced_gets_the_permissions_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"public")
    path.chmod(0o666)
    write_atomically(path, b"private", mode=PRIVATE_FILE)
    assert path.read_bytes() == b"private"
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE_FILE


def test_a_file_that_cannot_be_written_keeps_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["page.html"]
