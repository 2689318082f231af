"""Many requests at once, of all sizes, some cancelled: right replies, and nothing left behind.

POLYMUX_SOAK=1 runs the full count of 10,000 requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random

import pytest
from tests.aio import conftest
from tests.aio.session_helpers import settled
from tests.aio.streamux_helpers import SMALL, all_free, held

import polymux
from polymux import Call, StreamuxSession

FULL = bool(os.environ.get("POLYMUX_SOAK"))
IN_FLIGHT = 64


class Soak:
    """Asks until `count` requests were made, with `IN_FLIGHT` of them at any time."""

    def __init__(self, session: StreamuxSession, count: int, largest: int, seed: int) -> None:
        self.session = session
        self.left = count
        self.largest = largest
        self.chance = random.Random(seed)
        self.noise = self.chance.randbytes(largest)
        self.right = self.cancelled = self.timed_out = self.bytes = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(self.keep_asking())

    async def keep_asking(self) -> None:
        while self.left:
            self.left -= 1
            size = min(self.largest, int(self.largest ** self.chance.random()))
            start = self.chance.randrange(self.largest - size + 1)
            data = self.noise[start : start + size]
            dice = self.chance.random()
            if dice < 0.05:
                await self.ask_and_cancel(data)
            elif dice < 0.1:
                try:
                    await self.session.request(data, timeout=self.chance.choice([1e-9, 0.01]))
                    self.right += 1
                except TimeoutError:
                    self.timed_out += 1
            else:
                await self.ask(data)

    async def ask(self, data: bytes) -> None:
        reply = await self.session.request(data, timeout=600)
        assert reply[:32] == hashlib.sha256(data).digest()
        assert reply[32:] == data[::-1]
        self.right += 1
        self.bytes += len(data) + len(reply)

    async def ask_and_cancel(self, data: bytes) -> None:
        task = asyncio.create_task(self.ask(data))
        for _ in range(self.chance.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.cancelled += 1


async def mirror(call: Call) -> None:
    data = await call.read()
    if len(data) % 3 == 0:
        await asyncio.sleep(0)  # replies in another order than requests
    await call.send(hashlib.sha256(data).digest())
    await call.reply(data[::-1])


@pytest.mark.parametrize(
    ("protocol", "other", "count", "largest", "ids"),
    [
        ("streamux", "streamux", 10_000 if FULL else 500, 1 << 20, 0),
        (SMALL, SMALL, 10_000 if FULL else 500, (1 << 20) if FULL else (1 << 15), 16),
        ("streamux:length_bits=20,id_bits=10", "streamux:length_bits=13,id_bits=17",
         10_000 if FULL else 300, 1 << 20, 1024),
    ],
)  # fmt: skip
async def test_a_soak_gets_every_reply_right_and_leaks_nothing(
    protocol: str, other: str, count: int, largest: int, ids: int
) -> None:
    served: list[StreamuxSession] = []

    async def handle(session: StreamuxSession) -> None:
        served.append(session)
        await session.serve_calls(mirror)

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=other)
    limits = polymux.Limits(max_own_streams=2000)
    async with server, polymux.connect(server.url, protocol=protocol, limits=limits) as session:
        assert isinstance(session, StreamuxSession)
        soak = Soak(session, count, largest, 20)
        await soak.run()
        async with asyncio.timeout(40):
            while any(held(session).values()) or any(held(served[0]).values()):
                await asyncio.sleep(0.01)
        print(
            f"{protocol}: {soak.right} right, {soak.cancelled} cancelled, {soak.timed_out} timed "
            f"out, {soak.bytes} bytes; left here {held(session)}, there {held(served[0])}, "
            f"tasks {len(asyncio.all_tasks())}"
        )
        assert soak.right + soak.cancelled + soak.timed_out == count
        assert soak.cancelled
        assert soak.timed_out
        assert session.endpoint.counters.hits == {}
        broken = set(served[0].endpoint.counters.hits) - {"streamux.cancel-unknown"}
        assert not broken
        if ids:
            await all_free(session, ids)
            await settled()
            assert not any(held(session).values())


if FULL:
    conftest.MAX_TEST_SECONDS = 1200.0
