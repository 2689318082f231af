"""Async tests as in `tests/record`, with time for those that start a Spark, and certificates."""

from typing import Any

import pytest
from tests.record.conftest import authority, run_async

__all__ = ["authority"]

LONGEST = 900


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    return run_async(pyfuncitem, LONGEST)
