"""A directory that is followed into a lake: its rows are those of one analysis of everything."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.incremental.daily_captures import (
    differences,
    rows_of_lake,
    rows_of_tables,
    talks,
    write_days,
)

from polymux.core.errors import CaptureError, CaptureUnavailable, PolymuxError
from polymux.spark import Analysis, analyze
from polymux.spark.batch.analyze_stage import StageResult
from polymux.spark.batch.output_lock import OutputBusy
from polymux.spark.incremental.follow import (
    PATIENCE_SECONDS,
    GrowingFolder,
    follow_into_lake,
    jobs_cancelled_by,
)
from polymux.spark.lake.lake import open_lake
from polymux.spark.lake.store import ConcurrentCommit
from polymux.spark.runtime.stages import run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def steps(*acts: Callable[[], object]) -> Callable[[], bool]:
    """What happens between scans, one after another; then following is stopped."""
    left = iter(acts)

    def wait() -> bool:
        act = next(left, None)
        if act is not None:
            act()
        return act is None

    return wait


def names(folder: GrowingFolder) -> list[str]:
    """Read what is due; return the names."""
    files = folder.due()
    folder.note_read(files)
    return [Path(file.path).name for file in files]


def nothing_read(paths: list[str]) -> Analysis:
    return Analysis("", [], StageResult())


def test_captures_that_come_grow_and_are_late_make_the_rows_of_one_analysis(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, captures, lake = tmp_path / "made", tmp_path / "captures", tmp_path / "lake"
    captures.mkdir()
    first, second, third = write_days(made, talks(8, 3, 14), 3, per_day=1)
    versions, told = [], []

    def deliver(*paths: Path) -> None:
        for path in paths:
            shutil.copy2(path, captures / f"{path.parent.name}-{path.name}")

    def deliver_and_begin(path: Path, begun: Path) -> None:
        deliver(path)
        whole = begun.read_bytes()
        (captures / f"{begun.parent.name}-{begun.name}").write_bytes(whole[: len(whole) // 2])

    def on_batch(done: Analysis) -> None:
        assert done.conserved
        assert done.lake is not None
        versions.append(done.lake.version)
        told.append(len(done.captures))

    follow_into_lake(
        GrowingFolder(str(captures)),
        lambda paths: analyze(spark, paths, lake, append=True),
        wait=steps(
            lambda: deliver(first[0]),
            lambda: None,  # nothing is new
            lambda: deliver_and_begin(second[0], third[1]),
            lambda: deliver(third[1]),
            lambda: deliver(first[1], second[1], third[0]),  # two are late
        ),
        on_batch=on_batch,
        on_retry=lambda problem: pytest.fail(str(problem)),
    )
    assert versions == [1, 2, 3, 4]
    assert told == [1, 2, 1, 3]
    assert not analyze(spark, captures, lake, append=True).captures  # a run by itself has no work
    analyze(spark, captures, tmp_path / "tables")
    assert differences(rows_of_lake(lake), rows_of_tables(tmp_path / "tables")) == {}


def test_a_capture_that_grows_is_read_again_when_it_is_a_quarter_larger_or_has_come_to_rest(
    tmp_path: Path,
) -> None:
    folder = GrowingFolder(str(tmp_path))
    assert names(folder) == []
    path = tmp_path / "a.pcapng"
    reads = []
    for size in range(1000, 40_000, 100):
        path.write_bytes(bytes(size))
        if names(folder):
            reads.append(size)
    assert reads[0] == 1000
    assert sum(reads) < 5 * 40_000
    assert all(later >= 1.25 * earlier for earlier, later in pairwise(reads))
    assert names(folder) == ["a.pcapng"]  # it has the size of the last scan
    assert names(folder) == []
    (tmp_path / "b.pcapng.part").write_bytes(b"still being written")
    (tmp_path / "c.pcapng").write_bytes(b"x")
    assert names(folder) == ["c.pcapng"]


def test_what_was_not_read_is_due_again(tmp_path: Path) -> None:
    folder = GrowingFolder(str(tmp_path))
    (tmp_path / "a.pcapng").write_bytes(b"x")
    assert [file.size for file in folder.due()] == [1]
    assert [file.size for file in folder.due()] == [1]
    assert names(folder) == ["a.pcapng"]
    assert names(folder) == []


def test_a_directory_that_is_not_there_is_an_error_at_once_and_later(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no such directory"):
        GrowingFolder(str(tmp_path / "nowhere"))
    (tmp_path / "inbox").mkdir()
    folder = GrowingFolder(str(tmp_path / "inbox"))
    with pytest.raises(CaptureError, match="no such directory"):
        follow_into_lake(
            folder, nothing_read, wait=steps((tmp_path / "inbox").rmdir),
            on_batch=lambda done: None, on_retry=lambda problem: None,
        )  # fmt: skip


def test_a_directory_that_cannot_be_listed_for_a_moment_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pcapng").write_bytes(b"x")
    honest, told = os.scandir, []

    def scandir(path: str) -> object:
        monkeypatch.setattr(os, "scandir", honest)
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(os, "scandir", scandir)
    append = Failing()
    follow_into_lake(
        GrowingFolder(str(tmp_path)), append, wait=lambda: False, available_now=True,
        on_batch=lambda done: None, on_retry=lambda problem: told.append(str(problem)),
    )  # fmt: skip
    assert append.tried == 1
    assert "Stale file handle" in "".join(told)


class Failing:
    """Fails with these errors, then reads; `tried` is how often it was called."""

    def __init__(self, *problems: PolymuxError) -> None:
        self.problems = list(problems)
        self.tried = 0

    def __call__(self, paths: list[str]) -> Analysis:
        self.tried += 1
        if self.problems:
            raise self.problems.pop(0)
        return nothing_read(paths)


def test_a_batch_in_whose_way_another_run_was_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "a.pcapng").write_bytes(b"x")
    busy = [OutputBusy("another run writes there"), OutputBusy("another run writes there")]
    append, told = Failing(*busy, ConcurrentCommit("it was first")), []
    follow_into_lake(
        GrowingFolder(str(tmp_path)), append, wait=lambda: False, available_now=True,
        on_batch=lambda done: None, on_retry=lambda problem: told.append(str(problem)),
        clock=iter(range(0, 1_000_000, 1000)).__next__,
    )  # fmt: skip
    assert append.tried == 4
    assert told == ["another run writes there", "it was first"]


def test_a_capture_that_cannot_be_read_for_long_ends_it_and_so_does_any_other_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.pcapng").write_bytes(b"x")
    lost = CaptureUnavailable("permission denied", "a.pcapng")

    def follow(append: Failing, seconds: list[float]) -> None:
        follow_into_lake(
            GrowingFolder(str(tmp_path)), append, wait=lambda: False, available_now=True,
            on_batch=lambda done: None, on_retry=lambda problem: None,
            clock=iter(seconds).__next__,
        )  # fmt: skip

    follow(Failing(lost, lost), [0, 0, PATIENCE_SECONDS - 1])
    with pytest.raises(CaptureUnavailable, match="permission denied"):
        follow(Failing(lost, lost), [0, 0, PATIENCE_SECONDS])
    with pytest.raises(PolymuxError, match="made with protocol"):
        follow(Failing(PolymuxError("made with protocol")), [])


def test_a_batch_that_is_stopped_changes_nothing_and_is_made_by_the_next_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    captures, lake = tmp_path / "captures", tmp_path / "lake"
    write_days(captures, talks(5, 1, 3), 1)
    stopped = threading.Event()

    def sleep(number: int) -> int:
        import time

        time.sleep(600)
        return number

    def on_stage(name: str) -> None:
        if name == "analyze":
            stopped.set()
            list(run_stage(spark, sleep, [1, 2], str(tmp_path)))

    with pytest.raises(Exception, match="cancel"), jobs_cancelled_by(spark, stopped.is_set):
        analyze(spark, captures, lake, append=True, on_stage=on_stage)
    assert open_lake(str(lake)).current() is None
    with jobs_cancelled_by(spark, lambda: False):
        assert analyze(spark, captures, lake, append=True).total.sessions
    assert spark.range(3).count() == 3
