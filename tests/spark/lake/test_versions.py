"""Versions of a lake: committed once, by one of several runs, and never half."""

from __future__ import annotations

import json
import os
import pickle
import stat
import sys
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.spark.lake.lake_runs import ROWS, append, made_up_rows
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.core.errors import MissingExtra
from polymux.spark.batch.output_lock import FoundLock, OutputBusy, read_lock
from polymux.spark.incremental.row_removal import without_rows
from polymux.spark.lake import version_log
from polymux.spark.lake.compaction import plan_joins
from polymux.spark.lake.lake import Lake, is_lake, open_lake
from polymux.spark.lake.storage import open_storage
from polymux.spark.lake.store import ConcurrentCommit, DataFile, LakeError

DAY_1, DAY_2 = "2026-11-01", "2026-11-02"


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return open_lake(str(tmp_path / "lake"))


def row_count(lake: Lake) -> int:
    now = lake.current()
    return 0 if now is None else sum(file.rows for file in now.files_of("frames"))


def test_a_version_is_read_from_the_changes_since_the_last_full_one(lake: Lake) -> None:
    count = 2 * version_log.FULL_RECORD_EVERY + 3
    for seed in range(count):
        staging = lake.begin()
        added = [DataFile("frames", f"frames/date={DAY_1}/part-{staging.run}-{seed:012x}.parquet",
                          100, seed + 1, {"date": DAY_1}, staging.run, seed == 5)]  # fmt: skip
        old = staging.parent.all_files()[:1] if staging.parent and seed % 3 == 0 else []
        state = [staging.output.store_state("ledger", str(seed).encode())]
        written = lake.commit(staging, added=added, removed=old, state=state)
        read = open_lake(lake.url).current()
        assert read == written
    again = open_lake(lake.url)
    assert [version.number for version in again.history()] == list(range(1, count + 1))
    assert again.version(6).all_files() == lake.version(6).all_files()
    assert sum(file.provisional for file in again.version(6).all_files()) == 1


def test_a_directory_is_written_by_one_run_at_a_time(lake: Lake) -> None:
    staging = lake.begin()
    with pytest.raises(OutputBusy):
        open_lake(lake.url).begin()
    lake.discard(staging)
    assert append(open_lake(lake.url), 1, [DAY_1]).number == 1


def test_of_two_runs_at_once_on_an_object_store_one_commits(
    store: ObjectStoreProcess, tmp_path: Path
) -> None:
    first, second = (open_lake(store.lake(tmp_path.name)) for _ in range(2))
    early, late = first.begin(), second.begin()
    assert second.commit(late).number == 1
    with pytest.raises(ConcurrentCommit, match=f"run {late.run} committed version 1") as caught:
        first.commit(early)
    assert "secret" not in str(caught.value)
    first.discard(early)
    assert [version.run for version in first.history()] == [late.run]


def test_a_run_goes_on_while_files_are_compacted(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1])
    staging = lake.begin()
    assert open_lake(lake.url).compact().version is not None
    assert lake.commit(staging).number == 4
    assert row_count(lake) == 2 * ROWS


def test_a_run_that_replaces_what_was_compacted_meanwhile_has_to_begin_again(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1])
    staging = lake.begin()
    assert staging.parent is not None
    assert open_lake(lake.url).compact().version is not None
    with pytest.raises(ConcurrentCommit, match="which this run replaces"):
        lake.commit(staging, removed=staging.parent.files_of("frames"))
    lake.discard(staging)
    assert row_count(lake) == 2 * ROWS


def test_a_run_that_versions_were_vacuumed_after_has_to_begin_again(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1, DAY_2])
    staging = lake.begin()
    other = open_lake(lake.url)
    assert other.compact().version is not None
    assert other.expire(1, today=date(2026, 11, 2))
    other.vacuum(timedelta(0))
    with pytest.raises(ConcurrentCommit, match=r"between 2, .* and 4 were vacuumed"):
        lake.commit(staging)
    lake.discard(staging)
    assert row_count(lake) == ROWS


def test_a_failed_run_leaves_nothing(lake: Lake, tmp_path: Path) -> None:
    append(lake, 1, [DAY_1])
    before = sorted(path for path in Path(lake.url).rglob("*") if path.is_file())
    staging = lake.begin()
    with staging.output.folder() as folder:
        (folder / "frames" / f"date={DAY_2}").mkdir(parents=True)
        (existing,) = Path(lake.url).glob("frames/*/*.parquet")
        (folder / "frames" / f"date={DAY_2}" / "a.parquet").write_bytes(existing.read_bytes())
        assert len(staging.output.store(folder)) == 1
    staging.output.store_state("ledger", b"x")
    lake.discard(staging)
    assert sorted(path for path in Path(lake.url).rglob("*") if path.is_file()) == before


def test_the_files_of_a_run_that_writes_are_not_vacuumed(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    staging = lake.begin()
    state = staging.output.store_state("ledger", b"carried")
    assert not [
        file for file in open_lake(lake.url).vacuum(timedelta(0)) if staging.run in file.name
    ]
    version = lake.commit(staging, state=[state])
    assert lake.read_state(version.state["ledger"]) == b"carried"


def test_what_the_tasks_of_a_run_have_not_stored_yet_is_not_vacuumed(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    (table,) = Path(lake.url).glob("frames/*/*.parquet")
    staging = lake.begin()
    with staging.output.folder() as folder:
        place = folder / "frames" / f"date={DAY_2}"
        place.mkdir(parents=True)
        (place / "a.parquet").write_bytes(table.read_bytes())
        assert open_lake(lake.url).vacuum(timedelta(0)) == []
        added = staging.output.store(folder)
    lake.commit(staging, added=added)
    assert row_count(lake) == 2 * ROWS


def test_the_files_of_a_run_that_commits_during_a_vacuum_stay(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 1, [DAY_1])
    staging = lake.begin()
    state = staging.output.store_state("ledger", b"carried")

    def commit_and_read(folder: Path) -> FoundLock | None:
        if staging.run not in [version.run for version in lake.history()]:
            lake.commit(staging, state=[state])
        return read_lock(folder)

    monkeypatch.setattr("polymux.spark.lake.lake.read_lock", commit_and_read)
    open_lake(lake.url).vacuum(timedelta(0))
    now = lake.current()
    assert now is not None
    assert lake.read_state(now.state["ledger"]) == b"carried"


def test_a_run_that_fails_with_its_store_says_why_it_failed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1])
    other = open_lake(lake.url)

    def refuse(*_: object) -> None:
        raise LakeError("the store is gone")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(other.storage, "delete", refuse)
    monkeypatch.setattr(other, "commit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        other.compact()
    assert row_count(lake) == 2 * ROWS


def test_after_a_power_loss_the_folders_of_a_version_are_there(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: dict[int, set[str]] = {}  # names in each folder, by its inode
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            durable.setdefault(found.st_ino, set()).update(os.listdir(descriptor))

    monkeypatch.setattr(os, "fsync", note)
    version = append(lake, 1, [DAY_1])
    names = [file.path for file in version.all_files()]
    names += [state.path for state in version.state.values()]
    for path in (Path(lake.url, name) for name in [*names, "_lake/versions/00000001"]):
        for part in (path, *path.parents[: path.parents.index(Path(lake.url))]):
            assert part.name in durable.get(part.parent.stat().st_ino, ()), part


def test_a_table_is_partitioned_by_the_same_columns_in_all_versions(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    with pytest.raises(LakeError, match="partition a lake always by the same columns"):
        append(lake, 2, [DAY_1], sensor="here")
    assert row_count(open_lake(lake.url)) == ROWS


def test_the_days_that_are_kept_end_today(lake: Lake) -> None:
    append(lake, 1, [DAY_1, DAY_2])
    assert lake.expire(2, today=date(2026, 11, 2)) == []
    assert {file.date for file in lake.expire(1, today=date(2026, 11, 2))} == {DAY_1}
    with pytest.raises(LakeError, match="keep at least 1"):
        lake.expire(0)


def test_provisional_files_are_not_joined_with_others(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    append(lake, 2, [DAY_1], provisional=True)
    assert {file.table for file in lake.compact(dry_run=True).joined} == set()


def test_what_planning_a_compaction_costs_follows_the_number_of_files() -> None:
    class Sized(DataFile):
        reads = 0

        def __getattribute__(self, name: str) -> object:
            Sized.reads += name == "size"
            return super().__getattribute__(name)

    def reads_of(count: int) -> int:
        Sized.reads = 0
        files = [Sized("frames", f"frames/date={DAY_1}/{n:08}", 1000, 1) for n in range(count)]
        assert [len(group) for group in plan_joins(files, 1_000_000)] == [count]
        return Sized.reads

    assert reads_of(800) <= 8.1 * reads_of(100)


def test_a_lake_has_one_format(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    with pytest.raises(LakeError, match="is a lake of format parquet, not delta"):
        open_lake(lake.url, "delta")
    with pytest.raises(LakeError, match="one of parquet, delta, iceberg"):
        open_lake(lake.url, "orc")


def test_a_directory_with_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").write_text("dear")
    with pytest.raises(LakeError, match="holds something other than a lake \\(letters\\)"):
        open_lake(str(tmp_path))
    assert not is_lake(str(tmp_path))


def test_what_a_killed_first_run_has_left_of_its_lock_is_no_other_content(tmp_path: Path) -> None:
    (tmp_path / "_lock-0123456789abcdef0123456789abcdef").write_text("{}")
    assert append(open_lake(str(tmp_path)), 1, [DAY_1]).number == 1


def test_rows_of_an_older_polymux_are_joined_and_removed_with_null_in_new_columns(
    lake: Lake,
) -> None:
    for seed in (1, 2):
        staging = lake.begin()
        with staging.output.folder() as folder:
            (folder / "sessions" / f"date={DAY_1}").mkdir(parents=True)
            rows = made_up_rows("sessions", seed).drop_columns(["note", "tls"])
            pq.write_table(rows, folder / "sessions" / f"date={DAY_1}" / "a.parquet")
            lake.commit(staging, added=staging.output.store(folder))
    joined = lake.compact().added
    (batch,) = lake.batches(joined)
    assert batch.schema == SCHEMAS["sessions"]
    assert batch["note"].null_count == batch["tls"].null_count == batch.num_rows == 2 * ROWS
    old = lake.version(1).all_files()[0]
    (first, *_) = made_up_rows("sessions", 1)["session_id"].to_pylist()
    kept = without_rows(old, "session_id", [first], lake.begin().output)
    assert kept is not None
    assert [file.rows for file in kept] == [ROWS - 1]


def test_a_lake_of_a_newer_polymux_is_not_read(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    (record,) = Path(lake.url, "_lake", "records").iterdir()
    record.write_text(json.dumps({**json.loads(record.read_text()), "polymux-lake": 2}))
    with pytest.raises(LakeError, match="its format 2 is not known"):
        open_lake(lake.url).current()


def test_a_version_that_was_deleted_is_said_to_be(lake: Lake) -> None:
    append(lake, 1, [DAY_1])
    with pytest.raises(LakeError, match="there is no version 7, or it was vacuumed"):
        lake.version(7)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_the_extra_that_a_format_needs_is_named(
    lake: Lake, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = "deltalake" if format == "delta" else "pyiceberg.catalog.memory"
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"polymux.spark.lake.{format}", raising=False)
    with pytest.raises(MissingExtra, match="pip install 'polymux\\[lake\\]'"):
        open_lake(lake.url, format).begin()
    assert append(lake, 1, [DAY_1]).number == 1  # Parquet needs none of them


def test_storages_are_pickled_by_their_place(lake: Lake, store: ObjectStoreProcess) -> None:
    for url in (lake.url, store.lake("pickled")):
        storage = open_storage(url)
        storage.write("_lake/state/a", b"there")
        assert pickle.loads(pickle.dumps(storage)).read("_lake/state/a") == b"there"
    assert "secret" not in storage.location
