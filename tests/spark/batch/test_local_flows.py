"""Flows that lie in one capture are analyzed by a task that reads that one only."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from tests.spark.local_stages import analyze_here
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import CaptureLimits, FlowRefs
from polymux.capture.io.discovery import find_inputs
from polymux.core.errors import PolymuxError
from polymux.spark.batch import analyze_stage, reference_shuffle
from polymux.spark.batch.analyze_stage import plan_analyze_tasks, plan_local_tasks
from polymux.spark.batch.index_stage import index_task, plan_index_tasks
from polymux.spark.batch.pipeline import analyze
from polymux.spark.batch.reference_shuffle import (
    IndexResult,
    IndexTotals,
    ReferenceReader,
    ReferenceWriter,
    TakenFlows,
)

DAYS = 6


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Captures of one day each; some sessions go on over all of them."""
    folder = tmp_path_factory.mktemp("rotated")
    paths = []
    for day in range(DAYS):
        path = folder / f"day-{day}.pcapng"
        record([path], conversations(10 * day, 6), port=41_000 + 10 * day)
        paths.append(path)
    long = [folder / f"long-{day}.pcapng" for day in range(DAYS)]
    record(long, conversations(99, 2))
    return [path for pair in zip(paths, long, strict=True) for path in pair]


def indexed(paths: list[Path], staging: Path, target: int) -> IndexTotals:
    staging.mkdir()
    totals = IndexTotals()
    for spans in plan_index_tasks(find_inputs(paths), 1, target):
        totals.add(IndexResult.unpack(index_task(str(staging), CaptureLimits())(spans)))
    return totals


def share_of(paths: list[Path]) -> int:
    return sum(path.stat().st_size for path in paths) // DAYS


def test_flows_of_one_capture_are_read_by_a_task_that_reads_no_other(
    rotated: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_shuffle, "MIN_LOCAL_SHARE", 1000)
    totals = indexed(rotated, tmp_path / "staging", share_of(rotated))
    staging = str(tmp_path / "staging")
    tasks = plan_analyze_tasks(totals, 1, share_of(rotated))
    heavy = sum(task.only_flows for task in tasks)
    spread = [ReferenceReader(staging, totals.names, task) for task in tasks]
    spread_count = sum(len(flows) for flows in spread)
    assert spread_count in range(2, 2 + heavy + 1)  # the long ones, and those with their own task
    taken = [flows.taken.write(staging) for flows in spread if flows.taken is not None]
    assert len(taken) == len(spread)
    local = [ReferenceReader(staging, taken, task) for task in plan_local_tasks(totals)]
    assert sum(len(flows) for flows in local) == DAYS * 6 + 2 - spread_count
    for flows in local:
        assert len(flows.identities) <= len(rotated) // len(local) + 1


def test_the_tables_are_those_of_the_walk_without_spark(
    spark: SparkSession, rotated: list[Path], tmp_path: Path
) -> None:
    without_spark(rotated, tmp_path / "plain")
    done = analyze(
        spark, rotated, tmp_path / "t", content=True, max_partition_bytes=share_of(rotated)
    )
    assert done.conserved
    assert done.total.left_packets > 0
    assert digest_tables(tmp_path / "t") == digest_tables(tmp_path / "plain")


def test_a_small_run_has_one_round_of_tasks(
    rotated: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = indexed(rotated, tmp_path / "staging", share_of(rotated))
    assert not any(task.leaves_local for task in plan_analyze_tasks(totals, 1))
    monkeypatch.setattr(analyze_stage, "MIN_LOCAL_COST", totals.cost)
    tasks = plan_analyze_tasks(totals, 1)
    assert all(task.leaves_local for task in tasks)
    done = analyze_here(totals, tmp_path / "staging", tasks)
    assert done.packets == totals.packets


def test_flows_of_one_capture_that_are_few_are_analyzed_with_the_others(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pcapng" for number in range(3)]
    record(paths, conversations(3, 20))
    record([tmp_path / "one.pcapng"], conversations(70, 1), port=42_000)
    totals = indexed([*paths, tmp_path / "one.pcapng"], tmp_path / "staging", 1)
    (task,) = plan_analyze_tasks(totals, 1, totals.cost)
    done = ReferenceReader(str(tmp_path / "staging"), totals.names, task)
    assert (len(done), done.left_packets) == (21, 0)


def test_what_other_tasks_have_taken_must_be_there_and_whole(
    rotated: list[Path], tmp_path: Path
) -> None:
    staging = tmp_path / "staging"
    totals = indexed(rotated, staging, share_of(rotated))
    taken = TakenFlows(len(totals.names))
    taken.add(0, b"flow")
    name = taken.write(str(staging))
    assert TakenFlows.read(str(staging), [name], 0) == {b"flow"}
    assert TakenFlows.read(str(staging), [name], 1) == frozenset()
    (path,) = (staging / "index").glob(f"{name}*")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(PolymuxError, match="is not complete"):
        TakenFlows.read(str(staging), [name], 0)
    path.unlink()
    with pytest.raises(PolymuxError, match="must be on a file system that the driver and all"):
        ReferenceReader(str(staging), [name], plan_local_tasks(totals)[0])


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.integers(0, 40), st.sets(st.integers(0, 4), min_size=1), min_size=1),
    st.integers(1, 9),
    st.sets(st.integers(0, 40)),
)
def test_every_row_is_analyzed_by_exactly_one_task(
    tmp_path_factory: pytest.TempPathFactory,
    files_of_flows: dict[int, set[int]],
    packets: int,
    heavy: set[int],
) -> None:
    staging = str(tmp_path_factory.mktemp("rows"))
    totals = IndexTotals()
    for file in range(5):
        with ReferenceWriter(staging) as writer:
            writer.add([
                FlowRefs(bytes([flow]) * 36, side, f"{file}.pcap", 0, flow, flow, bytes(32 * count))
                for flow, files in files_of_flows.items() if file in files
                for count in [packets * (50 if flow in heavy else 1)] for side in (0, 1)
            ])  # fmt: skip
        totals.add(writer.result)
    tasks = plan_analyze_tasks(totals, 2, 4000)
    spread = [ReferenceReader(staging, totals.names, task) for task in tasks]
    taken = [flows.taken.write(staging) for flows in spread if flows.taken is not None]
    local = []
    if sum(flows.left_packets for flows in spread):
        local = [ReferenceReader(staging, taken, task) for task in plan_local_tasks(totals)]
    rows = sorted(
        (row.flow[0], row.direction, row.file, row.packets)
        for flows in (*spread, *local)
        for flow in flows
        for row in flow.rows()
    )
    assert rows == sorted(
        (flow, side, f"{file}.pcap", packets * (50 if flow in heavy else 1))
        for flow, files in files_of_flows.items()
        for file in files
        for side in (0, 1)
    )
    assert sum(len(flows) for flows in (*spread, *local)) == len(files_of_flows)
