"""Rows in the order of their sessions, more of them than fit into memory.

`SortedRows` takes record batches in the order in which the analysis makes them and gives their rows
sorted by place (the partition of a session, a small number) and session. The rows of a session keep
their order, which is that of their time. What is added is sorted in memory a portion at a time and
written to a temporary file, as a run; reading merges the runs. Memory: a portion, then a batch of
each run.

Batches that have many rows of each session, as those of long sessions have, are divided and put in
order without copying a row. Others are copied.
"""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Final

from polymux.analysis.output.arrow_batches import make_array
from polymux.core.errors import MissingExtra

try:
    import pyarrow as pa
    import pyarrow.compute as pc
except ImportError:
    raise MissingExtra("captures", "writing tables") from None

SESSION: Final = "session_id"
RUN_BATCH_ROWS: Final = 8192  # most rows of a batch in a run
RUN_BATCH_BYTES: Final = 256 << 10  # and bytes; one batch of each run is held while merging
MIN_SEGMENT_ROWS: Final = 512  # fewer rows of a session in one place are copied, not sliced

Key = tuple[int, str]  # the place of a session, and its id
PlaceOf = Callable[[str], int]


class SortedRows:
    """Collects the rows of one table, and yields them sorted. `place_of`: see above.

    Raises:
        OSError: The temporary file cannot be written.
    """

    def __init__(self, place_of: PlaceOf) -> None:
        self._place_of = place_of
        self._held: list[pa.RecordBatch] = []
        self._spill: _RunFile | None = None

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Add batches, to be held until `spill` or the end. All have the same schema."""
        self._held += batches

    def spill(self) -> None:
        """Write what is held to the temporary file."""
        if self._held:
            if self._spill is None:
                self._spill = _RunFile(self._held[0].schema)
            ordered = joined(sort_by_session(self._held, self._place_of))
            self._held = []
            self._spill.add_run(ordered, self._key_at)

    def merged(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order. Each batch has rows of one place only."""
        if self._spill is None:
            held, self._held = self._held, []
            ordered = sort_by_session(held, self._place_of)
            held.clear()
            for batch in ordered:
                yield from self._by_place(batch)
            return
        self.spill()
        cursors = [_Cursor(run, self._key_at) for run in self._spill.runs()]
        for batch in self._merge(cursors):
            yield from self._by_place(batch)

    def close(self) -> None:
        """Remove the temporary file. Batches that were yielded stay valid."""
        if self._spill is not None:
            self._spill.close()
            self._spill = None
        self._held = []

    def _key_at(self, batch: pa.RecordBatch, row: int) -> Key:
        session = str(batch.column(SESSION)[row])
        return self._place_of(session), session

    def _by_place(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Divide a sorted batch where the place changes."""
        begin, last = 0, self._key_at(batch, batch.num_rows - 1)[0]
        while (place := self._key_at(batch, begin)[0]) < last:
            stop = _first_row_from(batch, (place + 1, ""), self._key_at)
            yield batch.slice(begin, stop - begin)
            begin = stop
        yield batch.slice(begin)

    def _merge(self, cursors: list[_Cursor]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all runs in order.

        Each step takes from every run the rows before a session of which later batches may have
        more. Where that gives none, the first session has more rows than a batch: it is passed on
        as it is stored, one run after another.
        """
        while len(active := [cursor for cursor in cursors if not cursor.at_end]) > 1:
            first = min(cursor.first for cursor in active)
            bound = min(cursor.last for cursor in active)
            if bound > first:
                pieces = [piece for each in active if (piece := each.take_before(bound)).num_rows]
                yield from sort_by_session(pieces, self._place_of)
                continue
            for cursor in active:
                while not cursor.at_end and cursor.first == first:
                    yield cursor.take_through(first)
        for cursor in active:
            while not cursor.at_end:
                yield cursor.take_rest()


class _RunFile:
    """A temporary file with sorted runs, one after another. It has no name."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="polymux-rows-")  # noqa: SIM115
        self._starts: list[list[int]] = []  # of each run: where its streams begin
        self._last: Key | None = None

    def add_run(self, batch: pa.RecordBatch, key_at: Callable[[pa.RecordBatch, int], Key]) -> None:
        """Append a sorted batch: to the last run, where it continues that, or as another."""
        first = key_at(batch, 0)
        if self._last is None or first < self._last:
            self._starts.append([])
        self._last = key_at(batch, batch.num_rows - 1)
        self._starts[-1].append(self._file.tell())
        row_bytes = batch.nbytes // batch.num_rows + 1
        rows = max(1, min(RUN_BATCH_ROWS, RUN_BATCH_BYTES // row_bytes))
        # The dictionaries are those of the whole batch, and are written once.
        with pa.ipc.new_stream(self._file, self._schema) as stream:
            for begin in range(0, batch.num_rows, rows):
                stream.write_batch(batch.slice(begin, rows))
        self._file.flush()

    def runs(self) -> list[Iterator[pa.RecordBatch]]:
        """The batches of each run, read as they are needed."""
        return [self._read(starts) for starts in self._starts]

    def _read(self, starts: list[int]) -> Iterator[pa.RecordBatch]:
        for start in starts:
            place = pa.PythonFile(_Part(self._file.fileno(), start), mode="r")
            with pa.ipc.open_stream(place) as stream:
                yield from stream

    def close(self) -> None:
        self._file.close()


class _Part:
    """Reads an open file from a place on, beside other readers of it."""

    closed = False

    def __init__(self, descriptor: int, position: int) -> None:
        self._descriptor = descriptor
        self._position = position

    def read(self, size: int) -> bytes:
        data = os.pread(self._descriptor, size, self._position)
        self._position += len(data)
        return data

    def close(self) -> None:
        self.closed = True


class _Cursor:
    """The next rows of a run: those of one batch. `first` and `last` are their keys."""

    def __init__(
        self,
        batches: Iterator[pa.RecordBatch],
        key_at: Callable[[pa.RecordBatch, int], Key],
    ) -> None:
        self._batches = batches
        self._key_at = key_at
        self.at_end = False
        self._load()

    def _load(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self.at_end = True
            return
        self._batch = batch
        self.first = self._key_at(batch, 0)
        self.last = self._key_at(batch, batch.num_rows - 1)

    def take_before(self, bound: Key) -> pa.RecordBatch:
        """Take the rows whose keys are less; the last row is never one of them."""
        return self._take(_first_row_from(self._batch, bound, self._key_at))

    def take_through(self, key: Key) -> pa.RecordBatch:
        """Take the rows with this key from the batch, or with a lesser one."""
        if self.last <= key:
            return self.take_rest()
        return self._take(_first_row_from(self._batch, (key[0], key[1] + "\0"), self._key_at))

    def take_rest(self) -> pa.RecordBatch:
        """Take all rows of the batch."""
        return self._take(self._batch.num_rows)

    def _take(self, count: int) -> pa.RecordBatch:
        taken = self._batch.slice(0, count)
        if count == self._batch.num_rows:
            self._load()
        elif count:
            self._batch = self._batch.slice(count)
            self.first = self._key_at(self._batch, 0)
        return taken


def _first_row_from(
    batch: pa.RecordBatch, bound: Key, key_at: Callable[[pa.RecordBatch, int], Key]
) -> int:
    """The first row of a sorted batch whose key is not less than the bound."""
    return bisect_left(range(batch.num_rows), bound, key=lambda row: key_at(batch, row))


def sort_by_session(
    batches: Sequence[pa.RecordBatch], place_of: PlaceOf = lambda _: 0
) -> list[pa.RecordBatch]:
    """The rows of these batches, by the place and id of their session; otherwise in their order."""
    segments: list[tuple[Key, int, int, int]] = []  # key, number of the batch, first row, rows
    rows = sum(batch.num_rows for batch in batches)
    for number, batch in enumerate(batches):
        sessions = _encoded(batch.column(SESSION))
        runs = pc.run_end_encode(sessions.indices)
        if (len(segments) + len(runs.values)) * MIN_SEGMENT_ROWS > max(rows, 4 * MIN_SEGMENT_ROWS):
            return [_copied_in_order(batches, place_of)] if rows else []
        names = sessions.dictionary
        begin = 0
        for end, index in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
            session = str(names[index])
            segments.append(((place_of(session), session), number, begin, end - begin))
            begin = end
    segments.sort()
    return [batches[number].slice(begin, count) for _, number, begin, count in segments]


def _copied_in_order(batches: Sequence[pa.RecordBatch], place_of: PlaceOf) -> pa.RecordBatch:
    """One batch with the rows of these, in order."""
    batch = joined(batches)
    sessions = _encoded(batch.column(SESSION))
    names = sessions.dictionary.to_pylist()
    ranks = [0] * len(names)
    ordered = sorted(range(len(names)), key=lambda n: (place_of(names[n]), names[n]))
    for rank, index in enumerate(ordered):
        ranks[index] = rank
    keys = make_array(ranks, pa.int32()).take(sessions.indices)
    return without_unused_names(batch.take(pc.sort_indices(keys)))


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of these; it shares no memory with them if there are several."""
    if len(batches) == 1:
        return batches[0]
    (batch,) = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks().to_batches()
    return batch


def without_unused_names(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with dictionaries of at most as many values as it has rows.

    A batch that was cut from another keeps its dictionaries, and with short sessions that of their
    ids is as large as the other batch.
    """
    large = [
        pa.types.is_dictionary(column.type) and len(column.dictionary) > batch.num_rows
        for column in batch.columns
    ]
    if not any(large):
        return batch
    columns = [
        column.dictionary_decode().dictionary_encode() if is_large else column
        for column, is_large in zip(batch.columns, large, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    return column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
