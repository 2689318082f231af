"""One huge session beside many small ones: its task starts first, the others run beside it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import CaptureLimits
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.read_ahead import (
    MAX_HELD_BYTES,
    MAX_INTERLEAVED_FLOWS,
    ReadAhead,
    interleave,
)
from polymux.spark.batch.analyze_stage import plan_analyze_tasks
from polymux.spark.batch.index_stage import plan_index_tasks, run_index_stage
from polymux.spark.batch.pipeline import analyze
from polymux.spark.batch.reference_shuffle import bucket_of
from polymux.testing.simulator import Simulation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_huge_session_begins_first_in_a_task_of_its_own(
    spark: "SparkSession", tmp_path: Path
) -> None:
    huge = Simulation("mplex", 5)
    huge.run(6000)
    capture = tmp_path / "all.pcapng"
    record([capture], [*conversations(50, 30), ("mplex", huge)])
    found = find_inputs([str(capture)])
    (tmp_path / "staging").mkdir()
    share = found[0].size // 4
    told = run_index_stage(
        spark, plan_index_tasks(found, 2, share), str(tmp_path / "staging"), CaptureLimits()
    )
    heaviest = max(told.flow_costs, key=lambda flow: told.flow_costs[flow])
    tasks = plan_analyze_tasks(told, 2, share // 2)
    assert tasks[0].flows == {heaviest}
    assert not any(
        bucket_of(heaviest, told.buckets) in task.buckets and task.accepts(heaviest)
        for task in tasks[1:]
    )
    without_spark([capture], tmp_path / "plain")
    done = analyze(
        spark, [str(capture)], str(tmp_path / "t"), content=True, max_partition_bytes=share
    )
    assert done.total.sessions == 31
    assert digest_tables(tmp_path / "t") == digest_tables(tmp_path / "plain")


@dataclass
class Flow:
    """A flow as `together` sees it: what it holds, and how many steps it takes."""

    held_bytes: int
    steps: int


@given(
    st.lists(st.builds(Flow, st.integers(0, MAX_HELD_BYTES * 2), st.integers(0, 5)), max_size=30)
)
def test_flows_side_by_side_are_few_and_hold_little(flows: list[Flow]) -> None:
    active: dict[int, Flow] = {}
    ended = []

    def steps(mine: Flow, companion: ReadAhead) -> Iterator[int]:
        active[id(mine)] = mine
        for _ in range(mine.steps):
            assert len(active) <= MAX_INTERLEAVED_FLOWS
            assert (
                len(active) == 1
                or sum(each.held_bytes for each in active.values()) <= MAX_HELD_BYTES
            )
            yield 1
        del active[id(mine)]
        ended.append(mine)

    assert sum(interleave(flows, steps)) == sum(f.steps for f in flows)
    assert sorted(map(id, ended)) == sorted(map(id, flows))


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=8))
def test_who_is_furthest_behind_has_the_next_turn(instants: list[list[int]]) -> None:
    waits: dict[int, int] = {}

    def steps(mine: Flow, companion: ReadAhead) -> Iterator[int]:
        for at in sorted(instants[mine.steps]):
            companion.next_timestamp = waits[mine.steps] = at
            yield 1
            assert at == min(waits.values())
        del waits[mine.steps]

    flows = [Flow(0, number) for number in range(len(instants))]
    assert sum(interleave(flows, steps)) == sum(map(len, instants))
