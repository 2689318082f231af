"""Indexes that tasks make for the driver: private, one of each capture, and never needed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.spark.random_captures import conversations, record

from polymux.capture import CaptureLimits, FlowFilter
from polymux.spark.streaming.index_store import IndexStore


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("store") / "talk.pcapng"
    record([path], conversations(7, 3), seed=3)
    return path.read_bytes()


@pytest.fixture
def capture(recorded: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "talk.pcapng"
    path.write_bytes(recorded)
    return path


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def add(folder: Path, capture: Path) -> IndexStore:
    store = IndexStore(str(folder))
    store.add(str(capture), CaptureLimits(), FlowFilter())
    return store


def version(capture: Path) -> tuple[int, int]:
    found = capture.stat()
    return found.st_size, found.st_mtime_ns


def modify(capture: Path) -> None:
    """Give the capture another modification time."""
    later = capture.stat().st_mtime_ns + 1_000_000_000
    os.utime(capture, ns=(later, later))


@pytest.mark.parametrize("existed", [False, True])
@pytest.mark.usefixtures("open_umask")
def test_only_the_user_may_read_an_index_whatever_the_umask(
    existed: bool, capture: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "state" / "indexes"
    if existed:
        folder.mkdir(parents=True)
    add(folder, capture)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()] == [0o600]


def test_an_index_takes_the_place_of_those_of_older_versions(capture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    for _ in range(3):
        modify(capture)
        store = add(folder, capture)
    assert len(list(folder.iterdir())) == 1
    assert store.has(str(capture), *version(capture))


def test_the_index_of_a_version_that_is_past_is_removed(capture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    store = add(folder, capture)
    modify(capture)
    assert store.take(str(capture), *version(capture)) is None
    assert list(folder.iterdir()) == []


def test_an_index_that_cannot_be_written_is_left_to_the_driver(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = add(tmp_path / "file" / "indexes", capture)
    assert not store.has(str(capture), *version(capture))
    full = tmp_path / "indexes"
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        store = add(full, capture)
    assert list(full.iterdir()) == []
    assert store.take(str(capture), *version(capture)) is None


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_damaged_index_is_left_to_the_driver(capture: Path, tmp_path: Path) -> None:
    folder = tmp_path / "indexes"
    store = add(folder, capture)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    size = 8 + int.from_bytes(whole[:8], "little")
    damaged = [whole[:length] for length in (0, 7, 8, 100, size, size + 1, len(whole) - 1)]
    for header in (b"", b"null", b"[]", b"{}", b'{"rows":[1]}', b"\xff"):
        damaged.append(len(header).to_bytes(8, "little") + header)
    for data in (*damaged, whole + b"\0"):
        file.write_bytes(data)
        assert store.take(str(capture), *version(capture)) is None
        assert not file.exists()
    file.write_bytes(whole)
    assert store.take(str(capture), *version(capture)) is not None
