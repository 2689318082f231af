"""Two live endpoints under an adversarial scheduler, on a simulated clock."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.aio.streamux_helpers import held
from tests.stateful.misbehaving_applications import Actor, actor_for, quietly

import polymux
from polymux import Limits, Session, StreamuxSession, Timeouts
from polymux.live.transports.memory import MemoryTransport

PAUSE = 2.0
POLICY = Timeouts(slow_reader=PAUSE, close=5.0)
LIMITS = {
    "session_buffer_bytes": 20_000,
    "stream_buffer_bytes": 4_000,
    "receive_window": 5_000,
    "accept_backlog": 6,
    "max_streams": 40,
}
STEPS = 60
LONG = 300.0  # virtual seconds in which everything that can end has ended


class Stuck(AssertionError):
    """A task waits that should not; the message has the seed that reproduces it."""


class Stage:
    """One schedule. Everything is drawn from one seed."""

    def __init__(self, protocol: str, seed: int) -> None:
        self.protocol = protocol
        self.seed = seed
        self.chance = Random(f"{protocol} {seed}")
        self.pending: list[asyncio.Task[None]] = []
        self.sessions: list[Session] = []
        self.actors: list[Actor] = []
        self.longest_pause = 0.0
        self.loop = asyncio.get_running_loop()

    async def run(self) -> None:
        near, far = await polymux.pipe(self.protocol, limits=Limits(**LIMITS), timeouts=POLICY)
        self.sessions = [near, far]
        for session in self.sessions:
            self.delay(session)
            self.actors.append(actor_for(self.protocol)(session, self.chance))
        watching = asyncio.create_task(self.watch())
        try:
            await self.misbehave()
            how = self.chance.randrange(4)
            if how == 0:
                self.sessions[self.chance.randrange(2)].abort("gone")
                await self.stop_pending()
            else:
                await self.calm_down()
                self.look_for_leaks()
            await self.part(together=how == 1)
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    def delay(self, session: Session) -> None:
        """Deliver bytes with a random delay, so that frames of both sides cross."""
        pipe: Any = session.transport
        assert isinstance(pipe, MemoryTransport)
        plain = pipe._deliver

        def schedule() -> None:
            if not pipe._scheduled:
                pipe._scheduled = True
                self.loop.call_later(self.chance.choice([0.0, 0.0, 0.001, 0.05, 0.3]), plain)

        pipe._schedule = schedule  # type: ignore[method-assign]  # on purpose

    # --- the hostile part

    async def misbehave(self) -> None:
        for _ in range(STEPS):
            move = self.chance.randrange(12)
            if move < 8:
                act = self.chance.choice(self.actors).act()
                self.pending.append(asyncio.create_task(quietly(act)))
            elif move < 10 and self.pending:
                self.chance.choice(self.pending).cancel()
            else:
                await asyncio.sleep(self.chance.choice([0.0, 0.0, 0.01, 0.2, 3.0]))
            if self.chance.random() < 0.5:
                await asyncio.sleep(0)

    async def watch(self) -> None:
        """Check that no read pause is longer than its timeout."""
        while True:
            for session in self.sessions:
                since = session.read_backpressure.paused_at
                if since:
                    self.longest_pause = max(self.longest_pause, self.loop.time() - since)
            await asyncio.sleep(0.25)

    async def stop_pending(self) -> None:
        for task in self.pending:
            task.cancel()
        await self.settled(self.pending, "a cancelled call goes on")
        for task in self.pending:
            if not task.cancelled() and task.exception() is not None:
                raise AssertionError(f"seed {self.seed}: {task.exception()!r}")

    async def calm_down(self) -> None:
        """Start nothing new, cancel what still waits, and let every stream end."""
        await self.stop_pending()
        await asyncio.sleep(20.0)  # everything under way arrives
        for _ in range(3):
            calming = [asyncio.create_task(quietly(actor.calm)) for actor in self.actors]
            await self.settled(calming, "a stream does not come to its end")
            await asyncio.sleep(1.0)

    async def settled(self, tasks: list[asyncio.Task[None]], what: str) -> None:
        if tasks:
            _, waiting = await asyncio.wait(tasks, timeout=LONG)
            if waiting:
                raise Stuck(f"{self.protocol} seed {self.seed}: {what}: {waiting}")

    # --- what must be left: nothing

    def look_for_leaks(self) -> None:
        if any(session.closed.done() for session in self.sessions):
            return
        if self.longest_pause > PAUSE + 0.5:
            raise Stuck(f"{self.protocol} seed {self.seed}: paused {self.longest_pause:.1f} s")
        for side, session in enumerate(self.sessions):
            endpoint = session.endpoint
            left = {
                "streams": len(session.streams),
                "arrivals": len(session.accept_queue),
                "theirs": session.peer_stream_count,
                "unread": endpoint.receive_queue.unread_bytes,
                "queued": endpoint.scheduler.ready_bytes,
                "turns": endpoint.scheduler.ready_count(),
                "control": len(endpoint.scheduler.control_queue),
                "duties": sum(
                    1 for duty in endpoint.protocol.pending_replies.values() if duty.side == side
                ),
                "paused": int(session.read_backpressure.paused_at != 0),
            }
            if isinstance(session, StreamuxSession):
                left.update(held(session))
            kept = {name: count for name, count in left.items() if count}
            assert not kept, f"{self.protocol} seed {self.seed}: side {side} still holds {kept}"

    async def part(self, together: bool) -> None:
        """Close both sides, at once or one after the other; no task may remain."""
        began = self.loop.time()
        near, far = self.sessions
        if together:
            await asyncio.gather(near.close(), far.close())
        else:
            await near.close()
            await far.close()
        taken = self.loop.time() - began
        if taken > 2 * POLICY.close + 2:
            raise Stuck(f"{self.protocol} seed {self.seed}: closing took {taken:.1f} s")
        for session in self.sessions:
            assert session.closed.done()
            assert not session.streams, f"{self.protocol} seed {self.seed}: streams after the end"
