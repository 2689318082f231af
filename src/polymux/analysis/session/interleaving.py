"""Walking some flows side by side, so that they look at the same parts of the files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from polymux.capture.io.read_ahead import ReadAhead, ReadCoalescer

MAX_INTERLEAVED_FLOWS = 64  # flows walked in turns
MAX_HELD_BYTES = 24 << 20  # bytes of references that flows walked in turns may have


class SizedFlow(Protocol):
    """A flow, as far as it matters here."""

    @property
    def held_bytes(self) -> int:
        """Bytes of references that a walk of it holds."""


F = TypeVar("F", bound=SizedFlow)


def interleave(flows: Iterable[F], steps: Callable[[F, ReadAhead], Iterator[int]]) -> Iterator[int]:
    """Some flows side by side, always a step of the one that is furthest behind.

    Flows that began together lie together in the files: side by side they look at the same parts
    of them, which are then read once for all. How many is bounded by the references they hold; a
    flow with more has its turn alone.
    """
    shared = ReadCoalescer()
    active: list[ActiveFlow] = []  # a heap
    held = 0
    for number, flow in enumerate(flows):
        while active and (
            len(active) == MAX_INTERLEAVED_FLOWS or held + flow.held_bytes > MAX_HELD_BYTES
        ):
            held -= yield from _step(active)
        companion = ReadAhead(shared)
        walk = ActiveFlow(
            companion.next_timestamp, number, flow.held_bytes, companion, steps(flow, companion)
        )
        heapq.heappush(active, walk)
        held += flow.held_bytes
    while active:
        yield from _step(active)


@dataclass(order=True, slots=True)
class ActiveFlow:
    """A flow that is being walked."""

    next_timestamp: int
    index: int
    held_bytes: int = field(compare=False)
    read_ahead: ReadAhead = field(compare=False)
    steps: Iterator[int] = field(compare=False)


def _step(active: list[ActiveFlow]) -> Generator[int, None, int]:
    """A step of the one that is furthest behind; the references it holds no more."""
    walk = active[0]
    step = next(walk.steps, None)
    if step is None:
        heapq.heappop(active)
        return walk.held_bytes
    walk.next_timestamp = walk.read_ahead.next_timestamp
    heapq.heapreplace(active, walk)
    yield step
    return 0
