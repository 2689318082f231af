"""Fixtures of the interop tests, and `async def` tests.

An `async def` test runs in an event loop of its own, or in its module's if it, or a fixture it
uses, asks for `runner`: what such a fixture has started lives on from test to test.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest
from tests.interop.node_peer import missing_go, missing_python, require, require_none


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    runner = pyfuncitem.funcargs.get("runner")
    if isinstance(runner, asyncio.Runner):
        runner.run(test)
    else:
        asyncio.run(test)
    return True


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """The module's event loop."""
    with asyncio.Runner() as one:
        yield one


@pytest.fixture(scope="session")
def node_peers() -> None:
    """The Node peers can run, their packages are installed."""
    require()


@pytest.fixture(scope="session")
def go_peers() -> None:
    """The Go peer can be built here."""
    require_none(missing_go())


@pytest.fixture(scope="session")
def python_peers() -> None:
    """The Python peer can run, its packages are installed."""
    require_none(missing_python())
