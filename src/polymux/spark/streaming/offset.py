"""The offset of the stream: how far a growing folder of captures has been read.

The rows of a micro-batch depend only on its start and end offset and the files they name, so that a
batch that is repeated gives the same rows.
"""

from __future__ import annotations

import base64
import functools
import heapq
import itertools
import json
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

Ranges = tuple[tuple[int, int], ...]  # first and last number of each, ascending and apart
Rows = tuple[tuple[int, int, Ranges], ...]  # ranges of first numbers, and of the second of each

_NOTE = struct.Struct(">8sq")  # digest of a flow, nanoseconds
_NUMBERS = re.compile(r"([0-9]+)")
_NO_HOLE = (10**256, 10**256)  # beyond the numbers of all file names


class NameRanges(Set[str]):
    """An immutable set of file names, kept as ranges of the last two numbers in them: those of a
    rotation (`NAME-00001.EXT`), or of a day and an hour (`2026-11-18/09.EXT`).

    The offset is written for every batch, and a recorder may rotate forever: what the set costs
    depends on the number of ranges, not on that of the names. Of names that differ only in these
    numbers, it has the newest modification time, too: a ring of files uses names again, and a file
    that was modified later is another one.
    """

    __slots__ = ("_newest_ms", "_rows")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._newest_ms: dict[str, int] = {}  # by group, if it is known
        numbers: dict[str, dict[int, list[int]]] = {}
        for name in names:
            group, one, two = _group_of(name)
            numbers.setdefault(group, {}).setdefault(one, []).append(two)
        self._rows = {
            group: _joined((one, one, _ranges(sorted(by_first[one]))) for one in sorted(by_first))
            for group, by_first in numbers.items()
        }

    def with_names(self, names: Iterable[str]) -> NameRanges:
        """Return the set with these names, too."""
        return self._combined(names, _union)

    def with_files(self, files: Mapping[str, int]) -> NameRanges:
        """Return the set with these names, too; each has a modification time in milliseconds."""
        result = self.with_names(files)
        for name, modified_ms in files.items():
            group = _group_of(name)[0]
            result._newest_ms[group] = max(modified_ms, result._newest_ms.get(group, modified_ms))
        return result

    def is_another(self, name: str, modified_ms: int) -> bool:
        """Whether a file of this name in the set was modified later than those that are meant."""
        newest_ms = self._newest_ms.get(_group_of(name)[0])
        return newest_ms is not None and modified_ms > newest_ms and name in self

    def without_names(self, names: Iterable[str]) -> NameRanges:
        """Return the set without these names."""
        return self._combined(names, _difference)

    def pack(self) -> dict[str, str]:
        """Encode the set for JSON."""
        return {
            group: ";".join(
                f"{_text((first, last))}:{','.join(map(_text, ranges))}"
                for first, last, ranges in rows
            )
            + (f"@{self._newest_ms[group]}" if group in self._newest_ms else "")
            for group, rows in self._rows.items()
        }

    @classmethod
    def unpack(cls, packed: dict[str, str]) -> NameRanges:
        """Decode the result of `pack`."""
        unpacked = cls()
        for group, text in packed.items():
            rows = []
            text, _, newest_ms = text.partition("@")
            if newest_ms:
                unpacked._newest_ms[group] = int(newest_ms)
            for row in text.split(";"):
                numbers, _, ranges = row.partition(":")
                rows.append((*_range(numbers), tuple(map(_range, ranges.split(",")))))
            unpacked._rows[group] = tuple(rows)
        return unpacked

    def _combined(
        self, names: Iterable[str], act: Callable[[Ranges, Ranges], Ranges]
    ) -> NameRanges:
        result = NameRanges()
        result._rows.update(self._rows)
        result._newest_ms.update(self._newest_ms)
        for group, others in NameRanges(names)._rows.items():
            rows = _combine(result._rows.pop(group, ()), others, act)
            if rows:
                result._rows[group] = rows
            else:
                result._newest_ms.pop(group, None)
        return result

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        group, one, two = _group_of(name)
        ranges = _ranges_at(self._rows.get(group, ()), one)
        place = bisect_right(ranges, two, key=itemgetter(0)) - 1
        return place >= 0 and two <= ranges[place][1]

    def __iter__(self) -> Iterator[str]:
        for group, rows in self._rows.items():
            kind, *texts = group.split("\0")
            for first, last, ranges in rows:
                for one, (begin, end) in itertools.product(range(first, last + 1), ranges):
                    for two in range(begin, end + 1):
                        yield _name_of(kind, texts, one, two)

    def __len__(self) -> int:
        return sum(
            (last - first + 1) * sum(end - begin + 1 for begin, end in ranges)
            for rows in self._rows.values()
            for first, last, ranges in rows
        )

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NameRanges):
            return self._rows == other._rows and self._newest_ms == other._newest_ms
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]  # like every set that is compared by its names


def _group_of(name: str) -> tuple[str, int, int]:
    """The names that differ from this one only in their last two numbers, and these.

    No file name contains NUL.
    """
    parts = _NUMBERS.split(name)
    if len(parts) >= 5:
        *before, one, between, two, after = parts
        texts = ("".join(before), str(len(one)), between, str(len(two)), after)
        return "\0".join(("2", *texts)), int(one), int(two)
    if len(parts) == 3:
        before_it, number, after = parts
        return f"1\0{before_it}\0{len(number)}\0{after}", 0, int(number)
    return f"0\0{name}", 0, 0


def _name_of(kind: str, texts: Sequence[str], one: int, two: int) -> str:
    if kind == "0":
        return texts[0]
    if kind == "1":
        return f"{texts[0]}{two:0{texts[1]}}{texts[2]}"
    return f"{texts[0]}{one:0{texts[1]}}{texts[2]}{two:0{texts[3]}}{texts[4]}"


def _ranges(numbers: Iterable[int]) -> Ranges:
    """The ranges of numbers that ascend."""
    return _union(tuple((number, number) for number in numbers), ())


def _union(one: Ranges, other: Ranges) -> Ranges:
    merged: list[tuple[int, int]] = []
    for first, last in heapq.merge(one, other):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return tuple(merged)


def _difference(ranges: Ranges, removed: Ranges) -> Ranges:
    left: list[tuple[int, int]] = []
    holes = iter(removed)
    begin, end = next(holes, _NO_HOLE)
    for first, last in ranges:
        while end < first:
            begin, end = next(holes, _NO_HOLE)
        while begin <= last:
            if begin > first:
                left.append((first, begin - 1))
            first = end + 1
            if end > last:
                break
            begin, end = next(holes, _NO_HOLE)
        if first <= last:
            left.append((first, last))
    return tuple(left)


def _joined(rows: Iterable[tuple[int, int, Ranges]]) -> Rows:
    """Join rows that follow each other and have the same ranges; leave out empty ones."""
    joined: list[tuple[int, int, Ranges]] = []
    for first, last, ranges in rows:
        if joined and joined[-1][1] + 1 == first and joined[-1][2] == ranges:
            joined[-1] = joined[-1][0], last, ranges
        elif ranges:
            joined.append((first, last, ranges))
    return tuple(joined)


def _combine(rows: Rows, others: Rows, act: Callable[[Ranges, Ranges], Ranges]) -> Rows:
    """Combine the ranges of every number with those that `others`, not empty, have of it."""
    begin = bisect_left(rows, others[0][0] - 1, key=itemgetter(1))
    end = bisect_right(rows, others[-1][1] + 1, key=itemgetter(0))
    near = rows[begin:end]
    bounds = sorted({bound for row in (*near, *others) for bound in (row[0], row[1] + 1)})
    pieces = (
        (first, bound - 1, act(_ranges_at(near, first), _ranges_at(others, first)))
        for first, bound in itertools.pairwise(bounds)
    )
    return (*rows[:begin], *_joined(pieces), *rows[end:])


def _ranges_at(rows: Rows, number: int) -> Ranges:
    place = bisect_right(rows, number, key=itemgetter(0)) - 1
    return rows[place][2] if place >= 0 and number <= rows[place][1] else ()


def _text(each: tuple[int, int]) -> str:
    first, last = each
    return str(first) if first == last else f"{first}-{last}"


def _range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class FilePart(NamedTuple):
    """A part of a file that was read in one micro-batch; times are milliseconds since the epoch."""

    arrived_ms: int  # the clock of that micro-batch
    modified_ms: int  # last modification of the file, but not before the previous micro-batch
    end_offset: int  # in the file
    file_time_ms: int = 0  # last modification of the file as the file system has it


@dataclass
class FolderOffset:
    """An offset: `files` that are still needed, by name within the folder, with the parts that were
    read, and the names of `forgotten` files, which were read and are no longer needed. `indexing`
    are new files that the micro-batch up to this offset only indexes; the next one reads them.
    `ended` are notes of flows that are in `files` and were in forgotten ones, too; see
    `OpenSessions.notes_without`. None of these is ever changed."""

    clock_ms: int = 0  # time of the micro-batch, since the epoch
    files: dict[str, tuple[FilePart, ...]] = field(default_factory=dict)
    forgotten: NameRanges = field(default_factory=NameRanges)
    indexing: frozenset[str] = frozenset()
    ended: dict[bytes, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, int | str]:
        """Encode the offset as Spark stores it; `gone` has the forgotten names."""
        files = {name: [list(part) for part in parts] for name, parts in self.files.items()}
        return {
            "clock": self.clock_ms,
            "files": json.dumps(files, sort_keys=True, separators=(",", ":")),
            "gone": json.dumps(self.forgotten.pack(), sort_keys=True, separators=(",", ":")),
            "indexing": json.dumps(sorted(self.indexing)),
            "ended": _pack_notes(self.ended),
        }

    @classmethod
    def from_dict(cls, offset: dict[str, int | str]) -> FolderOffset:
        files = json.loads(str(offset["files"]))
        return cls(
            int(offset["clock"]),
            {name: tuple(FilePart(*part) for part in parts) for name, parts in files.items()},
            _names_of(str(offset["gone"])),
            frozenset(json.loads(str(offset["indexing"]))),
            _unpack_notes(str(offset["ended"])),
        )

    def arrivals(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """Return the times at which parts arrived, each with the (name, index) of the parts."""
        by_time: dict[int, list[tuple[str, int]]] = {}
        for name in sorted(self.files):
            for number, part in enumerate(self.files[name]):
                by_time.setdefault(part.arrived_ms, []).append((name, number))
        return sorted(by_time.items())


@functools.lru_cache(maxsize=4)  # Spark hands the same offsets over several times in a batch
def _names_of(packed: str) -> NameRanges:
    return NameRanges.unpack(json.loads(packed))


def _pack_notes(ended: dict[bytes, int]) -> str:
    packed = b"".join(_NOTE.pack(flow, until_ns) for flow, until_ns in sorted(ended.items()))
    return base64.b64encode(packed).decode()


@functools.lru_cache(maxsize=4)
def _unpack_notes(packed: str) -> dict[bytes, int]:
    return dict(_NOTE.iter_unpack(base64.b64decode(packed)))
