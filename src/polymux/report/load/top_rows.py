"""Selection of the top rows of groups from a table that is read in batches.

The result does not depend on the order of the rows or their division into batches, so that a report
depends only on the contents of the tables. Memory is bounded by the number of rows requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[object, ...]

_WORST_RANK: Final = (1 << 63) - 1


def index_in(column: pa.Array, values: Sequence[str]) -> pa.Array:
    """For each row the index of its text in `values` as int64; null if it is not among them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not values or not len(column):
        return pa.nulls(len(column), pa.int64())
    words = column.dictionary_encode()
    found = pc.index_in(words.dictionary, value_set=pa.array(values, pa.string()))
    return found.take(words.indices).cast(pa.int64())


class StreamKeyIndex:
    """Maps pairs (session, stream) to their index in the list it was created with.

    A stream of None stands for rows without a stream.
    """

    def __init__(self, pairs: Sequence[tuple[int, str | None]]) -> None:
        import pyarrow as pa

        self.streams = sorted({stream for _, stream in pairs if stream is not None})
        place: dict[str | None, int] = {stream: i for i, stream in enumerate(self.streams)}
        place[None] = len(self.streams)
        self.stride = len(place)
        self.keys = pa.array([s * self.stride + place[stream] for s, stream in pairs], pa.int64())

    def index_of(self, session: pa.Array, stream: pa.Array) -> pa.Array:
        """For each row the index of its pair as int64; null if the pair is not in the list."""
        import pyarrow as pa
        import pyarrow.compute as pc

        none = pa.scalar(len(self.streams), pa.int64())
        code = pc.if_else(pc.is_null(stream), none, index_in(stream, self.streams))
        key = pc.add(pc.multiply(session, self.stride), code)
        return pc.index_in(key, value_set=self.keys, skip_nulls=True).cast(pa.int64())


class TopRows:
    """For each group the rows of smallest rank, at most `limits[group]` of them.

    The first `key_columns` columns are never null and identify a row; they break ties.
    """

    def __init__(self, limits: Sequence[int], key_columns: int = 1) -> None:
        self.limits = list(limits)
        self.key_columns = key_columns
        self.kept: list[list[tuple[int, Row]]] = [[] for _ in limits]
        self.worst_ranks = [_WORST_RANK if limit > 0 else -_WORST_RANK for limit in limits]

    def add(self, group: pa.Array, rank: pa.Array, batch: pa.RecordBatch) -> None:
        """Add a batch, with each row's group (null: none) and rank as int64."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.limits:
            return
        bound = pa.array(self.worst_ranks, pa.int64()).take(group)
        mask = pc.fill_null(pc.less_equal(rank, bound), False)
        if not pc.any(mask).as_py():
            return
        table = pa.table(
            [group, rank, *batch.columns],
            names=["group", "rank", *(f"c{i}" for i in range(batch.num_columns))],
        ).filter(mask)
        table = self._top_of_each_group(table)
        columns = [column.to_pylist() for column in table.columns]
        for members in zip(*columns, strict=True):
            self._keep(members[0], members[1], members[2:])

    def rows(self, group: int) -> list[Row]:
        """The rows of a group, smallest rank first."""
        self._trim(group)
        return [row for _, row in self.kept[group]]

    def _top_of_each_group(self, table: pa.Table) -> pa.Table:
        """Only the top rows of each group, to shorten the Python loop that follows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if table.num_rows <= 256:
            return table
        ties = [(f"c{i}", "ascending") for i in range(self.key_columns)]
        table = table.sort_by([("group", "ascending"), ("rank", "ascending"), *ties])
        place = pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), table.num_rows))
        group = table["group"].combine_chunks()
        starts = (
            pa.table([group, place], names=["group", "place"])
            .group_by("group")
            .aggregate([("place", "min")])
        )
        first = starts["place_min"].take(pc.index_in(group, value_set=starts["group"]))
        limit = pa.array(self.limits, pa.int64()).take(group)
        return table.filter(pc.less(pc.subtract(place, first), limit))

    def _keep(self, group: int, rank: int, row: Row) -> None:
        kept = self.kept[group]
        kept.append((rank, row))
        if len(kept) >= 2 * self.limits[group] + 16:
            self._trim(group)

    def _trim(self, group: int) -> None:
        kept = self.kept[group]
        kept.sort(key=lambda entry: (entry[0], entry[1][: self.key_columns]))
        limit = self.limits[group]
        del kept[limit:]
        if kept and len(kept) == limit:
            self.worst_ranks[group] = kept[-1][0]
