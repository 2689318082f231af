"""Helpers for the tests of Minmux sessions."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import cast

from tests.aio.session_helpers import joined

from polymux import ItemReceiver, ItemSender, Limits, MinmuxSession, Timeouts

MOST = 2**64 - 1
PROFILE = """
[stream.1]
item = 4
last = 2
[stream.3]
item = "prefixed"
last = "prefixed"
[stream.5]
item = 1
last = "never"
[stream.7]
item = 0
last = 3
"""


@contextlib.asynccontextmanager
async def pair(
    protocol: str = "minmux", limits: Limits | None = None, timeouts: Timeouts | None = None
) -> AsyncIterator[tuple[MinmuxSession, MinmuxSession]]:
    async with joined(protocol, limits=limits, timeouts=timeouts) as (near, far):
        yield cast(MinmuxSession, near), cast(MinmuxSession, far)


async def read_all(receiver: ItemReceiver) -> bytes:
    return b"".join([part async for part in receiver])


async def write_all(sender: ItemSender, data: bytes, step: int) -> None:
    async with sender:
        for start in range(0, len(data), step):
            await sender.send(data[start : start + step])
