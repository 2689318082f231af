"""Cancel a call of `polymux.anyio` wherever it can be cancelled, on asyncio and trio.

    async for cut in everywhere():
        ...prepare a session...
        finished, result = await cut(session.open, "x")
        ...check that the session is in order...

The body runs again and again. The call is cancelled at its first suspension, at its second, and so
on; then after its first turn of the event loop, its second, and so on. Each way ends with a run in
which the call finished.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

MAX_POINTS = 200  # more than any call here has


class Cut:
    """One way to cancel, at the n-th opportunity."""

    def __init__(self, way: str, number: int) -> None:
        self.way = way
        self.number = number
        self.finished = False

    def __str__(self) -> str:
        return f"cancelled {self.way} {self.number}"

    async def __call__(
        self, function: Callable[..., Awaitable[Any]], *arguments: Any
    ) -> tuple[bool, Any]:
        """Make the call and cancel it. Return whether it returned all the same, and its result."""
        result, returned = None, False
        with anyio.CancelScope() as scope:
            if self.way == "at suspension":
                result = await Suspending(function(*arguments), self.number, scope)
                returned, self.finished = True, not scope.cancel_called
            else:
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel_later, self.number, scope)
                    result = await function(*arguments)
                    returned, self.finished = True, not scope.cancel_called
                    group.cancel_scope.cancel()
        return returned, result


async def cancel_later(turns: int, scope: anyio.CancelScope) -> None:
    for _ in range(turns):
        await checkpoint()
    scope.cancel()


class Suspending:
    """Makes a call, and cancels the scope it is in at its n-th suspension."""

    def __init__(self, work: Awaitable[Any], number: int, scope: anyio.CancelScope) -> None:
        self.work = work
        self.number = number
        self.scope = scope

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self.work.__await__()
        count = 0
        try:
            waited = next(steps)
            while True:
                if count == self.number:
                    self.scope.cancel()
                count += 1
                try:
                    sent = yield waited
                except BaseException as problem:
                    waited = steps.throw(problem)
                else:
                    waited = steps.send(sent)
        except StopIteration as end:
            return end.value


async def everywhere() -> AsyncIterator[Cut]:
    """Yield every way of cancelling at every opportunity, each until the call finishes."""
    for way in ("at suspension", "after turn"):
        for number in range(MAX_POINTS):
            cut = Cut(way, number)
            yield cut
            if cut.finished:
                break
        else:
            raise AssertionError(f"never finished: {way}")
