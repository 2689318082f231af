"""A Minmux sender whose reader has stopped releases everything, in any order of ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.minmux_helpers import pair
from tests.aio.virtual_clock import ClockLoop


@pytest.mark.parametrize("order", ["sender first", "reader first", "at once"])
def test_items_that_no_credit_will_ever_come_for_do_not_keep_a_stream_alive(order: str) -> None:
    async def run() -> None:
        async with pair() as (near, far):
            sender, reader = near.sender(1), far.receiver(1, window=1000)
            await asyncio.sleep(1)
            await sender.send(bytes(3000))
            await asyncio.sleep(1)
            assert sender.buffers.queued_bytes == 2000
            ends = [reader, sender] if order == "reader first" else [sender, reader]
            for end in ends:
                await end.close()
                await asyncio.sleep(0 if order == "at once" else 1)
            await asyncio.sleep(1)
            assert (len(near.streams), len(far.streams)) == (0, 0)
            assert near.endpoint.scheduler.ready_bytes == 0
            assert near.failure is far.failure is None

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(run())
