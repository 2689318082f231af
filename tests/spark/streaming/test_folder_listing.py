"""What is new in a growing folder is found, whatever else stays there, and for little."""

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.spark.streaming import folder_listing
from polymux.spark.streaming.folder_listing import FolderListing

OLD = 1_700_000_000


class Inbox:
    """A folder whose modification times lie in the past and never repeat."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._times = itertools.count(OLD)
        path.mkdir()
        self._date(path)

    def put(self, *names: str) -> None:
        for name in names:
            folder = (self.path / name).parent
            is_new = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            (self.path / name).touch()
            for each in [folder, folder.parent] if is_new else [folder]:
                self._date(each)

    def remove(self, name: str) -> None:
        (self.path / name).unlink()
        self._date((self.path / name).parent)

    def remove_folder(self, name: str) -> None:
        shutil.rmtree(self.path / name)
        self._date((self.path / name).parent)

    def _date(self, folder: Path) -> None:
        at = next(self._times)
        os.utime(folder, (at, at))


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path / "inbox")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the folders that are listed."""
    found: list[str] = []
    list_folder = os.listdir

    def noted(path: str) -> list[str]:
        found.append(os.path.basename(path))
        return list_folder(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", noted)
        yield found


def test_a_folder_is_listed_again_only_if_something_is_new_in_it(
    inbox: Inbox, listed: list[str]
) -> None:
    listing = FolderListing(str(inbox.path))
    inbox.put("01/00.pcap", "01/01.pcap", "02/00.pcap")
    assert listing.look(set()) == ["01/00.pcap", "01/01.pcap", "02/00.pcap"]
    past = {"01/00.pcap", "01/01.pcap"}
    listing.look(past)
    listed.clear()
    assert listing.look(past) == ["02/00.pcap"]
    assert listed == []
    inbox.put("02/01.pcap")
    assert listing.look(past) == ["02/00.pcap", "02/01.pcap"]
    assert listed == ["02"]
    inbox.put("01/late.pcap")
    assert listing.look(past) == ["01/late.pcap", "02/00.pcap", "02/01.pcap"]


def test_forgotten_files_are_not_asked_for_anything(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{number}.pcap" for number in range(9)]
    inbox.put(*names)
    asked: list[str] = []
    look_at = os.lstat

    def noted(path: str) -> os.stat_result:
        asked.append(os.path.basename(path))
        return look_at(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", noted)
        listing = FolderListing(str(inbox.path))
        assert listing.look(set(names[:8])) == names[8:]
    assert set(asked) == {names[8]}


def test_a_look_asks_for_a_bounded_number_of_past_folders_and_finds_all_in_turn(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_listing, "SETTLED_FOLDERS_PER_LOOK", 2)
    days = [f"{day}/0.pcap" for day in range(8)]
    inbox.put(*days)
    listing = FolderListing(str(inbox.path))
    for _ in range(2):
        listing.look(set(days))
    late = [f"{day}/late.pcap" for day in range(8)]
    inbox.put(*late)
    counts = [len(listing.look(set(days))) for _ in range(5)]
    assert counts == [2, 4, 6, 8, 8]


def test_new_files_are_found_where_folders_have_no_modification_times(
    inbox: Inbox,
) -> None:
    now = [0.0]
    listing = FolderListing(str(inbox.path), clock=lambda: now[0])
    inbox.put("a.pcap")
    same = inbox.path.stat().st_mtime
    assert listing.look(set()) == ["a.pcap"]
    inbox.put("b.pcap")
    os.utime(inbox.path, (same, same))
    assert listing.look(set()) == ["a.pcap"]
    now[0] += folder_listing.FULL_LOOK_SECONDS
    assert listing.look(set()) == ["a.pcap", "b.pcap"]
    inbox.put("c.pcap")
    os.utime(inbox.path, (same, same))
    assert listing.look(set()) == ["a.pcap", "b.pcap", "c.pcap"]


def test_a_file_that_comes_in_the_same_tick_as_a_look_is_found(tmp_path: Path) -> None:
    listing = FolderListing(str(tmp_path))
    (tmp_path / "a.pcap").touch()
    before = tmp_path.stat()
    assert listing.look(set()) == ["a.pcap"]
    (tmp_path / "b.pcap").touch()
    os.utime(tmp_path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert listing.look(set()) == ["a.pcap", "b.pcap"]


def test_forgotten_names_that_are_not_there_any_more_are_named(inbox: Inbox) -> None:
    inbox.put("a.pcap", "b.pcap", "1/c.pcap", "2/d.pcap")
    forgotten = {"a.pcap", "b.pcap", "1/c.pcap", "2/d.pcap", "3/gone-before.pcap"}
    listing = FolderListing(str(inbox.path))
    assert listing.look(forgotten) == []
    assert listing.vanished == {"3/gone-before.pcap"}
    inbox.remove("a.pcap")
    inbox.remove("1/c.pcap")
    inbox.remove_folder("2")
    listing.look(forgotten)
    assert listing.vanished == {"a.pcap", "1/c.pcap", "2/d.pcap", "3/gone-before.pcap"}
    inbox.put("a.pcap")
    assert listing.look(forgotten - {"a.pcap"}) == ["a.pcap"]


def test_of_several_names_of_a_file_one_counts(inbox: Inbox, tmp_path: Path) -> None:
    inbox.put("a.pcap", "b.pcap.part")
    (tmp_path / "outside.pcap").touch()
    for name, target in (
        ("also-a", inbox.path / "a.pcap"),
        ("out-1", tmp_path / "outside.pcap"),
        ("out-2", tmp_path / "outside.pcap"),
        ("unfinished", inbox.path / "b.pcap.part"),
    ):
        (inbox.path / name).symlink_to(target)
    assert FolderListing(str(inbox.path)).look(set()) == ["a.pcap", "out-1", "unfinished"]


NAMES = [f"{folder}{number}.pcap" for folder in ("", "1/", "2/", "2/x/") for number in range(3)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_look_finds_what_a_walk_finds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    inbox = Inbox(tmp_path_factory.mktemp("any") / "inbox")
    listing = FolderListing(str(inbox.path))
    there: set[str] = set()
    forgotten: set[str] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        act = data.draw(st.sampled_from(["put", "remove", "remove folder", "forget", "look"]))
        if act == "put":
            name = data.draw(st.sampled_from(NAMES))
            inbox.put(name)
            there.add(name)
        elif act == "remove" and there:
            name = data.draw(st.sampled_from(sorted(there)))
            inbox.remove(name)
            there.discard(name)
        elif act == "remove folder":
            folder = data.draw(st.sampled_from(["1", "2", "2/x"]))
            if (inbox.path / folder).exists():
                inbox.remove_folder(folder)
                there = {name for name in there if not name.startswith(f"{folder}/")}
        elif act == "forget":
            forgotten |= set(data.draw(st.lists(st.sampled_from(sorted(there) or NAMES)))) & there
        else:
            assert listing.look(forgotten) == sorted(there - forgotten)
            assert listing.vanished == forgotten - there
            assert set(listing.all_names()) == there
            forgotten -= listing.vanished
