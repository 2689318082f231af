"""Callers that wait to open a stream, and streams of the peer held at a limit."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

import polymux
from polymux import Limits, MinmuxSession, OmnistreamsSession, StreamuxSession

CHILD = """
import sys
def frame(number, flag, data):
    word, head = number * 8 + flag, b""
    while word > 127:
        word, head = word >> 7, head + bytes([word & 127 | 128])
    return head + bytes([word, len(data)]) + data
for number in range(0, 12, 2):
    for flag, data in (0, b"x"), (2, b"said"), (4, b""):
        sys.stdout.buffer.write(frame(number, flag, data))
"""


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "omnistreams:carrier=length"])
async def test_room_that_a_woken_caller_does_not_use_goes_to_the_next(protocol: str) -> None:
    near, far = await polymux.pipe(protocol, limits=Limits(max_own_streams=1))

    async def accept() -> None:
        while True:
            await far.accept()

    accepting = asyncio.create_task(accept())
    first = await near.open("a")
    refused = asyncio.create_task(near.open("x" * 70_000))
    waiting = asyncio.create_task(near.open("c"))
    await asyncio.sleep(0.01)
    first.abort()
    async with asyncio.timeout(30):
        with pytest.raises(polymux.PolymuxError):
            await refused
        assert await waiting
    accepting.cancel()
    near.abort()
    far.abort()


async def test_a_caller_whose_coroutine_is_closed_is_removed() -> None:
    near, far = await polymux.pipe("mplex", limits=Limits(max_own_streams=1))
    first = await near.open("a")
    gone = near.open("b")
    gone.send(None)
    gone.close()
    first.abort()
    async with asyncio.timeout(30):
        await near.open("c")
    near.abort()
    far.abort()


async def test_opening_raises_if_no_stream_may_be_opened() -> None:
    near, far = await polymux.pipe("mplex", limits=Limits(max_own_streams=0))
    with pytest.raises(polymux.LimitExceeded, match="max_own_streams=0"):
        await near.open("a")
    near.abort()
    far.abort()


async def test_aborted_streams_leave_no_debt_at_a_refill_rate_of_0() -> None:
    near, far = await polymux.pipe("mplex", limits=Limits(max_own_streams=5, open_reset_rate=0))
    async with asyncio.timeout(30):
        for _ in range(20):
            (await near.open("a")).abort()
    near.abort()
    far.abort()


@pytest.mark.parametrize("protocol", ["streamux", "mplex"])
async def test_a_chunk_that_opens_far_more_than_the_limit_is_served_in_order(
    protocol: str,
) -> None:
    async def reply(call: polymux.Call) -> None:
        await call.reply(await call.read())

    async def echo(stream: polymux.Stream) -> None:
        await stream.send(await stream.receive_all())

    async def handle(session: polymux.Session) -> None:
        if isinstance(session, StreamuxSession):
            await session.serve_calls(reply)
        else:
            await session.serve_streams(echo)

    async def ask(session: polymux.Session, number: int) -> bytes:
        said = b"%d" % number
        if isinstance(session, StreamuxSession):
            return await session.request(said, timeout=40)
        async with session.open("x") as stream:
            await stream.send(said)
            await stream.end()
            return await stream.receive_all()

    few = Limits(max_streams=100)
    async with polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol, limits=few) as server:
        async with polymux.connect(server.url, protocol=protocol) as session:
            asked = [ask(session, number) for number in range(1000)]
            assert await asyncio.gather(*asked) == [b"%d" % number for number in range(1000)]


async def test_streams_held_at_a_limit_can_be_accepted_after_the_connection_has_ended(
    tmp_path: Path,
) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    session = await polymux.connect(
        f"exec:{sys.executable} {program}", protocol="mplex", limits=Limits(max_streams=2)
    )
    await asyncio.sleep(1.5)  # longer than a child's pipes are waited for, less than a pause
    found = []
    async with asyncio.timeout(40):
        async for stream in session.incoming:
            found.append(await stream.receive_all())
            await stream.close()
    assert found == [b"said"] * 6


async def test_a_minmux_receiver_grants_credit_though_the_one_before_it_did_not_start() -> None:
    near, far = await polymux.pipe("minmux", limits=Limits(max_own_streams=1))
    assert isinstance(near, MinmuxSession)
    assert isinstance(far, MinmuxSession)
    await near.sender(1).stop()
    refused = asyncio.create_task(near.sender(3).last(b"no such last item"))
    await asyncio.sleep(0.01)
    receiver = near.receiver(2)
    far.receiver(1)
    async with asyncio.timeout(30):
        with pytest.raises(polymux.PolymuxError):
            await refused
        await far.sender(2).send(b"x")
        assert await receiver.receive() == b"x"
    near.abort()
    far.abort()


async def test_minmux_receivers_closed_before_they_started_end_in_order() -> None:
    near, far = await polymux.pipe("minmux")
    assert isinstance(near, MinmuxSession)
    assert isinstance(far, MinmuxSession)
    for receiver in [near.receiver(number) for number in range(0, 6000, 2)]:
        await receiver.close()
    async with asyncio.timeout(40):
        for number in range(0, 6000, 2):
            await far.sender(number).stop()
        answered = near.sender(1)
        far.receiver(1)
        await answered.send(b"x")
    assert near.failure is None
    assert far.failure is None
    near.abort()
    far.abort()


async def test_an_asynchronous_mock_is_a_handler() -> None:
    async with polymux.serve(AsyncMock(), "tcp://127.0.0.1:0", protocol="mplex") as server:
        assert server.url


async def test_a_task_that_opens_a_stream_says_so() -> None:
    near, far = await polymux.pipe("omnistreams:carrier=length")
    assert isinstance(near, OmnistreamsSession)
    task = asyncio.create_task(near.open("x"))
    assert "OmnistreamsSession.open" in repr(task)
    await task
    near.abort()
    far.abort()
