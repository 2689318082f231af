"""What the peers of the demo do: honest ones, and those with a fault planted in them.

However busy the machine is, it must not look like a sixth fault. Honest streams carry less than the
16 KiB that a fair sender gives a stream at a time, so none of them can hold up another, and they
have leave to send before they are used. Where leave is only given after the opening, the dialer
looks at the clock: if that took long, the scene is `Disturbed` and has to be played again.
"""

from __future__ import annotations

import asyncio

from polymux.aio import (
    Call,
    ItemReceiver,
    MessageReceiver,
    MessageSender,
    MinmuxSession,
    NerdbankSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
)
from polymux.core.frames import Frame
from polymux.protocols.mplex.protocol import MESSAGE_INITIATOR

WINDOW = 4096
HUGE_MESSAGE_BYTES = 640 * 1024  # bytes: 0.8 s on a thin line
ITEMS = b"item" * 250  # items are bytes
MAX_OPEN_SECONDS = 0.03  # seconds; a stall is 50 ms
ALL_READ = "all was read"


class MachineTooSlow(Exception):
    """The machine held up the peers for so long that it would be taken for their fault."""


async def echo(session: Session) -> None:
    """Answer every stream with its own bytes."""

    async def answer(stream: Stream) -> None:
        async for chunk in stream:
            await stream.send(chunk)

    await session.serve_streams(answer)


async def exchange_echoes(session: Session, name: str, data: bytes, times: int = 1) -> None:
    """One stream: questions and answers, then a clean end."""
    stream = await session.open(name)
    for _ in range(times):
        await stream.send(data)
        got = 0
        while got < len(data):
            got += len(await stream.receive())
    await stream.end()
    await stream.receive_all()


async def exchange_on_five_streams(session: Session) -> None:
    """Five streams side by side, all clean."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(
                exchange_echoes(session, f"question {number}", b"how are you? " * 40, 10)
            )


async def reset_one(session: Session) -> None:
    """Two streams; one is given up in the middle."""
    stream = await session.open("given up")
    await stream.send(b"never mind" * 50)
    await stream.receive()
    stream.abort("changed my mind")
    await exchange_echoes(session, "kept", b"still here", 3)


async def write_after_close(session: Session) -> None:
    """Closes a stream and writes to it all the same."""
    stream = await session.open("liar")
    await stream.send(b"the last word")
    await stream.end()
    await stream.receive_all()
    session.endpoint.send_frame(
        Frame(MESSAGE_INITIATOR, stream.state.key, b"one more thing"), force=True
    )
    await exchange_echoes(session, "honest", b"all is well", 2)


async def read_slowly(session: Session) -> None:
    """Accepts with a small window, and takes what came only every 150 ms."""
    assert isinstance(session, NerdbankSession)
    stream = await session.accept("starved", window=WINDOW)
    await asyncio.sleep(0.15)
    async for _ in stream:
        await asyncio.sleep(0.15)
    await stream.end()
    await session.wait_closed()


async def send_six_windows(session: Session) -> None:
    """A transfer of six windows."""
    stream = await session.open("starved")
    await stream.send(b"x" * 6 * WINDOW)
    await stream.end()
    await stream.receive_all()


async def read_late(session: Session) -> None:
    """Reads the first channel only when everything is over; the second at once."""
    assert isinstance(session, NerdbankSession)
    late, prompt = session.seeded(0), session.seeded(1)
    async for chunk in prompt:
        await prompt.send(chunk)
    await prompt.end()
    await late.receive_all()
    await late.end()
    await session.wait_closed()


async def give_up_waiting(session: Session) -> None:
    """Fills the window of a reader that reads nothing, waits, and has had enough."""
    assert isinstance(session, NerdbankSession)
    late, prompt = session.seeded(0), session.seeded(1)
    await late.send(b"x" * WINDOW)
    for _ in range(5):
        await prompt.send(b"one slow reader must not stall the rest")
        await prompt.receive()
    await asyncio.sleep(0.8)
    await late.end()
    await prompt.end()
    await late.receive_all()
    await prompt.receive_all()


async def take_messages(session: Session) -> None:
    """Reads streams to their end, message by message, and says when all are read."""
    assert isinstance(session, OmnistreamsSession)

    async def take(receiver: MessageReceiver) -> None:
        async for _ in receiver:
            pass

    expected = int(await session.receive_control())
    async with asyncio.TaskGroup() as tasks:
        for _ in range(expected):
            tasks.create_task(take(await session.accept()))
    await session.control(ALL_READ)
    await session.wait_closed()


async def begin_messages(session: OmnistreamsSession, *metadata: object) -> list[MessageSender]:
    """Open streams and wait until the peer has asked for messages on all of them."""
    await session.control(str(len(metadata)))
    began = session.loop.time()
    senders = [await session.open(each) for each in metadata]
    for sender in senders:
        await sender.drain()
    if session.loop.time() - began > MAX_OPEN_SECONDS:
        raise MachineTooSlow
    return senders


async def send_messages(session: Session) -> None:
    """Four streams of messages, side by side."""
    assert isinstance(session, OmnistreamsSession)
    senders = await begin_messages(session, *({"part": number} for number in range(4)))
    for round_number in range(50):
        for sender in senders:
            await sender.send(b"message %d" % round_number)
    for sender in senders:
        await sender.end()
    await session.receive_control()


async def send_huge_message(session: Session) -> None:
    """One stream sends a huge message; another has two small ones to send right behind it."""
    assert isinstance(session, OmnistreamsSession)
    chat, backup = await begin_messages(session, "chat", "backup")
    await chat.send(b"before")
    await asyncio.sleep(0.04)
    backup.send_nowait(b"x" * HUGE_MESSAGE_BYTES)
    chat.send_nowait(b"are you")
    chat.send_nowait(b"still there?")
    await backup.end()
    await chat.end()
    await session.receive_control()


async def answer_requests(session: Session) -> None:
    """Answers each request with itself."""
    assert isinstance(session, StreamuxSession)

    async def work(call: Call) -> None:
        await call.reply(await call.read())

    await session.serve_calls(work)


async def send_requests(session: Session) -> None:
    """Thirty requests, ten at a time."""
    assert isinstance(session, StreamuxSession)
    for _ in range(3):
        await asyncio.gather(*(session.request(b"how are you? " * 100) for _ in range(10)))


async def take_items(session: Session) -> None:
    """Gives credit on three streams and reads them to their end."""
    assert isinstance(session, MinmuxSession)

    async def take(receiver: ItemReceiver) -> None:
        async for _ in receiver:
            pass

    async with asyncio.TaskGroup() as tasks:
        for number in (1, 3, 5):
            tasks.create_task(take(session.receiver(number)))
    await session.wait_closed()


async def send_items(session: Session) -> None:
    """Three streams of items, side by side."""
    assert isinstance(session, MinmuxSession)
    senders = [session.sender(number) for number in (1, 3, 5)]
    for _ in range(4):
        for sender in senders:
            await sender.send(ITEMS)
    for sender in senders:
        await sender.end()
    for sender in senders:
        await sender.wait_over()
