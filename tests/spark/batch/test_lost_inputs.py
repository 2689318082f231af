"""A capture that cannot be read, or is not the one that was indexed, fails the work: no rows."""

import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.local_stages import analyze_here
from tests.spark.random_captures import blocks_of, conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import CaptureLimits, FileRange
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.sources import LostInput
from polymux.core.errors import CaptureUnavailable, PolymuxError
from polymux.spark.batch.analyze_stage import (
    StageResult,
    plan_analyze_tasks,
)
from polymux.spark.batch.index_stage import IndexSpan, index_task, plan_index_tasks
from polymux.spark.batch.pipeline import Analysis, analyze, check_packets
from polymux.spark.batch.reference_shuffle import IndexResult, IndexTotals
from polymux.spark.datasource.batch_reader import FlowIndex, TableReader
from polymux.spark.datasource.options import SourceOptions
from polymux.spark.datasource.source import register
from polymux.spark.runtime.task_errors import raised_in_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rotated captures that share their sessions, and another capture."""
    folder = tmp_path_factory.mktemp("material")
    record([folder / f"{n}.pcapng" for n in range(3)], conversations(60, 6), seed=1)
    record([folder / "other.pcapng"], conversations(90, 6))
    record([folder / "longer.pcapng"], conversations(91, 40))
    return folder


@pytest.fixture
def captures(material: Path, tmp_path: Path) -> list[Path]:
    (tmp_path / "captures").mkdir()
    return [
        Path(shutil.copy(material / f"{n}.pcapng", tmp_path / "captures" / f"{n}.pcapng"))
        for n in range(3)
    ]


def indexed(captures: list[Path], staging: Path) -> IndexTotals:
    """The index stage, in this process."""
    staging.mkdir()
    totals = IndexTotals()
    for spans in plan_index_tasks(find_inputs(captures), 1, 20_000):
        totals.add(IndexResult.unpack(index_task(str(staging), CaptureLimits())(spans)))
    return totals


def analyzed(totals: IndexTotals, staging: Path) -> StageResult:
    """The analyze stage, in this process."""
    return analyze_here(totals, staging, plan_analyze_tasks(totals, 1, 20_000))


def removed(capture: Path, material: Path) -> None:
    capture.unlink()


def shortened(capture: Path, material: Path) -> None:
    os.truncate(capture, capture.stat().st_size - 100)


def replaced(capture: Path, material: Path) -> None:
    shutil.copy(material / "other.pcapng", capture.with_name(".new"))
    os.replace(capture.with_name(".new"), capture)


def replaced_by_one_as_long(capture: Path, material: Path) -> None:
    data = bytearray(capture.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    capture.write_bytes(data)


def forbidden(capture: Path, material: Path) -> None:
    capture.unlink()
    capture.symlink_to(capture)  # permissions do not stop root; a loop of links does


FAULTS = [removed, shortened, replaced, replaced_by_one_as_long, forbidden]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_capture_lost_between_index_and_analysis_fails_the_task_and_is_named(
    fault: Callable[[Path, Path], None], captures: list[Path], material: Path, tmp_path: Path
) -> None:
    totals = indexed(captures, tmp_path / "staging")
    fault(captures[1], material)
    with pytest.raises(LostInput, match=r"1\.pcapng"):
        analyzed(totals, tmp_path / "staging")


@pytest.mark.parametrize("fault", [removed, shortened, forbidden])
def test_a_capture_lost_before_the_index_fails_the_task_and_is_named(
    fault: Callable[[Path, Path], None], captures: list[Path], material: Path, tmp_path: Path
) -> None:
    tasks = plan_index_tasks(find_inputs(captures), 1)
    (tmp_path / "staging").mkdir()
    fault(captures[1], material)
    run = index_task(str(tmp_path / "staging"), CaptureLimits())
    with pytest.raises(LostInput, match=r"1\.pcapng"):
        list(map(run, tasks))
    assert list((tmp_path / "staging").rglob("*.refs")) == []


def replaced_by_a_longer_one(capture: Path, material: Path) -> None:
    shutil.copy(material / "longer.pcapng", capture)


@pytest.mark.parametrize("fault", [*FAULTS, replaced_by_a_longer_one])
def test_a_capture_lost_between_cutting_and_indexing_fails_the_task_and_is_named(
    fault: Callable[[Path, Path], None], captures: list[Path], material: Path, tmp_path: Path
) -> None:
    tasks = plan_index_tasks(find_inputs(captures), 1, 5_000)
    assert len([span for spans in tasks for span in spans if "1.pcapng" in span.path]) > 1
    (tmp_path / "staging").mkdir()
    fault(captures[1], material)
    run = index_task(str(tmp_path / "staging"), CaptureLimits())
    with pytest.raises(LostInput, match=r"1\.pcapng"):
        list(map(run, tasks))


def test_a_capture_that_grows_between_cutting_and_indexing_is_indexed_as_far_as_it_was_cut(
    captures: list[Path], tmp_path: Path
) -> None:
    tasks = plan_index_tasks(find_inputs(captures[:1]), 1, 5_000)
    (tmp_path / "staging").mkdir()
    with captures[0].open("ab") as file:
        file.write(b"\0" * 5000)
    totals = IndexTotals()
    for spans in tasks:
        totals.add(
            IndexResult.unpack(index_task(str(tmp_path / "staging"), CaptureLimits())(spans))
        )
    assert totals.packets > 0


def test_a_capture_that_grew_or_was_copied_once_more_is_the_same(
    captures: list[Path], material: Path, tmp_path: Path
) -> None:
    totals = indexed(captures, tmp_path / "staging")
    with captures[0].open("ab") as file:
        file.write(b"\0" * 5000)
    captures[1].write_bytes(captures[1].read_bytes())
    os.utime(captures[1], (5, 5))
    done = analyzed(totals, tmp_path / "staging")
    assert done.sessions == 6
    assert done.packets == totals.packets > 0
    assert done.unbalanced_count == 0


def test_what_the_analysis_saw_is_compared_with_what_the_index_counted(
    captures: list[Path], tmp_path: Path
) -> None:
    totals = indexed(captures, tmp_path / "staging")
    done = analyzed(totals, tmp_path / "staging")
    assert Analysis("t", [], done, indexed_packets=totals.packets).conserved
    assert not Analysis("t", [], done, indexed_packets=totals.packets + 1).conserved
    check_packets(done.packets, totals.packets)
    with pytest.raises(PolymuxError, match="nothing was published"):
        check_packets(done.packets - 1, totals.packets)


def test_a_worker_with_a_shorter_file_of_the_same_name_is_told_apart(captures: list[Path]) -> None:
    size = captures[0].stat().st_size
    span = IndexSpan(str(captures[0]), FileRange(), size + 1)
    with pytest.raises(LostInput, match=f"has {size} bytes here, but had {size + 1} when"):
        index_task(str(captures[0].parent), CaptureLimits())([span])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("inline", [True, False])
def test_the_data_source_gives_an_error_in_place_of_fewer_rows(
    fault: Callable[[Path, Path], None],
    inline: bool,
    captures: list[Path],
    material: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not inline:
        monkeypatch.setattr("polymux.spark.datasource.batch_reader.MAX_INLINE_REF_BYTES", 10)
    options = {"path": str(captures[0].parent), "maxPartitionBytes": "20000"}
    reader = TableReader(SourceOptions.parse(options))
    partitions = reader.partitions()
    fault(captures[1], material)
    with pytest.raises(LostInput, match=r"1\.pcapng"):
        [list(reader.read(partition)) for partition in partitions]


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("cut", [0, 7])
def test_the_data_source_reads_of_a_capture_that_grew_what_the_driver_saw(
    compressed: bool,
    cut: int,
    captures: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.spark.datasource.batch_reader.MAX_INLINE_REF_BYTES", 10)
    whole = captures[0].read_bytes()
    half = sum(map(len, blocks_of(captures[0])[1][:40])) + len(blocks_of(captures[0])[0])
    first, rest = whole[: half - cut], whole[half - cut :]
    if compressed:
        packer = zlib.compressobj(wbits=31)
        first, rest = (
            packer.compress(first) + packer.flush(zlib.Z_SYNC_FLUSH),
            packer.compress(rest) + packer.flush(),
        )
    captures[0].write_bytes(first)
    options = {"path": str(captures[0].parent), "maxPartitionBytes": "20000"}
    reader = TableReader(SourceOptions.parse(options))
    partitions = reader.partitions()
    assert all(partition.value.spans for partition in partitions)
    expected = [list(reader.read(partition)) for partition in partitions]
    with captures[0].open("ab") as file:
        file.write(rest)
    assert [list(reader.read(partition)) for partition in partitions] == expected


def test_the_data_source_notices_that_a_capture_was_replaced_between_two_ranges(
    captures: list[Path], material: Path
) -> None:
    options = SourceOptions.parse({"path": "x"})
    (spans,) = plan_index_tasks(find_inputs(captures[:1]), 1)
    index = FlowIndex(options)
    index.add(spans[0])
    replaced(captures[0], material)
    with pytest.raises(LostInput, match=r"0\.pcapng: has changed since"):
        index.add(IndexSpan(str(captures[0]), FileRange()))


def test_a_run_that_loses_a_capture_names_it_and_leaves_the_tables_as_they_were(
    spark: "SparkSession", captures: list[Path], material: Path, tmp_path: Path
) -> None:
    out = tmp_path / "tables"
    done = analyze(spark, captures, out, content=True)
    assert done.conserved
    without_spark(captures, tmp_path / "plain")
    before = digest_tables(out)
    assert before == digest_tables(tmp_path / "plain")
    files = sorted(path.name for path in out.rglob("*"))
    for fault, moment in [(removed, "index"), (replaced, "analyze")]:

        def strike(
            stage: str, fault: Callable[[Path, Path], None] = fault, moment: str = moment
        ) -> None:
            if stage == moment:
                fault(captures[1], material)

        with pytest.raises(CaptureUnavailable, match=r"1\.pcapng: ") as raised:
            analyze(spark, captures, out, on_stage=strike)
        assert "\n" not in str(raised.value)
        assert digest_tables(out) == before
        assert sorted(path.name for path in out.rglob("*")) == files
        shutil.copy(material / "1.pcapng", captures[1])


def test_a_query_over_a_lost_capture_fails_with_its_name(
    spark: "SparkSession", captures: list[Path]
) -> None:
    register(spark)
    captures[1].unlink()
    captures[1].symlink_to(captures[1])
    with pytest.raises(Exception, match=r"1\.pcapng"):
        spark.read.format("polymux").load([str(path) for path in captures]).count()


def test_the_error_of_a_task_is_found_in_the_text_of_spark() -> None:
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.\n"
        ": org.apache.spark.SparkException: Job aborted ... Traceback (most recent call last):\n"
        '  File "x.py", line 1, in <module>\n'
        "polymux.capture.io.sources.LostInput: /caps/1.pcapng: cannot be opened: gone\n"
        "\n\tat org.apache.spark.api.python.BasePythonRunner"
    )
    found = raised_in_task(text)
    assert isinstance(found, CaptureUnavailable)
    assert str(found) == "/caps/1.pcapng: cannot be opened: gone"
    assert raised_in_task("java.lang.OutOfMemoryError: Java heap space") is None
