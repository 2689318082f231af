"""An event loop whose time passes only when no callback is ready.

Timeouts of seconds take no real time, and expire at the same moment in every run. For sessions
connected in memory only: the kernel does not know of this clock.
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
    """Moves the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: every task waits and no timer is set")
        self.now += max(0.0, timeout)
        return super().select(0)


class ClockLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = ClockSelector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now
