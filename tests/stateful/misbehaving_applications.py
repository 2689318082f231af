"""Applications that behave badly, within what the API lets them do: one for each shape of session.

An actor starts things and does not wait for them: `act` picks one, as a coroutine that may be
cancelled wherever it stands. `calm` lets everything come to its end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any, cast

import polymux
from polymux import (
    Call,
    ItemReceiver,
    ItemSender,
    MessageReceiver,
    MessageSender,
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
)  # fmt: skip
from polymux.live.session.wakeups import IDLE

Act = Coroutine[Any, Any, None]
SIZES = [0, 1, 100, 3000, 9000, 40_000]


class Actor:
    """Duplex streams: opened, taken, filled, read, ended, aborted and closed at random."""

    def __init__(self, session: Session, chance: Random) -> None:
        self.session = session
        self.chance = chance
        self.streams: list[Any] = []

    def acts(self) -> list[Callable[[], Act]]:
        return [self.open, self.accept, self.send, self.send, self.receive, self.receive, self.end,
                self.abort, self.close]  # fmt: skip

    def act(self) -> Callable[[], Act]:
        return self.chance.choice(self.acts())

    def any(self) -> Any:
        return self.chance.choice(self.streams) if self.streams else None

    def raw_bytes(self) -> bytes:
        return bytes(self.chance.choice(SIZES))

    async def open(self) -> None:
        name = "" if isinstance(self.session, polymux.YamuxSession) else "x"
        self.streams.append(await self.session.open(name))

    async def accept(self) -> None:
        self.streams.append(await self.session.accept())

    async def send(self) -> None:
        stream, data = self.any(), self.raw_bytes()
        if stream is not None:
            await stream.send(data)

    async def receive(self) -> None:
        stream = self.any()
        if stream is not None and not reads(stream):
            await stream.receive()

    async def end(self) -> None:
        stream = self.any()
        if stream is not None:
            await stream.end()

    async def abort(self) -> None:
        stream = self.any()
        if stream is not None:
            stream.abort("changed my mind")

    async def close(self) -> None:
        stream = self.any()
        if stream is not None:
            await stream.close()

    # --- the end of it

    async def calm(self) -> None:
        """Accept all waiting streams, end and read everything."""
        while len(self.session.accept_queue):
            await self.accept()
        await asyncio.gather(*[self.finish(stream) for stream in list(self.streams)])

    async def finish(self, stream: Any) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            async with stream:
                await stream.end()
                while await stream.receive():
                    pass


def reads(stream: Stream) -> bool:
    """Whether a task is already reading; only one at a time may."""
    return stream.read_waiter is not None and stream.read_waiter.state != IDLE


class MessageActor(Actor):
    """One-way streams of messages, and control messages beside them."""

    def acts(self) -> list[Callable[[], Act]]:
        return [*super().acts(), self.control, self.listen]

    async def send(self) -> None:
        senders = [stream for stream in self.streams if isinstance(stream, MessageSender)]
        if senders:
            await self.chance.choice(senders).send(self.raw_bytes())

    async def receive(self) -> None:
        readers = [s for s in self.streams if isinstance(s, MessageReceiver) and not reads(s)]
        if readers:
            await self.chance.choice(readers).receive()

    async def control(self) -> None:
        await cast(OmnistreamsSession, self.session).control(b"hello")

    async def listen(self) -> None:
        await cast(OmnistreamsSession, self.session).receive_control()

    async def finish(self, stream: Any) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            if isinstance(stream, MessageSender):
                await stream.end()
            else:
                async with stream:
                    async for _ in stream:
                        pass


class AskingActor(Actor):
    """Requests and calls: asked whole or in steps, answered, dropped, cancelled, timed out."""

    session: StreamuxSession

    def acts(self) -> list[Callable[[], Act]]:
        return [*super().acts(), self.request, self.request, self.reply, self.reply, self.drop]

    async def open(self) -> None:
        self.streams.append(await self.session.open())

    async def request(self) -> None:
        with contextlib.suppress(TimeoutError):
            await self.session.request(
                self.raw_bytes() or b"x", timeout=self.chance.choice([0, 0.5])
            )

    async def reply(self) -> None:
        calls = [stream for stream in self.streams if isinstance(stream, Call)]
        if calls:
            await self.chance.choice(calls).reply(self.raw_bytes())

    async def drop(self) -> None:
        calls = [stream for stream in self.streams if isinstance(stream, Call)]
        if calls:
            self.chance.choice(calls).drop()

    async def finish(self, stream: Any) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            if isinstance(stream, Call):
                try:
                    await stream.reply(b"done")
                finally:
                    await stream.close()  # also what was answered and not read
            else:
                async with stream:
                    pass  # not wanted any more: cancelled


class ItemActor(Actor):
    """Streams of items by their ids: written, read, stopped at random from both sides."""

    session: MinmuxSession

    def acts(self) -> list[Callable[[], Act]]:
        return [self.reach, self.reach, self.send, self.send, self.receive, self.receive, self.end,
                self.abort, self.close, self.limit]  # fmt: skip

    async def reach(self) -> None:
        number = self.chance.randrange(10)
        writes = number % 2 == 1 - self.session.endpoint.side
        stream: Any = (
            self.session.sender(number) if writes else self.session.receiver(number, window=5000)
        )
        if stream not in self.streams:
            self.streams.append(stream)

    async def send(self) -> None:
        senders = [stream for stream in self.streams if isinstance(stream, ItemSender)]
        if senders:
            await self.chance.choice(senders).send(self.raw_bytes())

    async def receive(self) -> None:
        readers = [s for s in self.streams if isinstance(s, ItemReceiver) and not reads(s)]
        if readers:
            await self.chance.choice(readers).receive()

    async def limit(self) -> None:
        stream = self.any()
        if isinstance(stream, ItemSender):
            await stream.stop(self.chance.choice([0, 1, 5000]))
        elif isinstance(stream, ItemReceiver):
            stream.stop(self.chance.choice([0, 1, 5000]))

    async def calm(self) -> None:
        """Minmux has no openings: both sides must use every stream to end it."""
        for number in range(10):
            with contextlib.suppress(polymux.PolymuxError):
                writes = number % 2 == 1 - self.session.endpoint.side
                stream: Any = (
                    self.session.sender(number) if writes else self.session.receiver(number)
                )
                await self.finish(stream)

    async def finish(self, stream: Any) -> None:
        with contextlib.suppress(polymux.PolymuxError):
            await stream.close()


ACTORS: dict[str, type[Actor]] = {"omnistreams": MessageActor, "streamux": AskingActor,
                                  "minmux": ItemActor}  # fmt: skip


def actor_for(protocol: str) -> type[Actor]:
    return ACTORS.get(protocol.partition(":")[0], Actor)


async def quietly(act: Callable[[], Awaitable[None]]) -> None:
    """Suppress the documented errors of the API; any other is a bug."""
    with contextlib.suppress(polymux.PolymuxError):
        await act()
