"""An echo server for omnistreams sessions, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import polymux
from polymux import MessageReceiver, OmnistreamsSession, Session

MESSAGES = [b"", b"x", bytes(100_000), b"", *[bytes([i]) * i for i in range(200)]]


async def answer(session: Session) -> None:
    """Echo every stream on a new one with the same metadata. One that fails affects no other."""
    ours = cast(OmnistreamsSession, session)

    async def one(receiver: MessageReceiver) -> None:
        with contextlib.suppress(polymux.StreamAborted):
            async with await ours.open(receiver.metadata) as sender:
                async for message in receiver:
                    await sender.send(message)

    async with asyncio.TaskGroup() as tasks:
        async for receiver in ours.incoming:
            tasks.create_task(one(receiver))


async def there_and_back(session: Session, messages: list[bytes]) -> list[bytes]:
    ours = cast(OmnistreamsSession, session)
    sender = await ours.open({"n": len(messages)})

    async def send() -> None:
        async with sender:
            for message in messages:
                await sender.send(message)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        receiver = await ours.accept()
        assert receiver.json() == {"n": len(messages)}
        return [message async for message in receiver]
