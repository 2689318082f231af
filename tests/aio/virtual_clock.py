"""An event loop whose time passes only when nobody has anything to do.

Deadlines of seconds take no time at all, and happen at the same moment in every run. For sessions
joined in memory only: the kernel does not know of this clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any, TypeVar

Test = TypeVar("Test", bound=Callable[..., Any])


def virtual(test: Test) -> Test:
    """Run this test on a ClockLoop."""
    test.virtual = True  # type: ignore[attr-defined]  # read by conftest.py
    return test


class ClockSelector(selectors.DefaultSelector):
    """Waits for nothing: moves the clock instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen any more: everybody waits")
        self.now += max(0.0, timeout)
        return super().select(0)


class ClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = ClockSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now
