"""The peers of the demo: honest ones, and those with a planted fault.

A busy machine must not look like another fault. Honest streams therefore carry less than the 16 KiB
quantum of the send scheduler, so that none can block another, and have credit before they are used.
Where credit is granted only after the opening, the dialer measures how long that took: if it was
too long it raises `MachineTooSlow`, and the scene is repeated.
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
    YamuxSession,
)
from polymux.core.frames import Frame
from polymux.protocols.mplex.protocol import MESSAGE_INITIATOR
from polymux.protocols.yamux.protocol import INITIAL_WINDOW

WINDOW = 4096  # bytes
HUGE_MESSAGE_BYTES = 640 * 1024  # 0.8 s through the throttled relay
ITEMS = b"item" * 250  # each byte is an item
MAX_OPEN_SECONDS = 0.03  # a stall of 50 ms is a finding
ALL_READ = "all was read"


class MachineTooSlow(Exception):
    """The machine delayed the peers so much that the analysis would report it as a fault."""


async def echo(session: Session) -> None:
    """Send the data of every stream back on it."""

    async def answer(stream: Stream) -> None:
        async for chunk in stream:
            await stream.send(chunk)

    await session.serve_streams(answer)


async def exchange_echoes(session: Session, name: str, data: bytes, times: int = 1) -> None:
    """Open one stream, exchange `data` with the echoing peer `times` times, and end it cleanly."""
    stream = await session.open(name)
    for _ in range(times):
        await stream.send(data)
        got = 0
        while got < len(data):
            got += len(await stream.receive())
    await stream.end()
    await stream.receive_all()


async def exchange_on_five_streams(session: Session) -> None:
    """Five concurrent streams, all clean."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(
                exchange_echoes(session, f"question {number}", b"how are you? " * 40, 10)
            )


async def reset_one(session: Session) -> None:
    """Two streams, one of which is aborted in the middle."""
    stream = await session.open("given up")
    await stream.send(b"never mind" * 50)
    await stream.receive()
    stream.abort("changed my mind")
    await exchange_echoes(session, "kept", b"still here", 3)


async def write_after_close(session: Session) -> None:
    """End a stream and then send on it: a violation."""
    stream = await session.open("liar")
    await stream.send(b"the last word")
    await stream.end()
    await stream.receive_all()
    session.endpoint.send_frame(
        Frame(MESSAGE_INITIATOR, stream.state.key, b"one more thing"), force=True
    )
    await exchange_echoes(session, "honest", b"all is well", 2)


async def read_slowly(session: Session) -> None:
    """Accept with a small window, and read only every 150 ms."""
    assert isinstance(session, NerdbankSession)  # the protocol of the scene, here and below
    stream = await session.accept("starved", window=WINDOW)
    await asyncio.sleep(0.15)
    async for _ in stream:
        await asyncio.sleep(0.15)
    await stream.end()
    await session.wait_closed()


async def send_six_windows(session: Session) -> None:
    """Send six windows of data on one stream."""
    stream = await session.open("starved")
    await stream.send(b"x" * 6 * WINDOW)
    await stream.end()
    await stream.receive_all()


async def read_by_windows(session: Session) -> None:
    """Keep the smallest window that yamux has, and read it only every 150 ms."""
    assert isinstance(session, YamuxSession)
    stream = await session.accept(window=INITIAL_WINDOW)
    for _ in range(4):
        await asyncio.sleep(0.15)
        await stream.readexactly(INITIAL_WINDOW)
    await stream.receive_all()
    await stream.end()
    await session.wait_closed()


async def send_four_windows(session: Session) -> None:
    """Send four windows of data on one stream."""
    stream = await session.open()
    await stream.send(b"x" * 4 * INITIAL_WINDOW)
    await stream.end()
    await stream.receive_all()


async def read_late(session: Session) -> None:
    """Echo the second channel at once; read the first only after that has ended."""
    assert isinstance(session, NerdbankSession)
    late, prompt = session.seeded(0), session.seeded(1)
    async for chunk in prompt:
        await prompt.send(chunk)
    await prompt.end()
    await late.receive_all()
    await late.end()
    await session.wait_closed()


async def give_up_waiting(session: Session) -> None:
    """Fill the window of a channel that is not read, use the other channel, wait, and end both."""
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
    """Read all announced streams to their end, then send `ALL_READ` as a control message."""
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
    """Announce and open streams, and wait for the first credit of each.

    Raises:
        MachineTooSlow: That took longer than `MAX_OPEN_SECONDS`.
    """
    await session.control(str(len(metadata)))
    started = session.loop.time()
    senders = [await session.open(value) for value in metadata]
    for sender in senders:
        await sender.drain()
    if session.loop.time() - started > MAX_OPEN_SECONDS:
        raise MachineTooSlow
    return senders


async def send_messages(session: Session) -> None:
    """Four concurrent streams of messages."""
    assert isinstance(session, OmnistreamsSession)
    senders = await begin_messages(session, *({"part": number} for number in range(4)))
    for round_number in range(50):
        for sender in senders:
            await sender.send(b"message %d" % round_number)
    for sender in senders:
        await sender.end()
    await session.receive_control()


async def send_huge_message(session: Session) -> None:
    """Send a huge message on one stream and two small ones on another right behind it."""
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
    """Answer each request with its own content."""
    assert isinstance(session, StreamuxSession)

    async def work(call: Call) -> None:
        await call.reply(await call.read())

    await session.serve_calls(work)


async def send_requests(session: Session) -> None:
    """Send thirty requests, ten at a time."""
    assert isinstance(session, StreamuxSession)
    for _ in range(3):
        await asyncio.gather(*(session.request(b"how are you? " * 100) for _ in range(10)))


async def take_items(session: Session) -> None:
    """Grant credit on three streams and read them to their end."""
    assert isinstance(session, MinmuxSession)

    async def take(receiver: ItemReceiver) -> None:
        async for _ in receiver:
            pass

    async with asyncio.TaskGroup() as tasks:
        for number in (1, 3, 5):
            tasks.create_task(take(session.receiver(number)))
    await session.wait_closed()


async def send_items(session: Session) -> None:
    """Three concurrent streams of items."""
    assert isinstance(session, MinmuxSession)
    senders = [session.sender(number) for number in (1, 3, 5)]
    for _ in range(4):
        for sender in senders:
            await sender.send(ITEMS)
    for sender in senders:
        await sender.end()
    for sender in senders:
        await sender.wait_over()
