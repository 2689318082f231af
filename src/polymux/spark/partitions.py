"""Deciding which task does what: ranges of files to index, flows to walk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ..capture import Range, plan

TASK = 192 << 20  # octets of captures a task should have: a Python task costs about 40 ms by itself
LEAST = 4 << 20  # below this nothing is worth splitting further


@dataclass(frozen=True)
class Span:
    """A range of one file, for one task to index."""

    path: str
    range: Range


def index_tasks(paths: Sequence[str], cores: int, target: int = 0) -> list[list[Span]]:
    """Spans grouped into tasks of about equal size; large files are cut, small ones share a task.

    `target` octets a task; 0 chooses so that every core has work but no task is too small.
    """
    sizes = {path: os.path.getsize(path) if os.path.isfile(path) else 0 for path in paths}
    total = sum(sizes.values())
    share = target or max(LEAST, min(TASK, -(-total // max(1, cores))))
    tasks: list[list[Span]] = []
    room = 0
    for path in paths:
        ranges = plan(path, target=share) if sizes[path] > share else [Range()]
        for piece in ranges:
            size = (piece.end if piece.end >= 0 else sizes[path]) - piece.start
            if not tasks or size > room:
                tasks.append([])
                room = share
            tasks[-1].append(Span(path, piece))
            room -= size
    return tasks


def bucket_count(octets: int, flows: int, cores: int, target: int = 0) -> int:
    """How many tasks to walk the flows in."""
    by_size = -(-octets // (target or TASK))
    return max(1, min(flows, max(by_size, 2 * cores)))


def landing(buckets: int) -> list[int]:
    """For each of `buckets` shuffle partitions, a number that Spark's hash sends just there.

    `repartition(n, column)` puts a row into partition pmod(murmur3(column), n); with these numbers
    in the column every partition gets exactly one bucket and none stays empty.
    """
    found: dict[int, int] = {}
    number = 0
    while len(found) < buckets:
        found.setdefault(murmur3(number) % buckets, number)
        number += 1
    return [found[i] for i in range(buckets)]


def murmur3(number: int, seed: int = 42) -> int:
    """Spark's hash of a 32-bit integer, as a signed number; Python's % then is Spark's pmod."""
    word = 0xFFFFFFFF
    mixed = (number * 0xCC9E2D51) & word
    mixed = ((mixed << 15) | (mixed >> 17)) & word
    mixed = (mixed * 0x1B873593) & word
    value = seed ^ mixed
    value = ((value << 13) | (value >> 19)) & word
    value = (value * 5 + 0xE6546B64) & word
    value ^= 4
    value ^= value >> 16
    value = (value * 0x85EBCA6B) & word
    value ^= value >> 13
    value = (value * 0xC2B2AE35) & word
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value
