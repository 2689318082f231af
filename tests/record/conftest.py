"""Async tests without a plugin: `async def test_...` runs on a fresh loop, strictly, and on uvloop
under POLYMUX_LOOP=uvloop."""

import asyncio
import inspect
import os
from typing import Any

import pytest
from tests.loops import new_event_loop
from tests.record.certificate_authority import Authority

LONGEST = 600 if os.environ.get("POLYMUX_SOAK") else 100


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_async(pyfuncitem, LONGEST)


def run_async(pyfuncitem: Any, longest: float) -> bool | None:
    """Run an `async def` test, in `longest` seconds or what its own mark `timeout` allows; it fails
    if an exception was not retrieved."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    if marked := pyfuncitem.get_closest_marker("timeout"):
        longest = max(longest, marked.args[0] - 20)
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        complaints: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(longest):
            await pyfuncitem.obj(**arguments)
        await asyncio.sleep(0)
        assert not complaints, complaints

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())
    return True


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "authority")
