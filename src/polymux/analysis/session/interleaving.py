"""Walking some flows side by side, so that they look at the same parts of the files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from polymux.capture.io.read_ahead import Companion, SharedReads

SIDE_BY_SIDE = 64  # flows walked in turns
HELD = 24 << 20  # octets of references that flows walked in turns may have


class Held(Protocol):
    """A flow, as far as it matters here."""

    @property
    def held(self) -> int:
        """Octets of references that a walk of it holds."""


F = TypeVar("F", bound=Held)


def together(flows: Iterable[F], steps: Callable[[F, Companion], Iterator[int]]) -> Iterator[int]:
    """Some flows side by side, always a step of the one that is furthest behind.

    Flows that began together lie together in the files: side by side they look at the same parts
    of them, which are then read once for all. How many is bounded by the references they hold; a
    flow with more has its turn alone.
    """
    shared = SharedReads()
    active: list[Walk] = []  # a heap
    held = 0
    for number, flow in enumerate(flows):
        while active and (len(active) == SIDE_BY_SIDE or held + flow.held > HELD):
            held -= yield from _step(active)
        companion = Companion(shared)
        walk = Walk(companion.at, number, flow.held, companion, steps(flow, companion))
        heapq.heappush(active, walk)
        held += flow.held
    while active:
        yield from _step(active)


@dataclass(order=True, slots=True)
class Walk:
    """A flow that is being walked."""

    at: int
    number: int
    held: int = field(compare=False)
    companion: Companion = field(compare=False)
    steps: Iterator[int] = field(compare=False)


def _step(active: list[Walk]) -> Generator[int, None, int]:
    """A step of the one that is furthest behind; the references it holds no more."""
    walk = active[0]
    step = next(walk.steps, None)
    if step is None:
        heapq.heappop(active)
        return walk.held
    walk.at = walk.companion.at
    heapq.heapreplace(active, walk)
    yield step
    return 0
