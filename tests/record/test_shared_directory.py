"""Several recorders and recoveries in one directory: each leaves the files of the others alone.

The moment at which another process acts is fixed by a hook in a system call.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from polymux.capture import PcapngWriter, RotatingWriter, index_file, recover, repair
from polymux.core.errors import CaptureError
from polymux.record import recover_partial_captures


class Before:
    """Calls `action` once, just before a system call of this process; inner calls are not hooked.

    `call` is one of the module `os`, or `flock`.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, call: str, action: Callable[[], object], skip: int = 0
    ) -> None:
        module = fcntl if call == "flock" else os
        real = getattr(module, call)
        self.called = False
        self._skip = skip

        def hooked(*arguments: object, **named: object) -> object:
            if not self.called:
                if self._skip:
                    self._skip -= 1
                else:
                    self.called = True
                    action()
            return real(*arguments, **named)

        patch.setattr(module, call, hooked)


def packets(path: object) -> int:
    summary = index_file(str(path)).summary
    assert summary.status == "whole", summary
    return summary.packets


def die(writer: PcapngWriter) -> None:
    """The process of this writer is killed: its descriptor and its lock are gone."""
    fd, writer.fd = writer.fd, -1
    os.close(fd)


def test_a_recovery_between_creation_and_lock_does_not_take_the_file_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "tap.pcapng"
    before = Before(monkeypatch, "flock", lambda: recover_partial_captures(base))
    writer = RotatingWriter(base, max_bytes=1 << 20, sync="none")
    assert before.called
    writer.packet(1, [b"acknowledged"])
    assert writer.sync()
    [part] = tmp_path.iterdir()
    assert b"acknowledged" in part.read_bytes(), "what was synced is in a file without a name"
    [name] = writer.close()
    assert packets(name) == 1


def test_a_recovery_that_has_opened_a_file_before_it_was_published_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PcapngWriter(tmp_path / "tap.pcapng")
    writer.packet(1, [b"x"])
    # The recovery is at its lock when the recorder publishes the file and begins another.
    second: list[PcapngWriter] = []

    def go_on() -> None:
        writer.close()
        os.rename(tmp_path / "tap.pcapng", tmp_path / "old.pcapng")
        second.append(PcapngWriter(tmp_path / "tap.pcapng"))

    before = Before(monkeypatch, "flock", go_on)
    with pytest.raises(CaptureError):
        recover(tmp_path / "tap.pcapng.part")
    assert before.called
    second[0].packet(2, [b"y"])
    assert packets(second[0].close()) == packets(tmp_path / "old.pcapng") == 1


def test_a_recorder_that_dies_while_its_file_is_recovered_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PcapngWriter(tmp_path / "tap.pcapng")
    writer.packet(1, [b"first"])

    def write_and_die() -> None:
        writer.packet(2, [b"second"])
        assert writer.sync()
        die(writer)

    before = Before(monkeypatch, "flock", write_and_die)
    name = recover(tmp_path / "tap.pcapng.part")
    assert before.called
    assert packets(name) == 2, "a packet was synced and is gone"


def test_a_file_that_is_being_published_is_not_recovered_by_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "tap.pcapng"
    writer = RotatingWriter(base, max_bytes=1 << 20)
    writer.packet(1, [b"x"])
    found = []

    def recover_now() -> None:
        found.append(recover_partial_captures(base))

    hooks = [Before(monkeypatch, call, recover_now) for call in ("link", "rename", "replace")]
    [name] = writer.close()
    assert any(hook.called for hook in hooks)
    assert not found[0].published
    assert not found[0].problems
    assert packets(name) == 1


def test_publishing_does_not_replace_a_file_that_has_appeared(tmp_path: Path) -> None:
    name = tmp_path / "tap.pcapng"
    writer = PcapngWriter(name)
    writer.packet(1, [b"x"])
    name.write_bytes(b"of another program")
    with pytest.raises(CaptureError, match=r"tap\.pcapng: .*not replaced.*tap\.pcapng\.part"):
        writer.close()
    assert name.read_bytes() == b"of another program"
    name.rename(tmp_path / "theirs")
    assert packets(recover(tmp_path / "tap.pcapng.part")) == 1


def test_a_dangling_link_under_the_final_name_is_not_replaced_either(tmp_path: Path) -> None:
    name = tmp_path / "tap.pcapng"
    name.symlink_to(tmp_path / "nowhere")
    with pytest.raises(CaptureError, match="exists already"):
        PcapngWriter(name)
    part = tmp_path / "tap.pcapng.part"
    assert not part.exists()


@pytest.mark.parametrize("how", ["recover", "repair"])
def test_recovery_does_not_replace_a_file_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    name = tmp_path / "tap.pcapng"
    writer = PcapngWriter(name)
    writer.packet(1, [b"x"])
    die(writer)
    Before(monkeypatch, "fsync", lambda: name.write_bytes(b"of another program"))
    if how == "repair":
        os.rename(f"{name}.part", tmp_path / "source")
    with pytest.raises(CaptureError, match="not replaced"):
        recover(f"{name}.part") if how == "recover" else repair(tmp_path / "source", name)
    assert name.read_bytes() == b"of another program"
    name.unlink()
    if how == "recover":
        assert packets(recover(f"{name}.part")) == 1
    else:
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["source"]


def test_a_recorder_killed_between_its_two_names_is_recovered_to_one(tmp_path: Path) -> None:
    base = tmp_path / "tap.pcapng"
    name = tmp_path / "tap-00001.pcapng"
    writer = PcapngWriter(name)
    writer.packet(1, [b"x"])
    die(writer)
    os.link(f"{name}.part", name)
    result = recover_partial_captures(base)
    assert (result.published, result.problems) == ([str(name)], [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["tap-00001.pcapng"]
    assert packets(name) == 1


def test_where_there_are_no_hard_links_publishing_replaces_nothing_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1, "Operation not permitted")  # as exFAT has it

    monkeypatch.setattr(os, "link", refuse)
    first = PcapngWriter(tmp_path / "tap.pcapng")
    first.packet(1, [b"x"])
    assert packets(first.close()) == 1
    second = PcapngWriter(tmp_path / "other.pcapng")
    (tmp_path / "other.pcapng").write_bytes(b"of another program")
    with pytest.raises(CaptureError, match="not replaced"):
        second.close()
    assert (tmp_path / "other.pcapng").read_bytes() == b"of another program"


def test_two_recorders_that_start_at_the_same_moment_take_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "tap.pcapng"
    others: list[RotatingWriter] = []

    def start_another() -> None:
        """Between the first one's look at the directory and the creation of its file."""
        others.append(RotatingWriter(base, max_bytes=1 << 20))

    real = os.open
    started: list[bool] = []

    def hooked(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith(".part") and not started:
            started.append(True)
            start_another()
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", hooked)
    first = RotatingWriter(base, max_bytes=1 << 20)
    for writer in (first, *others):
        writer.packet(1, [b"x"])
    names = sorted(first.close() + others[0].close())
    assert [Path(name).name for name in names] == ["tap-00001.pcapng", "tap-00002.pcapng"]
    assert [packets(name) for name in names] == [1, 1]


def test_a_name_that_another_recorder_published_meanwhile_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "tap.pcapng"
    real = os.open
    started: list[bool] = []

    def hooked(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith(".part") and not started:
            started.append(True)
            with RotatingWriter(base, max_bytes=1 << 20) as other:
                other.packet(1, [b"x"])
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", hooked)
    with RotatingWriter(base, max_bytes=1 << 20) as writer:
        writer.packet(2, [b"y"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "tap-00001.pcapng",
        "tap-00002.pcapng",
    ]


def test_two_writers_of_the_same_index_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that starts writes indexes that are missing; their recorder does so too."""
    from polymux.capture import write_index

    writer = PcapngWriter(tmp_path / "tap.pcapng")
    writer.packet(1, [b"x"])
    name = writer.close()
    Before(monkeypatch, "fsync", lambda: write_index(name))
    write_index(name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tap.pcapng", "tap.pcapng.idx"]
