"""A growing folder of captures: what is new in it, read up to the last whole block.

Only published names are looked at. A file that is still being copied is read as far as it goes,
and read on when there is more of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FileSummary,
    FlowFilter,
    FlowRefs,
    Range,
    combine,
    find_captures,
    index_range,
)
from polymux.core.errors import PolymuxError
from polymux.spark.streaming.offset import Part, Place

_WAITED_FOR = ("truncated", "unreadable")


@dataclass(frozen=True, slots=True)
class Fresh:
    """A file, or more of one, that can be taken in."""

    name: str
    moved: int  # milliseconds
    end: int
    octets: int  # how much that is


class Folder:
    """Looks into a directory, and remembers the indexes of the files it has read."""

    def __init__(self, path: str, wanted: FlowFilter, limits: CaptureLimits, idle: float) -> None:
        self.path = os.path.abspath(path)
        if not os.path.isdir(self.path):
            raise PolymuxError(f"{path}: no such directory; watching reads a directory that grows")
        self._wanted = wanted
        self._limits = limits
        self._idle_ns = int(idle * 1e9)
        self._indexes: dict[str, list[FileIndex]] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # size and time when there was nothing to take

    def full(self, name: str) -> str:
        return os.path.join(self.path, name)

    def names(self) -> list[str]:
        return [os.path.relpath(path, self.path) for path in find_captures([self.path])]

    def fresh(
        self, place: Place, now_ns: int, most: int, only: frozenset[str] | None = None
    ) -> list[Fresh]:
        """What came since `place`, the oldest first, about `most` octets of it and one file at
        least; of `only` these names, if they are given."""
        stats = []
        for name in self.names():
            if name in place.gone or (only is not None and name not in only):
                continue
            try:
                stat = os.stat(self.full(name))
            except OSError:
                continue  # gone again
            parts = place.files.get(name, ())
            if parts and parts[-1].end >= stat.st_size:
                continue
            if self._seen.get(name) == (stat.st_size, stat.st_mtime_ns):
                settled = now_ns - stat.st_mtime_ns >= self._idle_ns
                if parts or not settled:
                    continue
            stats.append((stat.st_mtime_ns, name, stat.st_size))
        found: list[Fresh] = []
        room = most
        for moved, name, size in sorted(stats):
            if found and room <= 0:
                break
            fresh = self._take(name, place.files.get(name, ()), moved, size, now_ns)
            if fresh is None:
                self._seen[name] = (size, moved)
            else:
                found.append(fresh)
                room -= fresh.octets
        return found

    def rows(self, name: str, parts: tuple[Part, ...], number: int) -> list[FlowRefs]:
        return self._index(name, parts)[number].rows

    def summary(self, name: str, parts: tuple[Part, ...]) -> FileSummary:
        """Of everything that was read of the file; a torn end is found out now."""
        summary = combine([index.summary for index in self._index(name, parts)])
        size = os.path.getsize(self.full(name)) if os.path.exists(self.full(name)) else 0
        if summary.status == "whole" and parts[-1].end < size:
            text = "the file ends inside a block"
            return replace(summary, status="truncated", error=text, offset=parts[-1].end)
        return summary

    def is_torn(self, name: str, parts: tuple[Part, ...]) -> bool:
        return self.summary(name, parts).status in _WAITED_FOR

    def forget(self, names: set[str]) -> None:
        for name in names:
            self._indexes.pop(name, None)
            self._seen.pop(name, None)

    # --- inside

    def _take(
        self, name: str, parts: tuple[Part, ...], moved: int, size: int, now_ns: int
    ) -> Fresh | None:
        """Read on from where the parts end; None if no whole block has come yet."""
        before = self._index(name, parts) if parts else []
        if before and before[-1].resume is None:
            return None  # damaged: nothing behind it can be read
        start = before[-1].resume if before else Range()
        assert start is not None
        index = index_range(
            self.full(name), replace(start, end=-1), limits=self._limits, wanted=self._wanted
        )
        young = now_ns - moved < self._idle_ns
        status = index.summary.status
        plain = "+" not in (index.summary.format or "")
        if status == "truncated" and plain and index.resume is not None:
            if index.resume.start <= start.start:
                return None if young or parts else self._keep(name, before, index, moved, size)
            # Read just the whole blocks, as it will be read after a restart.
            span = replace(start, end=index.resume.start)
            index = index_range(self.full(name), span, limits=self._limits, wanted=self._wanted)
            return self._keep(name, before, index, moved, span.end)
        if status in _WAITED_FOR and young:
            return None
        whole = index.resume is not None and status == "whole" and plain
        end = index.resume.start if whole and index.resume is not None else size
        return self._keep(name, before, index, moved, end)

    def _keep(
        self, name: str, before: list[FileIndex], index: FileIndex, moved: int, end: int
    ) -> Fresh:
        self._indexes[name] = [*before, index]
        return Fresh(name, moved // 1_000_000, end, index.summary.octets)

    def _index(self, name: str, parts: tuple[Part, ...]) -> list[FileIndex]:
        """The indexes of these parts, read again if they are not at hand."""
        known = self._indexes.get(name, [])
        if len(known) < len(parts):
            known = []
            span = Range()
            for number, part in enumerate(parts):
                last = number + 1 == len(parts)
                found = index_range(
                    self.full(name), replace(span, end=-1 if last else part.end),
                    limits=self._limits, wanted=self._wanted,
                )  # fmt: skip
                if last and found.resume is not None and found.resume.start != part.end:
                    # It has grown, or has a torn end: only as far as was read then.
                    exact = replace(span, end=part.end)
                    if "+" not in (found.summary.format or ""):
                        found = index_range(
                            self.full(name), exact, limits=self._limits, wanted=self._wanted
                        )
                known.append(found)
                if found.resume is None:
                    known += [FileIndex(found.summary) for _ in parts[number + 1 :]]
                    break
                span = found.resume
            self._indexes[name] = known
        return known[: len(parts)]
