"""Listing captures: what cannot be looked at is an error, and never left out."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polymux.capture import find_captures
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.listing import expand
from polymux.core.errors import CaptureUnavailable

Failing = Callable[[Path, int], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Captures of two hosts, each in its directory, and links."""
    for name in ("host-a/1.pcap", "host-a/deep/2.pcap", "host-b/1.pcap", "host-b/.hid/3.pcap"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "host-a" / "nowhere.pcap").symlink_to("removed")
    (tmp_path / "host-a" / "itself.pcap").symlink_to("itself.pcap")
    (tmp_path / "host-a" / "up").symlink_to("..")
    (tmp_path / "host-c").symlink_to("host-b")
    return tmp_path


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Make the listing of a directory, and looks at a file, fail with an error number."""

    def fail(path: Path, number: int) -> None:
        for name in ("scandir", "stat"):
            honest = getattr(os, name)

            def act(
                given: str = ".", *args: object, honest: Callable[..., object] = honest,
                **more: object,
            ) -> object:  # fmt: skip
                if os.path.abspath(given) == str(path):
                    raise OSError(number, os.strerror(number), given)
                return honest(given, *args, **more)

            monkeypatch.setattr(os, name, act)

    return fail


@pytest.mark.parametrize("find", [find_captures, find_inputs])
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("given", ["", "host-*", "**", "*/*.pcap", "**/1.pcap"])
def test_a_directory_that_cannot_be_listed_is_an_error_that_names_it(
    folder: Path, failing: Failing, find: Callable[[str], object], number: int, given: str
) -> None:
    failing(folder / "host-b", number)
    with pytest.raises(CaptureUnavailable, match=os.strerror(number)) as caught:
        find(str(folder / given))
    assert str(caught.value).startswith(f"{folder / 'host-b'}")
    assert ("leave it out" in str(caught.value)) == (number == errno.EACCES)


@pytest.mark.parametrize("find", [find_captures, find_inputs])
def test_a_file_that_cannot_be_looked_at_is_an_error_that_names_it(
    folder: Path, failing: Failing, find: Callable[[str], object]
) -> None:
    failing(folder / "host-b" / "1.pcap", errno.EIO)
    with pytest.raises(CaptureUnavailable, match=r"host-b/1\.pcap: cannot be looked at"):
        find(str(folder))
    assert find(str(folder / "host-a"))


def test_a_directory_beside_those_that_are_named_is_not_looked_at(
    folder: Path, failing: Failing
) -> None:
    failing(folder / "host-b", errno.EACCES)
    assert len(find_captures(str(folder / "host-a"))) == 2
    assert len(find_captures(str(folder / "host-[a]" / "*.pcap"))) == 3  # links to nowhere, too


def test_what_is_removed_meanwhile_and_links_to_nowhere_are_left_out(
    folder: Path, failing: Failing
) -> None:
    failing(folder / "host-b" / ".hid", errno.ENOENT)
    found = [os.path.relpath(path, folder) for path in find_captures(folder)]
    assert found == ["host-a/1.pcap", "host-a/deep/2.pcap", "host-b/1.pcap"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*", "*/", "*.pcap", "*/*.pcap", "host-?/deep/*", "host-a//*.pcap", "**/1.pcap",
        "host-a/**", "*/**/*.pcap", "*/.hid/*", "host-b/.*",
        "host-[!a]/1.pcap", "*/1.pcap", "*/nowhere.pcap",
        "none/*", "*/none", "host-a/1.pcap/*", "./*", "../*/host-a",
    ],
)  # fmt: skip
def test_globs_match_what_the_standard_library_matches(
    folder: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    (folder / "host-a" / "up").unlink()  # the standard library follows it forty times
    monkeypatch.chdir(folder)
    for given in (pattern, str(folder / pattern)):
        expected = {os.path.normpath(path) for path in glob.glob(given, recursive=True)}
        assert {os.path.normpath(path) for path in expand(given)} == expected
        assert expand(given) == sorted(set(expand(given)))


def test_a_glob_across_directories_follows_links_but_no_circle(folder: Path) -> None:
    found = {os.path.relpath(path, folder) for path in expand(str(folder / "**" / "1.pcap"))}
    assert found == {"host-a/1.pcap", "host-b/1.pcap", "host-c/1.pcap"}
