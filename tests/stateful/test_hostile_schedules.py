"""Random full and empty readers, cancels, closes, resets and crossings: nothing hangs or leaks."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.aio.virtual_clock import ClockLoop
from tests.stateful.hostile_scheduler import Stage

PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
             "omnistreams:carrier=length", "streamux", "minmux", "yamux"]  # fmt: skip
SOAK = float(os.environ.get("POLYMUX_SOAK") or 0)  # minutes asked for; 0: the fast form
DEMANDED = 100_000
FULL = min(1.0, SOAK / 10)  # how much of that ten minutes or less are to show
SCHEDULES = max(150, -(-round(FULL * DEMANDED) // len(PROTOCOLS)))  # of each protocol
FIRST = int(os.environ.get("POLYMUX_SEED", "0"))


async def one(protocol: str, seed: int) -> float:
    complaints: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    stage = Stage(protocol, seed)
    await stage.run()
    for _ in range(3):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"{protocol} seed {seed}: tasks left behind: {left}"
    assert not complaints, f"{protocol} seed {seed}: {complaints}"
    return stage.longest_pause


@pytest.mark.timeout(7200 if SOAK else 300)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_schedule_makes_anybody_wait_for_ever_or_leaves_anything(protocol: str) -> None:
    pauses = []
    for seed in range(FIRST, FIRST + SCHEDULES):
        with asyncio.Runner(loop_factory=ClockLoop) as runner:
            try:
                pauses.append(runner.run(one(protocol, seed)))
            except Exception as problem:
                raise AssertionError(f"{protocol} seed {seed}: {problem}") from problem
    print(f"R5 {protocol}: {SCHEDULES} schedules, {sum(p > 0 for p in pauses)} with a pause, "
          f"the longest {max(pauses):.2f} s")  # fmt: skip
