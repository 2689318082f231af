"""Task planning: every span indexed once, every flow analyzed once, the heaviest first."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.capture import FlowRefs
from polymux.capture.io.discovery import CaptureFile
from polymux.spark.batch import reference_shuffle as exchange
from polymux.spark.batch.analyze_stage import HEAVY_FLOW_COST, plan_analyze_tasks
from polymux.spark.batch.index_stage import MAX_TASK_BYTES, MIN_TASK_BYTES, plan_index_tasks
from polymux.spark.batch.reference_shuffle import (
    IndexResult,
    IndexTotals,
    ReferenceReader,
    ReferenceWriter,
    bucket_of,
)

FLOWS = st.binary(min_size=36, max_size=36)


def found_in(spans: list[dict[bytes, int]], reported: int = 100) -> IndexTotals:
    """What index tasks would tell about flows of these weights, `reported` buckets one by one."""
    told = IndexTotals()
    for weights in spans:
        found = IndexResult("x", cost=sum(weights.values()))
        for flow, weight in weights.items():
            bucket = bucket_of(flow)
            found.bucket_costs[bucket] = found.bucket_costs.get(bucket, 0) + weight
        heaviest = sorted(weights, key=lambda flow: -weights[flow])[:3]
        found.heavy_flow_costs = {flow: weights[flow] for flow in heaviest}
        costs = sorted(found.bucket_costs.items(), key=lambda pair: -pair[1])
        found.bucket_costs = dict(costs[:reported])
        told.add(IndexResult.unpack(found.pack()))
    return told


@given(
    st.lists(st.dictionaries(FLOWS, st.integers(1, 1 << 30), max_size=8), max_size=4),
    st.integers(1, 9),
    st.sampled_from([0, 1000, 1 << 20]),
    st.sampled_from([0, 1, 2, 100]),
)
def test_every_flow_is_wanted_by_exactly_one_task(
    spans: list[dict[bytes, int]], cores: int, target: int, reported: int
) -> None:
    tasks = plan_analyze_tasks(found_in(spans, reported), cores, target)
    for flow in {flow for span in spans for flow in span}:
        wanted = [task for task in tasks if bucket_of(flow) in task.buckets and task.accepts(flow)]
        assert len(wanted) == 1


def test_a_huge_flow_has_a_task_of_its_own_and_begins_first() -> None:
    flows = {bytes([n]) * 36: HEAVY_FLOW_COST // 100 for n in range(50)}
    huge, large = b"h" * 36, b"l" * 36
    tasks = plan_analyze_tasks(
        found_in(
            [
                {**flows, huge: 40 * HEAVY_FLOW_COST, large: 2 * HEAVY_FLOW_COST},
                {huge: HEAVY_FLOW_COST},
            ]
        ),
        2,
    )
    assert tasks[0].flows == {huge}
    assert tasks[1].flows == {large}
    assert [flow for task in tasks[2:] for flow in task.flows] in ([huge, large], [large, huge])
    assert not any(task.only_flows for task in tasks[2:])
    assert len(tasks) == 2 + 4


@pytest.mark.parametrize("size", [250_000_000, 900_000_000, MAX_TASK_BYTES])
@pytest.mark.parametrize("cores", [1, 2, 3, 16])
def test_every_core_has_as_many_tasks_and_none_has_too_much(size: int, cores: int) -> None:
    captures = [CaptureFile(f"/nowhere/{n}", size + 7 * n) for n in range(48)]
    tasks = plan_index_tasks(captures, cores)
    sizes = [sum(size + 7 * int(span.path[9:]) for span in task) for task in tasks]
    assert sum(map(len, tasks)) == 48
    assert len(tasks) % cores == 0
    assert max(sizes) <= MAX_TASK_BYTES * 1.25
    flows = {bytes([n]) * 36: size // 17 for n in range(64)}
    walks = plan_analyze_tasks(found_in([flows]), cores)
    assert len(walks) % cores == 0
    assert max(sum(flows[f] for f in flows if bucket_of(f) in each.buckets) for each in walks) <= (
        MAX_TASK_BYTES * 1.25
    )


def test_small_files_share_a_task_and_none_is_lost() -> None:
    captures = [CaptureFile(f"/nowhere/{n}", MIN_TASK_BYTES // 3) for n in range(10)]
    tasks = plan_index_tasks(captures, 2)
    assert [span.path for task in tasks for span in task] == [each.path for each in captures]
    assert [len(task) for task in tasks] == [5, 5]


def test_rows_come_back_as_they_were_written_and_only_those_wanted(tmp_path: Path) -> None:
    rows = [
        FlowRefs(
            bytes([n // 2]) * 36, n % 2, f"f{n}", n, 100 - n, 200, bytes([n]) * 32 * n, ("", "é")
        )
        for n in range(20)
    ]  # fmt: skip
    with ReferenceWriter(str(tmp_path)) as writer:
        writer.add(rows[:7])
        writer.add(rows[7:])
    totals = IndexTotals()
    totals.add(writer.result)
    tasks = plan_analyze_tasks(totals, 1, 400)
    assert len(tasks) > 3
    names = [writer.result.name]
    read = [[flow.rows() for flow in ReferenceReader(str(tmp_path), names, task)] for task in tasks]
    back = sorted((row for task in read for flow in task for row in flow), key=lambda r: r.start)
    assert back == rows
    assert all(len({row.flow for row in flow}) == 1 for task in read for flow in task)


def test_an_index_task_that_fails_leaves_no_rows_behind(tmp_path: Path) -> None:
    row = FlowRefs(bytes(36), 0, "f", 0, 0, 0, bytes(32))
    try:
        with ReferenceWriter(str(tmp_path)) as writer:
            writer.add([row])
            raise InterruptedError
    except InterruptedError:
        assert list((tmp_path / "index").iterdir()) == []


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 1000)), max_size=60),
    st.integers(1, 6),
)
def test_long_rows_are_cut_at_the_same_places_in_both_directions(
    packets: list[tuple[int, int]], most: int
) -> None:
    refs, offset = [b"", b""], 50
    for direction, gap in packets:
        offset += gap
        record = (offset << 20 | 7).to_bytes(8, "little") + offset.to_bytes(8, "little") + bytes(16)
        refs[direction] += record
    rows = [
        FlowRefs(
            bytes(36), n, "f", 24, exchange.packet_offset(data, 0),
            exchange.packet_offset(data, len(data) - 32), data,
        )
        for n, data in enumerate(refs)
        if data
    ]  # fmt: skip
    patch = pytest.MonkeyPatch()
    patch.setattr(exchange, "MAX_ROW_REF_BYTES", most * 32)
    pieces = [piece for group in exchange._split_long_rows(rows) for piece in group]
    patch.undo()
    for row in rows:
        mine = [piece for piece in pieces if piece.direction == row.direction]
        assert b"".join(piece.refs for piece in mine) == row.refs
        assert [piece.start for piece in mine] == sorted({piece.start for piece in mine})
        assert all(piece.first_at == exchange.packet_offset(piece.refs, 0) for piece in mine)
    longest = max((len(data) for data in refs), default=0)
    if longest > most * 32:
        ends = {piece.start: piece.last_at for piece in sorted(pieces, key=lambda p: p.last_at)}
        starts = sorted(ends)
        assert all(ends[a] < b for a, b in pairwise(starts))
        assert max(len(p.refs) for p in pieces) <= longest
