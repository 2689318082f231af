"""Async tests without a plugin: `async def test_...` runs on a new event loop, and fails if it
leaves a task, an unretrieved exception, or an open socket or process behind. With
POLYMUX_LOOP=uvloop all tests run on uvloop, except those on a virtual clock.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from tests.aio.virtual_clock import ClockLoop
from tests.loops import new_event_loop

MAX_TEST_SECONDS = 60.0  # on the real clock
collect_ignore = (
    [] if sys.version_info >= (3, 12) else ["test_eager_tasks.py"]
)  # eager tasks came with 3.12


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    virtual = getattr(test, "virtual", False)
    run_strictly(lambda: test(**arguments), ClockLoop if virtual else None)
    return True


def run_strictly(
    test: Callable[[], Any], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Run a coroutine function and check that it leaves nothing behind."""
    unhandled: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unhandled.append(context))
        async with asyncio.timeout(MAX_TEST_SECONDS if loop_factory is None else 100_000):
            await test()
        for _ in range(3):  # callbacks of the last await may still be scheduled
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=loop_factory or new_event_loop) as runner:
            runner.run(run())
            gc.collect()
        gc.collect()
    assert not unhandled, unhandled
    resource_warnings = [
        w for w in caught if issubclass(w.category, ResourceWarning | RuntimeWarning)
    ]
    assert not resource_warnings, [str(warning.message) for warning in resource_warnings]
