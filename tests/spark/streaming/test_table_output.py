"""The tables of a query, whenever it is killed; its lock is given up if the query cannot begin."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.spark.batch.test_atomic_output import in_child

from polymux.analysis.output.arrow_batches import SCHEMAS
from polymux.analysis.output.manifest import table_files
from polymux.core.errors import UnreadableInput
from polymux.spark.batch.output_lock import LOCK_NAME, read_lock
from polymux.spark.datasource.stream_reader import TaskReport
from polymux.spark.streaming import table_output
from polymux.spark.streaming.query import start_following
from polymux.spark.streaming.table_output import StreamingTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_lock_is_given_up_if_the_tables_cannot_be_prepared(tmp_path: Path) -> None:
    StreamingTables(str(tmp_path), {}).close()
    manifest = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UnreadableInput):
        StreamingTables(str(tmp_path), {})
    assert read_lock(tmp_path) is None
    (tmp_path / "manifest.json").write_bytes(manifest)
    StreamingTables(str(tmp_path), {}).close()


class NoSources:
    """Refuses to register a data source."""

    def register(self, source: object) -> None:
        raise ConnectionError("the session has ended")


def test_the_lock_is_given_up_if_spark_does_not_start_the_query(tmp_path: Path) -> None:
    out = tmp_path / "out"
    session = SimpleNamespace(
        dataSource=NoSources(), sparkContext=SimpleNamespace(defaultParallelism=1)
    )
    for _ in range(2):  # a lock left by the first would refuse the second
        with pytest.raises(ConnectionError, match="the session has ended"):
            # It stands for a session that ended before the first call.
            start_following(cast("SparkSession", session), tmp_path, out)
        assert read_lock(out) is None


STEPS = ("rename", "replace", "unlink", "rmdir", "mkdir", "link")
WRITTEN = ("captures", "violations")
COLUMN = {"captures": "file", "violations": "session_id"}


def publish(out: Path, batch: int, mark: str, more_waits: bool = False) -> None:
    """Run a batch, in a query that is started for it; `mark` is in every row."""
    (out / LOCK_NAME).unlink(missing_ok=True)  # of a process that was killed
    tables = StreamingTables(str(out), {})
    tables.checkpoint.mkdir(exist_ok=True)
    try:
        tables.publish(batch, [stage(tables, mark)], more_waits)
    finally:
        tables.close()


def stage(tables: StreamingTables, mark: str) -> TaskReport:
    """What a task has written."""
    for table in WRITTEN:
        path = tables.staging / "task" / table / "part.parquet"
        path.parent.mkdir(parents=True)
        row = {field.name: empty(field) for field in SCHEMAS[table]} | {COLUMN[table]: mark}
        pq.write_table(pa.Table.from_pylist([row], SCHEMAS[table]), path)
    return TaskReport("task", list(WRITTEN), [], [])


def empty(field: pa.Field) -> str | int | None:
    if field.nullable:
        return None
    return 0 if pa.types.is_integer(field.type) or pa.types.is_timestamp(field.type) else ""


def marks(files: Callable[[str], list[Path]]) -> list[str]:
    return sorted(
        f"{table}:{mark}"
        for table in WRITTEN
        for path in files(table)
        for mark in pq.read_table(path)[COLUMN[table]].to_pylist()
    )


def by_manifest(out: Path) -> list[str]:
    return marks(lambda table: table_files(out, table))


def by_folder(out: Path) -> list[str]:
    return marks(lambda table: list((out / table).glob("*.parquet")))


def with_last(mark: str) -> list[str]:
    """All rows, if the last batch wrote these."""
    return sorted(f"{table}:{each}" for table in WRITTEN for each in (*"012", mark))


def stop_at(number: int) -> None:
    """Make this process end at the n-th change of the file system."""
    count = 0

    def stopping(honest: Callable[..., object]) -> Callable[..., object]:
        def act(*args: object, **more: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                os._exit(77)
            return honest(*args, **more)

        return act

    for name in STEPS:
        setattr(os, name, stopping(getattr(os, name)))


def test_a_repeated_batch_killed_at_any_step_leaves_what_the_manifest_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # no power is lost here
    before, out = tmp_path / "before", tmp_path / "out"
    for batch in range(4):
        publish(before, batch, "old" if batch == 3 else str(batch), more_waits=True)
    monkeypatch.setattr(table_output, "COMPACT_FILES", 3)
    seen = []
    for number in range(1, 500):
        shutil.copytree(before, out)

        def act(number: int = number) -> None:
            stop_at(number)
            publish(out, 3, "new")  # and merge small files

        code = in_child(act)
        found = by_manifest(out)
        assert found in (with_last("old"), with_last("new")), number
        seen.append(found)
        if number % 5 == 0 or code == 0:
            (out / LOCK_NAME).unlink(missing_ok=True)
            StreamingTables(str(out), {}).close()
            assert by_manifest(out) == by_folder(out) == found
            assert not list(out.glob("*/.batch*"))
            publish(out, 3, "next")
            assert by_manifest(out) == by_folder(out) == with_last("next")
        shutil.rmtree(out)
        if code == 0:
            break
        assert code == 77
    assert code == 0
    assert seen == sorted(seen, reverse=True), "first all old, then all new"
    assert len({tuple(each) for each in seen}) == 2


def test_tables_without_a_manifest_keep_their_files(tmp_path: Path) -> None:
    publish(tmp_path, 0, "0")
    (tmp_path / "manifest.json").unlink()
    StreamingTables(str(tmp_path), {}).close()
    assert by_manifest(tmp_path) == ["captures:0", "violations:0"]
