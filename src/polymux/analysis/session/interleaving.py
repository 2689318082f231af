"""Interleave the analysis of several flows, so that they read the same regions of the files."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from polymux.capture.io.read_ahead import ReadAhead, ReadCoalescer

MAX_INTERLEAVED_FLOWS = 64  # flows analyzed at the same time
MAX_HELD_BYTES = 24 << 20  # references held by the flows that are analyzed at the same time


class SizedFlow(Protocol):
    """A flow with the memory that its analysis holds."""

    @property
    def held_bytes(self) -> int:
        """Bytes of references that are held while the flow is analyzed."""


F = TypeVar("F", bound=SizedFlow)


def interleave(flows: Iterable[F], steps: Callable[[F, ReadAhead], Iterator[int]]) -> Iterator[int]:
    """Interleave the analysis of several flows, always advancing the earliest one.

    Flows that start together are stored together in the files: interleaved, they read the same
    regions, which are then read once for all. The number of flows is bounded by the references
    they hold; a flow that exceeds the bound alone is analyzed alone.

    Args:
        flows: the flows, in order of their start.
        steps: starts the analysis of a flow; the iterator yields after each step.

    Yields:
        What the steps yield.
    """
    shared = ReadCoalescer()
    active: list[ActiveFlow] = []  # a heap
    held = 0
    for number, flow in enumerate(flows):
        while active and (
            len(active) == MAX_INTERLEAVED_FLOWS or held + flow.held_bytes > MAX_HELD_BYTES
        ):
            held -= yield from _step(active)
        read_ahead = ReadAhead(shared)
        started = ActiveFlow(
            read_ahead.next_timestamp, number, flow.held_bytes, read_ahead, steps(flow, read_ahead)
        )
        heapq.heappush(active, started)
        held += flow.held_bytes
    while active:
        yield from _step(active)


@dataclass(order=True, slots=True)
class ActiveFlow:
    """A flow that is being analyzed; ordered by its next timestamp."""

    next_timestamp: int
    index: int
    held_bytes: int = field(compare=False)
    read_ahead: ReadAhead = field(compare=False)
    steps: Iterator[int] = field(compare=False)


def _step(active: list[ActiveFlow]) -> Generator[int, None, int]:
    """Advance the earliest flow by a step. Return the bytes of references that were released."""
    flow = active[0]
    step = next(flow.steps, None)
    if step is None:
        heapq.heappop(active)
        return flow.held_bytes
    flow.next_timestamp = flow.read_ahead.next_timestamp
    heapq.heapreplace(active, flow)
    yield step
    return 0
