"""`readline` and `readexactly`: as of asyncio.StreamReader, within the stream's flow control."""

from __future__ import annotations

import asyncio
import random

import pytest

import polymux
from polymux import LimitExceeded, Session, Stream, StreamAborted, Unsupported


async def joined(protocol: str = "mplex") -> tuple[Session, Session, Stream, Stream]:
    near, far = await polymux.pipe(protocol)
    opening = asyncio.create_task(near.open("a"))
    theirs = await far.accept()
    return near, far, await opening, theirs


async def sent(stream: Stream, data: bytes, size: int = 0) -> None:
    for at in range(0, len(data), size or len(data)):
        await stream.send(data[at : at + (size or len(data))])
    await stream.end()


async def until_there(stream: Stream, size: int) -> None:
    while stream.buffers.unread_bytes < size:
        await asyncio.sleep(0)


async def block(source: Stream | asyncio.StreamReader, size: int) -> tuple[bytes, int | None]:
    """What `readexactly` gives, or what it says was missing."""
    try:
        return await source.readexactly(size), size
    except asyncio.IncompleteReadError as short:
        return short.partial, short.expected


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:window=1000"])
@pytest.mark.parametrize("seed", range(5))
async def test_lines_and_blocks_come_as_from_a_stream_reader(protocol: str, seed: int) -> None:
    chance = random.Random(seed)
    lines = [bytes(chance.choices(b"abc", k=chance.randrange(300))) + b"\n" for _ in range(200)]
    data = b"".join(lines) + bytes(chance.choices(b"abc", k=chance.randrange(300)))
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    near, far, stream, theirs = await joined(protocol)
    sending = asyncio.create_task(sent(stream, data, chance.randrange(1, 700)))
    while not reader.at_eof():
        if chance.random() < 0.7:
            assert await theirs.readline() == await reader.readline()
        else:
            size = chance.randrange(0, 2000)
            assert await block(theirs, size) == await block(reader, size)
    assert await theirs.readline() == b""
    await sending
    await asyncio.gather(near.close(), far.close())


async def test_a_block_larger_than_the_window_is_read() -> None:
    near, far, stream, theirs = await joined("nerdbank:window=1000")
    data = random.Random(1).randbytes(100_000)
    sending = asyncio.create_task(sent(stream, data))
    assert await theirs.readexactly(60_000) == data[:60_000]
    assert await theirs.receive_all() == data[60_000:]
    await sending
    await asyncio.gather(near.close(), far.close())


async def test_a_line_that_is_too_long_raises_and_nothing_of_it_is_lost() -> None:
    near, far, stream, theirs = await joined()
    await sent(stream, b"short\n" + b"x" * 1000 + b"\nlast", 300)
    await until_there(theirs, 1011)
    assert await theirs.readline(limit=6) == b"short\n"
    with pytest.raises(LimitExceeded, match=r"a line of more than 999 bytes; raise readline\("):
        await theirs.readline(limit=999)
    assert await theirs.readline(limit=1001) == b"x" * 1000 + b"\n"
    assert await theirs.readline() == b"last"
    assert await theirs.readline() == b""
    await asyncio.gather(near.close(), far.close())


async def test_a_size_that_a_peer_could_have_named_is_held_to_a_limit() -> None:
    near, far, stream, theirs = await joined()
    with pytest.raises(LimitExceeded, match=r"4294967295 bytes asked for, 16777216 allowed"):
        await theirs.readexactly(2**32 - 1)
    with pytest.raises(ValueError, match="0 or more bytes, not -1"):
        await theirs.readexactly(-1)
    assert await theirs.readexactly(0) == b""
    await stream.send(b"abc")
    assert await theirs.readexactly(3) == b"abc"
    await asyncio.gather(near.close(), far.close())


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:window=1000"])
async def test_a_cancelled_read_takes_nothing(protocol: str) -> None:
    near, far, stream, theirs = await joined(protocol)
    half = theirs.state.half(polymux.Side.DIALER)
    data = bytes(range(1, 10)) * 500
    sending = asyncio.create_task(stream.send(data))
    for size in (10, 900, 1900, 3000):
        for read in (theirs.readexactly(len(data) + 1), theirs.readline()):
            task = asyncio.create_task(read)
            await asyncio.sleep(0)
            while half.content_bytes < size:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert await theirs.readexactly(1500) == data[:1500]
    await sending
    await stream.end()
    assert theirs.receive_nowait() + await theirs.receive_all() == data[1500:]
    assert far.endpoint.receive_queue.unread_bytes == 0
    await asyncio.gather(near.close(), far.close())


async def test_bytes_that_are_read_again_give_credit_once() -> None:
    near, far, stream, theirs = await joined("nerdbank:window=1000")
    half = theirs.state.half(polymux.Side.DIALER)
    await stream.send(bytes(500))
    reading = asyncio.create_task(theirs.readline())
    while half.credit_granted < 1500:
        await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.send(bytes(500))
    while half.credit_spent < 1000:
        await asyncio.sleep(0)
    assert await theirs.readexactly(500) == bytes(500)
    await asyncio.sleep(0.02)
    assert half.credit_granted == 1500  # given when they were first taken
    assert await theirs.readexactly(500) == bytes(500)
    while half.credit_granted < 2000:
        await asyncio.sleep(0)
    await asyncio.gather(near.close(), far.close())


@pytest.mark.parametrize("limit", [10, 100_000])
async def test_bytes_that_came_one_by_one_are_read_in_linear_time(limit: int) -> None:
    near, far, stream, theirs = await joined()
    stream.send_many([b"x\n"[at % 2 : at % 2 + 1] for at in range(100_000)])
    await stream.end()
    await until_there(theirs, 100_000)
    async with asyncio.timeout(40):
        for _ in range(50_000):
            assert await theirs.readline(limit) == b"x\n"
    assert await theirs.readline() == b""
    await asyncio.gather(near.close(), far.close())


async def test_a_reset_is_no_end_of_data() -> None:
    near, far, stream, theirs = await joined()
    await stream.send(b"begun")
    await until_there(theirs, 5)
    reading = asyncio.create_task(theirs.readline())
    await asyncio.sleep(0)
    stream.abort()
    with pytest.raises(StreamAborted):
        await reading
    with pytest.raises(StreamAborted):
        await theirs.readexactly(1)
    await asyncio.gather(near.close(), far.close())


async def test_a_line_that_is_cut_off_at_the_end_of_a_read_and_ended_is_not_counted_for_ever() -> (
    None
):
    near, far, stream, theirs = await joined()
    await theirs.end()
    await stream.send(b"begun")
    await until_there(theirs, 5)
    reading = asyncio.create_task(theirs.readline())
    await asyncio.sleep(0)
    await stream.end()
    while far.open_streams:
        await asyncio.sleep(0)
    reading.cancel()  # in the event-loop iteration in which the end arrives
    try:
        assert await reading == b"begun"
    except asyncio.CancelledError:
        assert await theirs.readline() == b"begun"
    assert far.endpoint.receive_queue.unread_bytes == 0
    await asyncio.gather(near.close(), far.close())


async def test_a_request_can_be_read_in_lines_too() -> None:
    near, far = await polymux.pipe("streamux")
    asking = asyncio.create_task(near.request(b"one\ntwo"))
    call = await far.accept()
    assert [await call.readline(), await call.readline(), await call.readline()] == [
        b"one\n", b"two", b"",
    ]  # fmt: skip
    await call.reply(b"done")
    assert await asking == b"done"
    await asyncio.gather(near.close(), far.close())


async def test_streams_of_messages_and_items_have_no_lines() -> None:
    near, far = await polymux.pipe("omnistreams")
    async with near.open("a") as sender:
        receiver = await far.accept()
        with pytest.raises(Unsupported, match="flows to the peer"):
            await sender.readline()
        with pytest.raises(Unsupported, match="read them with receive"):
            await receiver.readline()
        with pytest.raises(Unsupported, match="read them with receive"):
            await receiver.readexactly(1)
    await asyncio.gather(near.close(), far.close())
