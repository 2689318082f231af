"""Walking some flows side by side, so that they look at the same parts of the files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Protocol, TypeVar

SIDE_BY_SIDE = 8  # flows walked in turns
HELD = 16 << 20  # octets of references that flows walked in turns may have


class Held(Protocol):
    """A flow, as far as it matters here."""

    @property
    def held(self) -> int:
        """Octets of references that a walk of it holds."""


F = TypeVar("F", bound=Held)


def together(flows: Iterable[F], steps: Callable[[F], Iterator[int]]) -> Iterator[int]:
    """Some flows side by side, a step of each in turn.

    Flows that began together lie together in the files: side by side they look at the same parts
    of them, one after another each would go through all of them again. How many is bounded by
    the references they hold; a flow with more has its turn alone.
    """
    active: list[tuple[int, Iterator[int]]] = []
    held = 0
    for flow in flows:
        while active and (len(active) == SIDE_BY_SIDE or held + flow.held > HELD):
            active, ended = yield from _round(active)
            held -= ended
        active.append((flow.held, steps(flow)))
        held += flow.held
    while active:
        active, _ = yield from _round(active)


def _round(
    active: list[tuple[int, Iterator[int]]],
) -> Generator[int, None, tuple[list[tuple[int, Iterator[int]]], int]]:
    """One step of each; those that go on, and the references of those that have ended."""
    going = []
    ended = 0
    for octets, walk in active:
        step = next(walk, None)
        if step is None:
            ended += octets
        else:
            going.append((octets, walk))
            yield step
    return going, ended
