"""Arrays equal those of pyarrow, and pandas is not imported."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymux.analysis.output.arrow_batches import SMALL_ARRAY_LENGTH, make_array, make_scalar

pa.array([0])  # imports pandas here, which takes longer than an example may
INSTANT = pa.timestamp("us", tz="UTC")
numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text("aZ 0\x00\x7fäß€漢\ufffd😀", max_size=6)
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), numbers),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.decimal128(20, 0), st.integers(1 - 10**20, 10**20 - 1) | st.integers(0, 2**64 - 1)),
    (INSTANT, numbers),
    (pa.string(), texts),
    (pa.binary(), st.binary(max_size=6)),
    (pa.list_(pa.string()), st.lists(st.none() | texts, max_size=4)),
]
columns = st.sampled_from(KINDS).flatmap(
    lambda kind: st.tuples(st.just(kind[0]), st.lists(st.none() | kind[1], max_size=20))
)


@given(columns)
@example((pa.string(), []))
@example((pa.list_(pa.string()), [None, [], ["a", None]]))
@example((pa.string(), ["ä", None, "", "b"]))
@example((pa.decimal128(20, 0), [2**64 - 1, None]))
def test_a_column_is_what_pyarrow_would_make_of_it(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    made = make_array(values, kind)
    made.validate(full=True)
    assert made.type == kind
    if kind == INSTANT:  # some are outside the range of datetime
        made, kind = made.view(pa.int64()), pa.int64()
    assert made.equals(pa.array(values, kind))


@pytest.mark.parametrize(("kind", "value"), [
    (pa.int64(), 7), (pa.uint64(), 2**64 - 1), (pa.decimal128(20, 0), 10**20 - 1), (INSTANT, 7),
    (pa.string(), "ä"), (pa.binary(), b"x"), (pa.list_(pa.string()), ["a", None]),
])  # fmt: skip
@pytest.mark.parametrize(
    "rows",
    [
        SMALL_ARRAY_LENGTH - 1,
        SMALL_ARRAY_LENGTH,
        SMALL_ARRAY_LENGTH + 1,
        10 * SMALL_ARRAY_LENGTH + 3,
    ],
)
def test_few_rows_and_many_are_made_alike(kind: pa.DataType, value: Any, rows: int) -> None:
    values = [None if n % 3 == 1 else value for n in range(rows)]
    made = make_array(values, kind)
    made.validate(full=True)
    assert made.null_count == len(values) - sum(value is not None for value in values)
    assert made.equals(pa.array(values, kind))


def test_a_tuple_is_as_good_as_a_list() -> None:
    assert make_array(("a", None), pa.string()).to_pylist() == ["a", None]
    assert make_scalar(3, pa.int64()) == pa.scalar(3, pa.int64())
    assert not make_scalar(None, pa.int64()).is_valid


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), INSTANT, pa.decimal128(20, 0)])
def test_a_number_that_is_too_large_is_an_error(kind: pa.DataType) -> None:
    with pytest.raises(OverflowError):
        make_array([10**20], kind)
