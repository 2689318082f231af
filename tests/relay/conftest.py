"""Async tests without a plugin, as those of `aio`: strictly, and leaving nothing behind."""

from tests.aio.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
