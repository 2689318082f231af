"""Large Streamux messages are in memory once; no handler starts for a peer that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.aio.session_helpers import settled
from tests.aio.streamux_helpers import pair

import polymux
from polymux import Call
from polymux.core.send_scheduler import SESSION_SEND_BUFFER_BYTES
from polymux.live.streams.exchanges import MAX_JOINED_BYTES, MessageBuffer


@given(st.lists(st.integers(0, MAX_JOINED_BYTES), max_size=6))
def test_a_message_is_its_parts_in_their_order(sizes: list[int]) -> None:
    whole = MessageBuffer()
    parts = [bytes([n]) * size for n, size in enumerate(sizes)]
    for part in parts:
        whole.add(part)
    assert whole.size == sum(sizes)
    assert whole.getvalue() == b"".join(parts)


def test_a_large_message_is_never_held_twice() -> None:
    part = bytes(100_000)
    whole = MessageBuffer()
    tracemalloc.start()
    for _ in range(100):
        whole.add(part)
    assert len(whole.getvalue()) == 10_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 14_000_000


@pytest.mark.parametrize("size", [1000, 3_000_000])
async def test_no_new_work_is_begun_while_the_peer_takes_nothing(size: int) -> None:
    begun: list[Call] = []

    async def work(call: Call) -> None:
        begun.append(call)
        await call.reply(await call.read())

    async with pair("streamux") as (near, far):
        answering = asyncio.create_task(far.serve_calls(work))
        first = asyncio.create_task(near.request(bytes(size), timeout=0))
        await first
        far.pause_writing()
        asked = [asyncio.create_task(near.request(bytes(60_000), timeout=0)) for _ in range(12)]
        for _ in range(50):
            await settled()
        assert (
            far.endpoint.scheduler.ready_bytes >= SESSION_SEND_BUFFER_BYTES
        )  # their answers have taken the room there is
        before = len(begun)
        asked += [asyncio.create_task(near.request(bytes(60_000), timeout=0)) for _ in range(28)]
        for _ in range(50):
            await settled()
        assert len(begun) == before <= 13
        far.resume_writing()
        for each in asked:
            assert len(await each) == 60_000
        assert len(begun) == 41
        await near.close()
        with contextlib.suppress(polymux.SessionClosed):
            await answering
