"""The demo's scenes: two real peers a scene, joined by a recording proxy on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from ..aio import (
    Call,
    NerdbankSession,
    OmnistreamsSession,
    Receiver,
    Session,
    Stream,
    StreamuxSession,
    connect,
    serve,
)  # fmt: skip
from ..capture.scribe import PacketSink
from ..core.errors import PolymuxError
from ..core.frames import Frame
from ..protocols.mplex import MESSAGE_INITIATOR
from ..record.tap import Tap

Script = Callable[[Session], Awaitable[None]]


@dataclass(frozen=True)
class Scene:
    """What the acceptor and the dialer do, and what a person should see in it."""

    protocol: str
    story: str
    acceptor: Script
    dialer: Script
    url: str = "tcp://127.0.0.1:0"


async def play(scene: Scene, sink: PacketSink) -> None:
    """Run one scene through the proxy, to its end."""
    protocol = scene.protocol
    async with (
        await serve(scene.acceptor, scene.url, protocol=protocol) as server,
        Tap(scene.url, server.url, sink, protocol=protocol) as tap,
        connect(tap.url, protocol=protocol) as session,
    ):
        await scene.dialer(session)
        await session.close()
        await asyncio.sleep(0.05)  # let the proxy see both directions end


async def echo(session: Session) -> None:
    """Answer every stream with its own octets."""

    async def answer(stream: Stream) -> None:
        try:
            async for chunk in stream:
                await stream.send(chunk)
            await stream.end()
        except PolymuxError:
            return  # reset by the peer: nothing to answer

    async with asyncio.TaskGroup() as tasks:
        async for stream in session.incoming:
            tasks.create_task(answer(stream))


async def ask(session: Session, name: str, data: bytes, times: int = 1) -> None:
    """One stream: questions and answers, then a clean end."""
    stream = await session.open(name)
    for _ in range(times):
        await stream.send(data)
        got = 0
        while got < len(data):
            got += len(await stream.receive())
    await stream.end()
    await stream.receive_all()


async def talk(session: Session) -> None:
    """Five streams side by side, all clean."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(ask(session, f"question {number}", b"how are you? " * 400, 10))


async def reset_one(session: Session) -> None:
    """Two streams; one is given up in the middle."""
    stream = await session.open("given up")
    await stream.send(b"never mind" * 50)
    await stream.receive()
    stream.abort("changed my mind")
    await ask(session, "kept", b"still here", 3)


async def slow_reader(session: Session) -> None:
    """Accepts with a small window and reads nothing for a while."""
    assert isinstance(session, NerdbankSession)
    stream = await session.accept("starved", window=4096)
    await asyncio.sleep(0.6)
    async for _ in stream:
        pass
    await stream.end()
    await session.wait_closed()


async def starved_writer(session: Session) -> None:
    stream = await session.open("starved")
    await stream.send(b"x" * 60_000)
    await stream.end()
    await stream.receive_all()


async def write_after_close(session: Session) -> None:
    """Closes a stream and writes to it all the same."""
    stream = await session.open("liar")
    await stream.send(b"the last word")
    await stream.end()
    await stream.receive_all()
    session.endpoint.put(Frame(MESSAGE_INITIATOR, stream.record.key, b"one more thing"), force=True)
    await ask(session, "honest", b"all is well", 2)


async def take_messages(session: Session) -> None:
    """Reads every stream to its end, message by message."""
    assert isinstance(session, OmnistreamsSession)

    async def take(receiver: Receiver) -> None:
        async for _ in receiver:
            pass

    async with asyncio.TaskGroup() as tasks:
        async for receiver in session.incoming:
            tasks.create_task(take(receiver))


async def send_messages(session: Session) -> None:
    """Four streams of messages, side by side."""
    assert isinstance(session, OmnistreamsSession)
    senders = [await session.open({"part": number}) for number in range(4)]
    for round_number in range(50):
        for sender in senders:
            await sender.send(b"message %d" % round_number)
    for sender in senders:
        await sender.end()


async def answer_requests(session: Session) -> None:
    """Answers each request with itself; one is never answered."""
    assert isinstance(session, StreamuxSession)

    async def work(call: Call) -> None:
        question = await call.read()
        if question == b"take your time":
            await asyncio.sleep(60)
        await call.reply(question)

    await session.answer(work)


async def send_requests(session: Session) -> None:
    """Thirty requests, ten at a time; one more is cancelled."""
    assert isinstance(session, StreamuxSession)
    for _ in range(3):
        await asyncio.gather(*(session.request(b"how are you? " * 100) for _ in range(10)))
    with suppress(TimeoutError):
        await session.request(b"take your time", timeout=0.3)


SCENES = (
    Scene("mplex", "five streams side by side", echo, talk),
    Scene("mplex", "a stream is reset in the middle", echo, reset_one),
    Scene("mplex", "a peer writes after closing its stream", echo, write_after_close),
    Scene("nerdbank:version=1", "five channels of version 1", echo, talk),
    Scene("nerdbank:version=2", "five channels of version 2", echo, talk),
    Scene("nerdbank:version=3", "a reader that takes its time, a window of 4096", slow_reader,
          starved_writer),
    Scene("omnistreams", "four streams of messages over a WebSocket", take_messages,
          send_messages, "ws://127.0.0.1:0/omnistreams"),
    Scene("streamux", "thirty requests, and one that is cancelled", answer_requests,
          send_requests),
)  # fmt: skip
