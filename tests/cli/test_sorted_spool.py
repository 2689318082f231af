"""Rows collected in any order come out sorted, also where they are many or only the first count."""

from __future__ import annotations

import random

import pytest

from polymux.cli.support import sorted_spool
from polymux.cli.support.sorted_spool import SortedSpool

Row = tuple[tuple[int, int], bytes]


def collected(rows: list[Row], max_rows: int = 0) -> list[bytes]:
    spool = SortedSpool(max_rows)
    for key, row in rows:
        spool.add(key, row)
    found = list(spool.rows())
    assert b"".join(spool.joined_rows()) == b"".join(found)
    spool.close()
    return found


def some_rows(count: int) -> list[Row]:
    chance = random.Random(count)
    return [
        ((chance.randrange(-3, 3), chance.randrange(-(2**62), 2**62) % 7), b"%d" % n * (n % 5))
        for n in range(count)
    ]


@pytest.mark.parametrize("at_once", [10_000, 7])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_rows_are_sorted_by_key_and_then_by_arrival(
    count: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_spool, "MAX_SORTED_AT_ONCE", at_once)
    monkeypatch.setattr(sorted_spool, "MAX_BYTES_IN_MEMORY", 100)
    rows = some_rows(count)
    assert collected(rows) == [row for _, row in sorted(rows, key=lambda each: each[0])]


@pytest.mark.parametrize("at_once", [10_000, 7])
def test_only_the_first_rows_are_kept(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_spool, "MAX_SORTED_AT_ONCE", at_once)
    rows = some_rows(1000)
    expected = [row for _, row in sorted(rows, key=lambda each: each[0])]
    for most in (1, 10, 400, 2000):
        assert collected(rows, most) == expected[:most]


def test_rows_that_arrived_in_order_are_joined() -> None:
    spool = SortedSpool()
    for number in range(3 * sorted_spool.MAX_JOINED):
        spool.add((0, number), b"%d " % number)
    assert len(list(spool.joined_rows())) <= 4
    spool.close()
