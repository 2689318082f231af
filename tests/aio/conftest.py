"""Async tests without a plugin, strictly: `async def test_...` runs on a fresh loop, and fails if
it leaves a task, an unheard exception, or an open socket or process behind. POLYMUX_LOOP=uvloop
has all of them on uvloop that are not on a clock of their own.
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

LIMIT = 60.0  # seconds for a test on the real clock
collect_ignore = [] if sys.version_info >= (3, 12) else ["test_eager_tasks.py"]  # no such loops


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is there by now is not looked at again after every test


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
    """Run a coroutine function and see to it that nothing is left over."""
    complaints: list[Any] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(LIMIT if loop_factory is None else 100_000):
            await test()
        for _ in range(3):  # callbacks of the last await may still be on their way
            await asyncio.sleep(0)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks left behind: {left}"

    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        with asyncio.Runner(loop_factory=loop_factory or new_event_loop) as runner:
            runner.run(run())
            gc.collect()
        gc.collect()
    assert not complaints, complaints
    loud = [w for w in noted if issubclass(w.category, ResourceWarning | RuntimeWarning)]
    assert not loud, [str(warning.message) for warning in loud]
