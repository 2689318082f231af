"""How far a growing folder of captures has been read: the offset of the stream, as plain data.

Everything that decides which rows a micro-batch gives follows from the offsets at its two ends and
the files they name, so a batch that is run again gives the same rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

_NUMBERED = re.compile(r"(.*?)([0-9]+)([^0-9]*)", re.DOTALL)


class FilePart(NamedTuple):
    """A stretch of a file that was taken in at once; times are milliseconds since 1970."""

    arrived_ms: int  # the clock of the batch that took it in
    modified_ms: int  # when the file was last written to, if that was after the batch before
    end_offset: int  # bytes of the file that are read with it


@dataclass
class FolderOffset:
    """`files` are those that still matter, by name within the folder, with the parts that were
    read; `gone` are the names of those that were read and do not matter any more."""

    clock_ms: int = 0
    files: dict[str, tuple[FilePart, ...]] = field(default_factory=dict)
    forgotten: frozenset[str] = frozenset()

    def to_dict(self) -> dict[str, int | str]:
        """As Spark writes it down."""
        files = {name: [list(part) for part in parts] for name, parts in self.files.items()}
        return {
            "clock": self.clock_ms,
            "files": json.dumps(files, sort_keys=True, separators=(",", ":")),
            "gone": json.dumps(pack_names(self.forgotten), sort_keys=True, separators=(",", ":")),
        }

    @classmethod
    def from_dict(cls, offset: dict[str, int | str]) -> FolderOffset:
        files = json.loads(str(offset["files"]))
        return cls(
            int(offset["clock"]),
            {name: tuple(FilePart(*part) for part in parts) for name, parts in files.items()},
            frozenset(unpack_names(json.loads(str(offset["gone"])))),
        )

    def arrivals(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """What came when: instants in order, each with the names and numbers of the parts."""
        found: dict[int, list[tuple[str, int]]] = {}
        for name in sorted(self.files):
            for number, part in enumerate(self.files[name]):
                found.setdefault(part.arrived_ms, []).append((name, number))
        return sorted(found.items())


def pack_names(names: Iterable[str]) -> dict[str, str]:
    """Names of rotated files, `NAME-00001.EXT`, as ranges of their numbers: the offset is written
    for every batch, and a recorder goes on for ever."""
    groups: dict[str, list[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is None:
            groups.setdefault(f"={name}", [])
        else:
            key = f"#{found[1]}\0{len(found[2])}\0{found[3]}"  # no name has this character
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
    """The names again."""
    for key, text in packed.items():
        if key.startswith("="):
            yield key[1:]
            continue
        before, width, after = key[1:].split("\0")
        for entry in text.split(","):
            first, _, last = entry.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{before}{number:0{width}}{after}"
