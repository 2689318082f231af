"""The result of `connect`, `serve` and `open`: awaitable, and an asynchronous context manager."""

from collections.abc import Callable, Coroutine, Generator
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar


class Closing(Protocol):
    """An object with an asynchronous exit."""

    async def __aexit__(self, kind: object, error: object, trace: object) -> None: ...


P = ParamSpec("P")
T = TypeVar("T", bound=Closing)
T_co = TypeVar("T_co", bound=Closing, covariant=True)


class Pending(Coroutine[Any, Any, T_co]):
    """A session, server or stream that is being opened.

    `await` returns it. `async with` enters it, and leaving the block closes it as its own `async
    with` does. A `Pending` is a coroutine: it can be passed to `create_task`, `gather` and
    `wait_for`, it can be used once, and Python warns if it was never awaited. If it is cancelled,
    nothing stays open.
    """

    __slots__ = ("_coroutine", "_result")

    def __init__(self, coroutine: Coroutine[Any, Any, T_co]) -> None:
        self._coroutine = coroutine
        self._result: T_co | None = None

    def __repr__(self) -> str:
        return f"<polymux {getattr(self._coroutine, '__qualname__', 'call')}(), to be awaited>"

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> T_co:
        self._result = result = await self._coroutine
        return result

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        assert self._result is not None
        await self._result.__aexit__(kind, error, trace)

    # The coroutine protocol, for tasks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coroutine, name)  # `cr_frame` and the like, for debuggers

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None) -> Any:
        return self._coroutine.throw(kind if value is None else value)

    def close(self) -> None:
        self._coroutine.close()


def pending(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Pending[T]]:
    """Decorate a coroutine function so that its result can also be entered with `async with`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Pending[T]:
        return Pending(function(*args, **kwargs))

    return call
