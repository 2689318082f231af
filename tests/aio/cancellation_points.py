"""Cancel a coroutine wherever it can be cancelled.

    async for cut in everywhere():
        ...prepare a session...
        finished, result = await cut(session.open("x"))
        ...check that the session is still in order...

The body runs again and again. The coroutine is cancelled at each of its own suspensions, first at
once and then a moment too late: when what it waited for is done and it has not been resumed yet.
Then it is cancelled after its first event-loop iteration, its second, and so on. Each way ends with
a run in which the coroutine finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Generator
from typing import Any

MAX_STEPS = 400  # more than any coroutine here needs
QUICK_STEPS = 40  # steps without a delay


class Cut:
    """One way to cancel, at the n-th opportunity."""

    def __init__(self, way: str, number: int) -> None:
        self.way = way
        self.number = number
        self.finished = False

    def __str__(self) -> str:
        return f"cancelled {self.way} {self.number}"

    async def __call__(self, work: Coroutine[Any, Any, Any]) -> tuple[bool, Any]:
        """Run `work` and cancel it. Return whether it finished before, and its result."""
        if self.way == "after step":
            task = asyncio.create_task(work)
            for step in range(self.number):
                if not task.done():
                    await asyncio.sleep(0 if step < QUICK_STEPS else 0.1)
            self.finished = task.done()
            task.cancel()
        else:
            suspended = Suspending(work, self.number, late=self.way == "too late at suspension")
            task = asyncio.create_task(suspended.run())
            await asyncio.wait([task])
            self.finished = not suspended.reached
        try:
            async with asyncio.timeout(30):
                return True, await task
        except asyncio.CancelledError:
            return False, None


class Suspending:
    """Runs a coroutine and cancels the task it runs in at its n-th suspension."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, late: bool) -> None:
        self.work = work
        self.number = number
        self.late = late
        self.reached = False

    async def run(self) -> Any:
        return await self

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        steps = self.work.__await__()
        count = 0
        try:
            waited = next(steps)
            while True:
                if count == self.number:
                    self.reached = True
                    if self.late and isinstance(waited, asyncio.Future):
                        waited.add_done_callback(lambda _: task.cancel())
                    else:
                        task.cancel()
                count += 1
                try:
                    yield waited
                except BaseException as problem:
                    waited = steps.throw(problem)
                else:
                    waited = next(steps)
        except StopIteration as end:
            return end.value


async def everywhere(steps: bool = True) -> AsyncIterator[Cut]:
    """Yield every way of cancelling at every opportunity, each until the coroutine finishes.

    With `steps`, also between suspensions: only for a virtual clock, since it takes time.
    """
    ways = ["at suspension", "too late at suspension"] + (["after step"] if steps else [])
    for way in ways:
        for number in range(MAX_STEPS):
            cut = Cut(way, number)
            yield cut
            if cut.finished:
                break
        else:
            raise AssertionError(f"never finished: {way}")
