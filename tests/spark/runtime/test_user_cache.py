"""Files are created once in the per-user cache, despite concurrent processes and bad folders."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from polymux.spark.runtime.spark_home import importable_environ
from polymux.spark.runtime.user_cache import cache_folder, make_once, usable_file, usable_folder


def test_the_folder_is_the_one_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMUX_CACHE", "/somewhere/else")
    assert cache_folder() == Path("/somewhere/else")


@pytest.mark.skipif(sys.platform == "darwin", reason="the rule of Linux")
def test_a_relative_standard_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POLYMUX_CACHE")
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == Path("/home/anna/.cache/polymux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/anna")
    assert cache_folder() == Path("/var/anna/polymux")


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    assert usable_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert not usable_folder(tmp_path)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert not usable_folder(tmp_path)
    assert not make_once(tmp_path / "thing", lambda part: part.touch())


def test_a_file_is_used_only_if_no_other_user_can_have_written_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    file = folder / "file"
    file.touch(mode=0o600)
    assert usable_file(file)
    (folder / "link").symlink_to(file)
    assert not usable_file(folder / "link")
    assert not usable_file(folder / "missing")
    for writable in (file, folder):
        for mode in (0o720, 0o702):
            writable.chmod(mode)
            assert not usable_file(file), (writable, oct(mode))
        writable.chmod(0o700)
    assert usable_file(file)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert not usable_file(file)


def test_what_is_made_can_be_used_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert make_once(tmp_path / "cache" / "thing", lambda part: part.touch())
    finally:
        os.umask(before)
    assert usable_file(tmp_path / "cache" / "thing")


def test_a_folder_that_cannot_be_made_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert not usable_folder(tmp_path / "file" / "below")
    assert not make_once(tmp_path / "file" / "below" / "thing", lambda part: part.touch())


def test_a_thing_is_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def make(part: Path) -> None:
        made.append(part)
        part.write_text("whole")

    target = tmp_path / "thing"
    assert make_once(target, make)
    assert make_once(target, make)
    assert len(made) == 1
    assert target.read_text() == "whole"


def test_a_thing_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "thing"

    def make(part: Path) -> None:
        part.write_text("ha")
        assert not target.exists()
        part.write_text("half no more")

    make_once(target, make)
    assert target.read_text() == "half no more"


def test_a_maker_that_fails_leaves_nothing_and_the_next_may_try(tmp_path: Path) -> None:
    def fail(part: Path) -> None:
        part.write_text("half")
        raise OSError("disk full")

    target = tmp_path / "thing"
    with pytest.raises(OSError, match="disk full"):
        make_once(target, fail)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]
    assert make_once(target, lambda part: part.touch())


def test_what_a_killed_maker_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "thing.4242.part").write_text("half")
    assert make_once(tmp_path / "thing", lambda part: part.touch())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thing", "thing.lock"]


def test_of_two_makers_one_makes_and_the_other_does_not_wait(tmp_path: Path) -> None:
    """Two processes, as locks of one process are all its own."""
    target = tmp_path / "thing"
    began, may_end = threading.Event(), threading.Event()

    def make(part: Path) -> None:
        began.set()
        assert may_end.wait(30)
        part.write_text("first")

    first = threading.Thread(target=make_once, args=(target, make))
    first.start()
    assert began.wait(30)
    program = (
        "import sys; from pathlib import Path\n"
        "from polymux.spark.runtime.user_cache import make_once\n"
        "print(make_once(Path(sys.argv[1]), lambda part: part.write_text('second')))"
    )
    second = subprocess.run(
        [sys.executable, "-c", program, str(target)],
        env=importable_environ(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    may_end.set()
    first.join()
    assert second.stdout.strip() == "False", second.stderr
    assert target.read_text() == "first"
