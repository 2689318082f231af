# mypyc: compiled
"""How many streams this side opens at once: no more than a peer with default limits accepts.

A peer bounds the streams that are live and those that were opened and given up lately. Both come
out of one allowance here, `Limits.own_streams`; what was given up comes back at a rate.
"""

from asyncio import AbstractEventLoop, Future, TimerHandle
from typing import Final

from mypy_extensions import i64

SHARE: Final = 0.9  # of the rate that a peer allows: its clock is not ours


class Openings:
    """The allowance of one session. Callers of `open` past it wait in line, first come first
    served.

    `rate` is how many streams that were given up come back in a second.
    """

    def __init__(self, loop: AbstractEventLoop, most: int, rate: int) -> None:
        self.loop = loop
        self.most: i64 = most
        self.ids: i64 = 0x7FFFFFFF  # streams that can be open at once, whatever is allowed
        self.rate: float = rate * SHARE
        self.live: i64 = 0  # streams that this side has opened and that are not over
        self.due: i64 = 0  # callers that have been woken and are about to open theirs
        self.begun: i64 = 0  # streams opened, in all
        self.lately: float = 0.0  # of the allowance, what streams given up hold
        self.at: float = 0.0  # when that was reckoned last
        self.waiting: dict[Future[None], None] = {}
        self.timer: TimerHandle | None = None

    def free(self) -> bool:
        """May a stream be opened now?"""
        return len(self.waiting) == 0 and self.room() > 0

    def room(self) -> i64:
        """How many could be opened now if no caller waited."""
        held = self.live + self.due
        room = self.most - held
        if self.lately > 0.0:
            now = self.loop.time()
            self.lately = max(0.0, self.lately - (now - self.at) * self.rate)
            self.at = now
            if self.lately > 0.0:
                # Rounded up, and a tenth is left: what was sent apart may arrive together.
                room -= self.most // 10 + 1 + int(self.lately)
        return min(room, self.ids - held)

    def begin(self) -> None:
        """A stream was opened."""
        self.live += 1
        self.begun += 1

    def over(self) -> None:
        """A stream that this side had opened is over."""
        self.live -= 1
        if len(self.waiting) > 0:
            self.look()

    def gave_up(self, weight: float) -> None:
        """A stream was given up; a peer counts it by this weight. Nothing is held back for a rate
        of 0: it would be held for ever."""
        if self.rate <= 0.0:
            return
        if self.lately == 0.0:
            self.at = self.loop.time()
        self.lately += weight

    def join(self) -> Future[None]:
        """A place in line, to be awaited. Once it is done, `settle` it; if cancelled, `leave`."""
        waiter: Future[None] = self.loop.create_future()
        self.waiting[waiter] = None
        self.look()
        return waiter

    def settle(self) -> None:
        """A caller that was woken goes on. Should it open nothing, its room is the next one's."""
        self.due -= 1
        if len(self.waiting) > 0:
            self.loop.call_soon(self.look)

    def leave(self, waiter: Future[None]) -> None:
        """A caller was cancelled: its place, or what it was woken for, is the next one's."""
        if waiter in self.waiting:
            del self.waiting[waiter]
        elif waiter.done() and not waiter.cancelled():
            self.due -= 1
        self.look()

    def look(self) -> None:
        """Wake as many as there is room for."""
        room = self.room()
        while room > 0 and len(self.waiting) > 0:
            waiter = next(iter(self.waiting))
            del self.waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
                self.due += 1
                room -= 1
        if len(self.waiting) > 0 and self.lately > 0.0 and self.rate > 0.0 and self.timer is None:
            self.timer = self.loop.call_later(1.0 / self.rate, self.tick)

    def tick(self) -> None:
        """Some of what was given up has come back."""
        self.timer = None
        self.look()

    def close(self) -> None:
        """The session is over: all who wait go on, and are told so."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        while len(self.waiting) > 0:
            waiter = next(iter(self.waiting))
            del self.waiting[waiter]
            if not waiter.done():
                waiter.set_result(None)
                self.due += 1
