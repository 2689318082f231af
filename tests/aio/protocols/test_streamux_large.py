"""Large Streamux messages are in memory once; no handler starts for a peer that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
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


@given(st.lists(st.integers(0, MAX_JOINED_BYTES // 2), max_size=6))
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


# Eight messages of each of 24 sessions grow side by side; a session that has its share gives up its
# largest one. Prints how much the process has grown by at most, for each byte of the messages.
SIDE_BY_SIDE = """
import random
from polymux.live.streams.exchanges import MessageBuffer

def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

chance = random.Random(1)
SHARE = (128 << 20) // 24
sessions = [[MessageBuffer() for _ in range(8)] for _ in range(24)]
before, most = memory(), 0
for step in range(3750):
    messages = chance.choice(sessions)
    chunk = bytes(bytearray(240_000))
    for part in range(4):
        messages[(step // 24 * 4 + part) % 8].add(chunk[part * 60_000 : (part + 1) * 60_000])
    if sum(message.size for message in messages) > SHARE:
        messages[messages.index(max(messages, key=lambda each: each.size))] = MessageBuffer()
    held = sum(message.size for messages in sessions for message in messages)
    most = max(most, (memory() - before) / max(held, 64 << 20))
print(most)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_messages_that_grow_side_by_side_take_little_more_memory_than_they_have_bytes() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout) < 1.25


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
