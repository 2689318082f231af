"""Checks of arguments, made before anything is sent or changed.

A wrong type raises TypeError. A value out of range raises LocalProtocolError if it would have been
sent to the peer or belongs to the protocol, else ValueError.
"""

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from polymux.core.errors import LocalProtocolError, Unsupported
from polymux.core.limits import Limits, Timeouts
from polymux.core.protocol import Protocol

MAX_I64 = (1 << 63) - 1
MAX_U64 = (1 << 64) - 1


def check_seconds(value: object, name: str = "a time") -> float:
    """Return `value` if it is a number of seconds, 0 or more."""
    if not isinstance(value, int | float):
        raise TypeError(f"{name} is a number of seconds, not {type(value).__name__}")
    if not value >= 0:
        raise LocalProtocolError(f"{name} is 0 or more seconds, not {value}")
    return value


def encode_name(name: object) -> bytes:
    """Return a stream's name as bytes: text is encoded as UTF-8."""
    if isinstance(name, str):
        return name.encode()
    if isinstance(name, bytes | bytearray | memoryview):
        return bytes(name)
    raise TypeError(f"a name is str or bytes, not {type(name).__name__}")


def check_window(window: object, max_window: int = MAX_I64, unit: str = "bytes") -> int:
    """Check and return a receive window; 0 means the default."""
    if not isinstance(window, int):
        raise TypeError(f"a window is an int, not {type(window).__name__}")
    if not 0 <= window <= max_window:
        raise LocalProtocolError(
            f"a window is 0 to {max_window} {unit} (0: the default), not {window}"
        )
    return window


def check_stream_window(protocol: Protocol, window: object) -> int:
    """Check and return the receive window of a stream to be opened or accepted."""
    checked = check_window(window)
    if checked and not protocol.has_credit:
        raise Unsupported(f"this {protocol.name} session has no windows: leave window=... out")
    return checked


def check_amount(amount: object) -> None:
    """Check a number of items or an amount of credit of a Minmux stream."""
    if not isinstance(amount, int):
        raise TypeError(f"an amount is an int, not {type(amount).__name__}")
    if not 0 <= amount <= MAX_U64:
        raise LocalProtocolError(f"an amount is 0 to 2^64-1 items, not {amount}")


def check_read_limit(limit: object) -> None:
    """Check the `limit` argument of a read, in bytes."""
    if not isinstance(limit, int):
        raise TypeError(f"limit is a number of bytes, not {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"limit is 0 or more bytes, not {limit}")


def check_max_bytes(size: object) -> None:
    """Check how many bytes a read may return."""
    if not isinstance(size, int):
        raise TypeError(f"max_bytes is an int, not {type(size).__name__}")
    if size < 1:
        raise ValueError(f"max_bytes is 1 or more, not {size}")


def check_concurrent_handler(handler: object, max_concurrent: object) -> None:
    """Check the arguments of `serve_streams` and `serve_calls`."""
    check_handler(handler, "the handler")
    if not isinstance(max_concurrent, int):
        raise TypeError(f"max_concurrent is an int, not {type(max_concurrent).__name__}")
    if max_concurrent < 1:
        raise ValueError(f"max_concurrent is 1 or more, not {max_concurrent}")


def check_session_options(protocol: object, limits: object, timeouts: object) -> None:
    """Check the arguments that `connect`, `serve` and `pipe` have in common."""
    if not isinstance(protocol, str):
        raise TypeError(f"protocol is a text such as 'mplex', not {type(protocol).__name__}")
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits is a polymux.Limits, not {type(limits).__name__}")
    if timeouts is not None and not isinstance(timeouts, Timeouts):
        raise TypeError(f"timeouts is a polymux.Timeouts, not {type(timeouts).__name__}")


def check_handler(handler: object, what: str = "the handler") -> None:
    """Raise TypeError if the result of calling `handler` cannot be awaited.

    A lambda, a function with a return annotation, and a callable that is not a Python function are
    accepted unchecked.
    """
    if not callable(handler):
        raise TypeError(f"{what} is an async function, not {type(handler).__name__}")
    if inspect.iscoroutinefunction(handler):
        return
    function = underlying_function(handler)
    name = getattr(function, "__qualname__", repr(handler))
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TypeError(f"{what} {name} has a yield: it must be an async function without")
    if inspect.iscoroutinefunction(function) or not isinstance(function, FunctionType):
        return
    returns = function.__annotations__.get("return")
    if function.__name__ != "<lambda>" and (returns is None or returns == "None"):
        raise TypeError(f"{what} {name} is a plain function: write `async def`")


def underlying_function(handler: Callable[..., Any]) -> object:
    """Return the function behind a partial, a method, a decorator or a `__call__`."""
    function: Any = handler
    while isinstance(function, partial):
        function = function.func
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004
    function = inspect.unwrap(function)
    return getattr(function, "__func__", function)
