"""The offset of the stream: how far a growing folder of captures has been read.

The rows of a micro-batch depend only on its start and end offset and the files they name, so that a
batch that is repeated gives the same rows.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)


class FilePart(NamedTuple):
    """A part of a file that was read in one micro-batch; times are milliseconds since the epoch."""

    arrived_ms: int  # the clock of that micro-batch
    modified_ms: int  # last modification of the file, but not before the previous micro-batch
    end_offset: int  # in the file


@dataclass
class FolderOffset:
    """An offset: `files` that are still needed, by name within the folder, with the parts that were
    read, and the names of `forgotten` files, which were read and are no longer needed. `indexing`
    are new files that the micro-batch up to this offset only indexes; the next one reads them."""

    clock_ms: int = 0  # time of the micro-batch, since the epoch
    files: dict[str, tuple[FilePart, ...]] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()
    indexing: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, int | str]:
        """Encode the offset as Spark stores it; `gone` has the forgotten names."""
        files = {name: [list(part) for part in parts] for name, parts in self.files.items()}
        return {
            "clock": self.clock_ms,
            "files": json.dumps(files, sort_keys=True, separators=(",", ":")),
            "gone": json.dumps(pack_names(self.forgotten), sort_keys=True, separators=(",", ":")),
            "indexing": json.dumps(sorted(self.indexing)),
        }

    @classmethod
    def from_dict(cls, offset: dict[str, int | str]) -> FolderOffset:
        files = json.loads(str(offset["files"]))
        return cls(
            int(offset["clock"]),
            {name: tuple(FilePart(*part) for part in parts) for name, parts in files.items()},
            _names_of(str(offset["gone"])),
            frozenset(json.loads(str(offset["indexing"]))),
        )

    def arrivals(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """Return the times at which parts arrived, each with the (name, index) of the parts."""
        by_time: dict[int, list[tuple[str, int]]] = {}
        for name in sorted(self.files):
            for number, part in enumerate(self.files[name]):
                by_time.setdefault(part.arrived_ms, []).append((name, number))
        return sorted(by_time.items())


@functools.lru_cache(maxsize=4)  # Spark hands the same offsets over several times in a batch
def _names_of(packed: str) -> frozenset[str]:
    return frozenset(unpack_names(json.loads(packed)))


def pack_names(names: Iterable[str]) -> dict[str, str]:
    """Encode names of rotated files, `NAME-00001.EXT`, as ranges of numbers.

    The offset is written for every batch, and a recorder may rotate forever.
    """
    groups: dict[str, list[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is None:
            groups.setdefault(f"={name}", [])
        else:
            key = f"#{found[1]}\0{len(found[2])}\0{found[3]}"  # no file name contains NUL
            groups.setdefault(key, []).append(int(found[2]))
    return {key: ",".join(_ranges(sorted(numbers))) for key, numbers in groups.items()}


def _ranges(numbers: list[int]) -> Iterable[str]:
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            first, last = numbers[start], numbers[i - 1]
            yield str(first) if first == last else f"{first}-{last}"
            start = i


def unpack_names(packed: dict[str, str]) -> Iterable[str]:
    """Decode the result of `pack_names`."""
    for key, text in packed.items():
        if key.startswith("="):
            yield key[1:]
            continue
        before, width, after = key[1:].split("\0")
        for entry in text.split(","):
            first, _, last = entry.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{before}{number:0{width}}{after}"
