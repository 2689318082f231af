"""Async tests as in `tests/record`, with time for those that start a Spark, and certificates."""

import asyncio
import inspect
from typing import Any

import pytest
from tests.record.conftest import authority

__all__ = ["authority"]

LONGEST = 900


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    async def run() -> None:
        complaints: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        async with asyncio.timeout(LONGEST):
            await pyfuncitem.obj(**arguments)
        await asyncio.sleep(0)
        assert not complaints, complaints

    asyncio.run(run())
    return True
