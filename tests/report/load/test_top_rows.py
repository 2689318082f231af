"""The selection of rows depends neither on their order nor on their division into batches."""

import random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.report.budget import Budget, fair_shares
from polymux.report.load.top_rows import StreamKeyIndex, TopRows, index_in

ROWS = st.lists(
    st.tuples(st.integers(0, 3) | st.none(), st.integers(-5, 5), st.integers(0, 10**6)),
    max_size=400,
    unique_by=lambda row: row[2],
)


def offered(rows: list[tuple[int | None, int, int]], limits: list[int], cut: int) -> list[object]:
    best = TopRows(limits)
    for first in range(0, len(rows), cut):
        part = rows[first : first + cut]
        best.add(
            pa.array([row[0] for row in part], pa.int64()),
            pa.array([row[1] for row in part], pa.int64()),
            pa.record_batch([pa.array([row[2] for row in part], pa.int64())], names=["key"]),
        )
    return [best.rows(group) for group in range(len(limits))]


@settings(deadline=None)  # the first call imports pyarrow
@given(ROWS, st.integers(1, 400), st.permutations([0, 1, 4, 9]))
def test_each_group_keeps_its_smallest_ranks(
    rows: list[tuple[int | None, int, int]], cut: int, limits: list[int]
) -> None:
    wanted = [
        [(key,) for _, key in sorted((r, k) for g, r, k in rows if g == group)][:limit]
        for group, limit in enumerate(limits)
    ]
    assert offered(rows, limits, cut) == wanted


@settings(deadline=None)
@given(ROWS, st.integers(1, 400), st.randoms(use_true_random=False))
def test_order_and_splits_do_not_matter(
    rows: list[tuple[int | None, int, int]], cut: int, chance: random.Random
) -> None:
    shuffled = list(rows)
    chance.shuffle(shuffled)
    limits = [3, 3, 3, 300]
    assert offered(rows, limits, 400) == offered(shuffled, limits, cut)


def test_a_large_batch_is_cut_down_before_the_slow_loop() -> None:
    best = TopRows([5])
    rows = 100_000
    ranks = pa.array(range(rows, 0, -1), pa.int64())
    batch = pa.record_batch([ranks], names=["key"])
    best.add(pa.repeat(pa.scalar(0, pa.int64()), rows), ranks, batch)
    assert len(best.kept[0]) == 5
    assert best.rows(0) == [(1,), (2,), (3,), (4,), (5,)]


def test_codes_are_places_in_the_list_or_null() -> None:
    assert index_in(pa.array(["b", None, "x", "a"]), ["a", "b"]).to_pylist() == [1, None, None, 0]
    assert index_in(pa.array(["b"]), []).to_pylist() == [None]
    assert index_in(pa.array([], pa.string()), ["a"]).to_pylist() == []


def test_pairs_tell_sessions_apart_and_know_rows_without_a_stream() -> None:
    pairs = StreamKeyIndex([(0, "d1"), (1, "d1"), (1, "a2"), (1, None)])
    session = pa.array([0, 1, 1, 1, 0, None, 0], pa.int64())
    stream = pa.array(["d1", "d1", "a2", None, None, "d1", "zz"])
    assert pairs.index_of(session, stream).to_pylist() == [0, 1, 2, 3, None, None, None]


@given(st.lists(st.integers(0, 10**7), max_size=60), st.integers(0, 10**5))
def test_shares_stay_within_the_total_and_the_wants(wants: list[int], total: int) -> None:
    shares = fair_shares(wants, total)
    assert sum(shares) <= total
    assert all(0 <= got <= want for got, want in zip(shares, wants, strict=True))
    if sum(wants) <= total:
        assert shares == wants
    even = total // len(wants) if wants else 0
    assert all(got >= min(want, even) for got, want in zip(shares, wants, strict=True))


def test_a_scaled_budget_keeps_a_little_of_everything() -> None:
    small = Budget().scaled(0.001)
    assert small.sessions == small.frames // 2 == 4
    assert Budget().scaled(1.0) == Budget()
