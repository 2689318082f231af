"""Captures on S3: read once whatever the number of tasks; faults of the store publish nothing."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest
import zstandard
from tests.spark.local_stages import analyze_here
from tests.spark.object_store import ObjectStore
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import CaptureLimits, index_file
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.sources import LostInput
from polymux.core.errors import CaptureUnavailable
from polymux.spark.batch import index_stage
from polymux.spark.batch.analyze_stage import (
    StageResult,
    plan_analyze_tasks,
)
from polymux.spark.batch.index_stage import index_task, plan_index_tasks, summaries_of
from polymux.spark.batch.pipeline import analyze
from polymux.spark.batch.reference_shuffle import IndexResult, IndexTotals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
pytestmark = pytest.mark.timeout(600 if SOAK else 300)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rotated captures, one of them compressed, and their tables."""
    folder = tmp_path_factory.mktemp("material")
    paths = [folder / f"{n}.pcapng" for n in range(3)]
    record(paths, conversations(70, 8), seed=4)
    without_spark(paths, folder / "tables")
    packed = zstandard.ZstdCompressor().compress(paths[1].read_bytes())
    (folder / "1.pcapng.zst").write_bytes(packed)
    return folder


@pytest.fixture
def store(material: Path) -> Iterator[ObjectStore]:
    found = ObjectStore()
    for name in NAMES:
        found.put(f"day/{name}", material / name)
    yield found
    found.close()


NAMES = ("0.pcapng", "1.pcapng.zst", "2.pcapng")


def stored_bytes(material: Path) -> int:
    return sum((material / name).stat().st_size for name in NAMES)


def run(paths: list[str], staging: Path, target: int) -> tuple[IndexTotals, StageResult, int]:
    """Both stages in this process; also returns the number of analyze tasks."""
    staging.mkdir()
    totals = IndexTotals()
    for spans in plan_index_tasks(find_inputs(paths), 1, target):
        totals.add(IndexResult.unpack(index_task(str(staging), CaptureLimits())(spans)))
    tasks = plan_analyze_tasks(totals, 1, target)
    return totals, analyze_here(totals, staging, tasks), len(tasks)


def test_a_capture_is_fetched_and_decompressed_once_whatever_the_number_of_tasks(
    store: ObjectStore, material: Path, tmp_path: Path
) -> None:
    expected = stored_bytes(material)
    counts = []
    for target in (1 << 30, 60_000, 8_000):
        store.sent_bytes = 0
        totals, done, tasks = run([store.url("day")], tmp_path / str(target), target)
        counts.append(tasks)
        assert done.packets == totals.packets
        assert done.unbalanced_count == 0
        assert store.sent_bytes <= expected * 1.05
        assert totals.read_bytes + done.read_bytes <= expected * 1.05
    assert counts[0] == 1 < counts[1] < counts[2]


def test_captures_are_read_whatever_signs_their_names_have(
    store: ObjectStore, material: Path, tmp_path: Path
) -> None:
    names = ("a%41.pcapng", "aA.pcapng", "d=1/é b#c?d=e.pcapng")
    for number, name in enumerate(names):
        store.put(f"odd/{name}", material / NAMES[number])
    (tmp_path / "t").mkdir()
    totals = IndexTotals()
    for spans in plan_index_tasks(find_inputs([store.url("odd")]), 1):
        totals.add(IndexResult.unpack(index_task(str(tmp_path / "t"), CaptureLimits())(spans)))
    found = {unquote(summary.file): summary for summary in summaries_of(totals)}
    for number, name in enumerate(names):
        (file,) = (file for file in found if f"/{name}?" in f"{file}?")
        expected = index_file(str(material / NAMES[number])).summary
        assert (found[file].status, found[file].bytes) == ("whole", expected.bytes)


def test_without_room_for_copies_the_captures_are_read_again(
    store: ObjectStore, material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_stage, "MIN_FREE_BYTES", 1 << 62)
    totals, done, _ = run([store.url("day")], tmp_path / "t", 60_000)
    assert done.packets == totals.packets
    assert done.sessions == 8
    assert list((tmp_path / "t").rglob("*.copy")) == []
    assert done.read_bytes > 0
    # Read again, a file that was replaced is noticed by its entity tag.
    staging = tmp_path / "again"
    staging.mkdir()
    totals = IndexTotals()
    for spans in plan_index_tasks(find_inputs([store.url("day")]), 1):
        totals.add(IndexResult.unpack(index_task(str(staging), CaptureLimits())(spans)))
    data = bytearray((material / "2.pcapng").read_bytes())
    data[-50:] = bytes(50)
    (tmp_path / "changed").write_bytes(data)
    store.put("day/2.pcapng", tmp_path / "changed")
    with pytest.raises(LostInput, match=r"2\.pcapng.*has changed since it was indexed"):
        analyze_here(totals, staging, plan_analyze_tasks(totals, 1))


def test_a_store_that_fails_stops_or_loses_a_file_leaves_the_old_tables_and_says_why(
    spark: "SparkSession", store: ObjectStore, material: Path, tmp_path: Path
) -> None:
    out, url = tmp_path / "tables", store.url("day")
    store.mode = "slow"
    store.slow_seconds = 0.02
    assert analyze(spark, [url], out, content=True).conserved
    before = digest_tables(out)
    assert before == digest_tables(material / "tables")

    def lose(stage: str) -> None:
        if stage == "index":
            store.remove("day/2.pcapng")

    store.mode = "open"
    with pytest.raises(CaptureUnavailable, match=r"day/2\.pcapng"):
        analyze(spark, [url], out, protocol="mplex", on_stage=lose)
    store.put("day/2.pcapng", material / "2.pcapng")

    def stop(stage: str) -> None:
        if stage == "index" and SOAK:
            store.mode = "failing"  # it is asked again and again, for longer and longer
        elif stage == "index":
            store.shut()

    with pytest.raises(CaptureUnavailable, match=r"day/\d\.pcapng"):
        analyze(spark, [url], out, protocol="mplex", on_stage=stop)
    assert digest_tables(out) == before
    assert not list(out.rglob("*.copy"))


def test_a_store_that_stops_after_the_index_changes_no_row(
    spark: "SparkSession", store: ObjectStore, material: Path, tmp_path: Path
) -> None:
    def stop(stage: str) -> None:
        if stage == "analyze":
            store.shut()

    done = analyze(spark, [store.url("day")], tmp_path / "t", content=True, on_stage=stop)
    assert done.conserved
    assert digest_tables(tmp_path / "t") == digest_tables(material / "tables")
    assert done.read_bytes <= done.capture_bytes * 1.05
    shutil.rmtree(tmp_path / "t")
