"""The event loops of the benchmarks: asyncio's own, and uvloop where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Coroutine
from typing import Any, TypeVar

ASYNCIO = "asyncio"
UVLOOP = "uvloop"

T = TypeVar("T")


def missing(loop: str) -> str | None:
    """Why a loop is not available, or None."""
    return f"{loop} is not installed" if importlib.util.find_spec(loop) is None else None


def run(loop: str, work: Coroutine[Any, Any, T]) -> T:
    if loop == ASYNCIO:
        return asyncio.run(work)
    with asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop) as runner:
        return runner.run(work)
