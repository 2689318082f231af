"""omnistreams sessions: message streams, credit, cancels, metadata, control messages, limits."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from tests.aio.omnistreams_echo import MESSAGES, answer, there_and_back
from tests.aio.session_helpers import joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, MessageReceiver, MessageSender, OmnistreamsSession, Timeouts
from polymux.live.streams.fast_paths import MAX_PREFETCH_MESSAGES

NUMBERINGS = ["omnistreams", "omnistreams:numbering=legacy"]
CHILD = """
import asyncio, polymux
async def handle(session):
    async for receiver in session.incoming:
        async with await session.open(receiver.metadata) as sender:
            async for message in receiver:
                await sender.send(message)
async def main():
    server = await polymux.serve(handle, "stdio:", protocol="omnistreams")
    await server.wait_closed()
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def pair(
    protocol: str = "omnistreams", limits: Limits | None = None, timeouts: Timeouts | None = None
) -> AsyncIterator[tuple[OmnistreamsSession, OmnistreamsSession]]:
    async with joined(protocol, limits=limits, timeouts=timeouts) as (near, far):
        yield cast(OmnistreamsSession, near), cast(OmnistreamsSession, far)


async def opened(
    near: OmnistreamsSession, far: OmnistreamsSession, metadata: object = b"", window: int = 0
) -> tuple[MessageSender, MessageReceiver]:
    return await near.open(metadata), await far.accept(window=window)


@pytest.mark.parametrize("protocol", NUMBERINGS)
@pytest.mark.parametrize("url", ["tcp://127.0.0.1:0", "ws://127.0.0.1:0/omnistreams", "unix"])
async def test_messages_come_back_one_by_one(url: str, protocol: str, tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/s" if url == "unix" else url
    async with (
        await polymux.serve(answer, url, protocol=protocol) as server,
        polymux.connect(server.url, protocol=protocol) as session,
    ):
        assert await there_and_back(session, MESSAGES) == MESSAGES
        assert await there_and_back(session, []) == []
        assert session.endpoint.counters.hits == {}


async def test_a_child_is_spoken_to_over_its_pipes(tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    async with polymux.connect(
        f"exec:{sys.executable} {script}", protocol="omnistreams"
    ) as session:
        assert await there_and_back(session, MESSAGES) == MESSAGES


@virtual
async def test_metadata_is_bytes_text_or_json() -> None:
    async with pair() as (near, far):
        for given, sent in ((b"\xff", b"\xff"), ("é", "é".encode()), ({"a": [1]}, b'{"a":[1]}')):
            _, receiver = await opened(near, far, given)
            assert receiver.metadata == sent
        assert receiver.json() == {"a": [1]}
        with pytest.raises(ValueError, match="JSON cannot represent"):
            await near.open({1, 2})
        with pytest.raises(polymux.LimitExceeded, match="max_metadata_bytes"):
            await near.open(bytes(65537))


@virtual
async def test_a_sender_waits_for_requests_and_queues_nothing_when_cancelled() -> None:
    async with pair() as (near, far):
        sender = await near.open()
        sending = asyncio.create_task(sender.send(b"given up"))
        await settled()
        assert not sending.done()
        sending.cancel()
        await asyncio.wait([sending])
        receiver = await far.accept(window=2)
        await sender.send(b"1")
        await sender.send(b"2")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sender.send(b"3"), 1)
        assert [await receiver.receive() for _ in range(2)] == [b"1", b"2"]
        await sender.send(b"4")
        await sender.end()
        assert [message async for message in receiver] == [b"4"]
        with pytest.raises(polymux.StreamEnded):
            await receiver.receive()
        with pytest.raises(polymux.StreamEnded):
            await sender.send(b"5")


@virtual
async def test_credit_goes_back_when_half_the_window_was_read() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far, window=10)
        await settled()
        assert sender.credit == 10
        for _ in range(10):
            await sender.send(b"")
        await settled()
        for read in range(1, 6):
            assert await receiver.receive() == b""
            await settled()
            assert sender.credit == (5 if read == 5 else 0)


@virtual
async def test_send_nowait_and_send_many_wait_in_the_queue_for_credit() -> None:
    async with pair() as (near, far):
        sender = await near.open()
        sender.send_nowait(b"a")
        sender.send_many([b"", b"c"])
        await sender.end()
        receiver = await far.accept(window=1)
        assert [message async for message in receiver] == [b"a", b"", b"c"]
        await settled()
        assert near.streams == far.streams == {}


@virtual
async def test_a_window_above_255_is_asked_for_in_several_requests() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far, window=1000)
        await settled()
        assert sender.credit == 1000
        data = bytes(range(256)) * 1000
        async with asyncio.TaskGroup() as tasks:
            whole = tasks.create_task(receiver.receive_all())
            await sender.send_all(data, 100)
            await sender.end()
        assert whole.result() == data


async def passed(sender: MessageSender, receiver: MessageReceiver, size: int, count: int) -> int:
    """Send and read so many messages of this size, as many at a time as may be; the credit then."""
    while count > 0:
        batch = min(count, sender.credit)
        assert batch > 0
        for _ in range(batch):
            await sender.send(bytes(size))
        for _ in range(batch):
            assert await receiver.receive() == bytes(size)
        await settled()
        count -= batch
    return sender.credit


@virtual
async def test_more_messages_are_on_order_while_they_are_small_and_fewer_once_they_grow() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far)
        await settled()
        assert sender.credit == 64
        for size, most in (
            (64, MAX_PREFETCH_MESSAGES),
            (400, MAX_PREFETCH_MESSAGES),
            (20_000, 64),
            (64, MAX_PREFETCH_MESSAGES),
        ):
            # Up to half of it is asked for again only when the other half was read.
            assert most // 2 < await passed(sender, receiver, size, 4096) <= most


@pytest.mark.parametrize(("size", "window", "most"), [(5000, 0, 64), (1, 10, 10), (1, 64, 64)])
@virtual
async def test_no_more_are_on_order_if_they_are_large_or_a_window_was_asked_for(
    size: int, window: int, most: int
) -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far, window=window)
        await settled()
        for _ in range(10):
            assert await passed(sender, receiver, size, 7 * most // 2) <= most


@virtual
async def test_each_end_refuses_what_flows_the_other_way() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far)
        with pytest.raises(polymux.Unsupported, match="flows to the peer"):
            await sender.receive()
        for verb in (receiver.send(b"x"), receiver.send(b"")):
            with pytest.raises(polymux.Unsupported, match="flows from the peer"):
                await verb
        with pytest.raises(polymux.Unsupported):
            receiver.send_many([b"x"])


@pytest.mark.parametrize("protocol", NUMBERINGS)
@virtual
async def test_a_readers_cancel_stops_the_writer(protocol: str) -> None:
    async with pair(protocol) as (near, far):
        sender, receiver = await opened(near, far, window=1)
        await sender.send(b"read by nobody")
        receiver.cancel()
        receiver.cancel()
        await settled()
        with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
            await sender.send(b"more")
        with pytest.raises(polymux.StreamAborted, match="cancelled by this side"):
            await receiver.receive()
        await settled()
        assert near.streams == far.streams == {}
        assert near.endpoint.counters.hits == far.endpoint.counters.hits == {}


@virtual
async def test_a_writers_cancel_is_an_abort_for_the_reader() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far)
        await sender.send(b"x")
        sender.send_nowait(b"dropped")
        sender.cancel()
        with pytest.raises(polymux.StreamAborted, match="aborted by the peer"):
            await receiver.receive()
        await settled()
        assert near.streams == far.streams == {}


@virtual
async def test_a_legacy_writers_cancel_is_silent_and_keeps_its_id() -> None:
    async with pair("omnistreams:numbering=legacy") as (near, far):
        sender, receiver = await opened(near, far)
        sender.cancel()
        with pytest.raises(polymux.StreamAborted):
            await sender.send(b"x")
        reading = asyncio.create_task(receiver.receive())
        await settled()
        assert not reading.done()
        assert {(await near.open()).stream_id for _ in range(255)} == set(range(1, 256))
        opening = asyncio.create_task(near.open())
        await settled()
        assert not opening.done()
        receiver.cancel()
        await asyncio.wait([reading])
        assert isinstance(reading.exception(), polymux.StreamAborted)
        assert (await opening).stream_id == 0


@virtual
async def test_leaving_a_block_ends_a_sender_and_cancels_a_receiver() -> None:
    async with pair() as (near, far):
        sender, receiver = await opened(near, far)
        async with sender:
            await sender.send(b"x")
        async with receiver:
            assert [message async for message in receiver] == [b"x"]
        again, unread = await opened(near, far)
        async with unread:
            pass
        with pytest.raises(polymux.StreamAborted):
            await again.send(b"x")
        await settled()
        assert near.streams == far.streams == {}


@virtual
async def test_there_are_256_ids_and_each_comes_back() -> None:
    async with pair() as (near, far):
        senders = [await near.open() for _ in range(256)]
        opening = asyncio.create_task(near.open())
        await settled()
        assert not opening.done()
        await senders[9].end()
        assert (await opening).stream_id == 9
        assert len({sender.stream_id for sender in senders}) == 256
        await settled()
        assert far.failure is None


@virtual
async def test_streams_that_are_not_accepted_are_cancelled_past_the_limit() -> None:
    async with pair(limits=Limits(accept_backlog=2)) as (near, far):
        senders = [await near.open() for _ in range(3)]
        with pytest.raises(polymux.StreamAborted):
            await senders[2].send(b"x")
        assert far.endpoint.counters.hits == {"accept_backlog": 1}
        assert len(far.accept_queue) == 2


@virtual
async def test_control_messages_are_queued_until_they_are_read() -> None:
    async with pair() as (near, far):
        for message in (b"", "é", {"a": 1}):
            await near.control(message)
        assert [await far.receive_control() for _ in range(3)] == [b"", "é".encode(), b'{"a":1}']
        waiting = asyncio.create_task(far.receive_control())
        other = asyncio.create_task(far.receive_control())
        await settled()
        await near.control(b"one")
        await settled(1)
        waiting.cancel()
        await asyncio.wait([waiting, other])
        assert other.result() == b"one"
        with pytest.raises(polymux.LimitExceeded, match="limit max_frame_bytes=1048576"):
            await near.control(bytes(1048577))
        collecting = asyncio.create_task(collect(far))
        await near.control(b"last")
        await near.close()
        assert await collecting == [b"last"]


async def collect(session: OmnistreamsSession) -> list[bytes]:
    return [message async for message in session.controls]


@virtual
async def test_unread_control_messages_end_the_session_by_a_named_limit() -> None:
    async with pair(limits=Limits(session_buffer_bytes=10_000)) as (near, far):
        for _ in range(12):
            with contextlib.suppress(polymux.SessionClosed):
                await near.control(bytes(1000))
                await settled()
        await far.wait_closed()
        assert "limit session_buffer_bytes=10000" in str(far.failure)
        assert far._received_control_bytes <= 10_000


@virtual
async def test_a_message_over_the_limit_is_refused_before_it_waits() -> None:
    async with pair(limits=Limits(max_frame_bytes=100)) as (near, _):
        sender = await near.open()
        with pytest.raises(polymux.LimitExceeded, match="limit max_frame_bytes=100"):
            await sender.send(bytes(101))


@virtual
async def test_large_unread_messages_pause_the_session_for_a_bounded_time() -> None:
    limits = Limits(session_buffer_bytes=300_000)
    async with pair(limits=limits, timeouts=Timeouts(slow_reader=5)) as (near, far):
        slow, unread = await opened(near, far)
        quick, read = await opened(near, far)
        async with asyncio.TaskGroup() as tasks:
            job = tasks.create_task(fill(slow))
            await asyncio.sleep(1)
            assert far.read_backpressure.paused_at
            assert far.endpoint.receive_queue.unread_bytes < 1_000_000
            assert quick.credit > 0
            await quick.send(b"behind it")
            assert await read.receive() == b"behind it"
            await job
        with pytest.raises(polymux.StreamAborted, match="limit session_buffer_bytes=300000"):
            await unread.receive()
        assert far.failure is None


async def fill(sender: MessageSender) -> None:
    with contextlib.suppress(polymux.StreamAborted):
        while True:
            await sender.send(bytes(50_000))


@virtual
async def test_every_waiting_call_raises_at_the_end_of_the_session() -> None:
    async with pair() as (near, far):
        sender = await near.open()
        _, receiver = await opened(far, near)
        waits = [
            asyncio.create_task(wait)
            for wait in (
                sender.send(b"y"),
                receiver.receive(),
                near.accept(),
                near.receive_control(),
            )
        ]
        await settled()
        assert not any(task.done() for task in waits)
        far.abort()
        await asyncio.wait(waits)
        for task in waits:
            assert isinstance(task.exception(), polymux.SessionClosed)


@virtual
async def test_a_control_message_waits_for_a_full_transport_and_is_not_sent_if_cancelled() -> None:
    async with pair() as (near, far):
        assert far.transport is not None
        far.transport.pause_reading()
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1000:
                await asyncio.wait_for(near.control(bytes(10_000)), 1)
                sent += 1
        assert 20 < sent < 60
        assert near.endpoint.scheduler.control_queue == []
        far.transport.resume_reading()
        await near.control(b"last")
        heard = [await far.receive_control() for _ in range(sent + 1)]
        assert heard == [bytes(10_000)] * sent + [b"last"]


@virtual
async def test_an_id_created_over_and_over_holds_no_memory() -> None:
    async with pair() as (near, far):
        await opened(near, far)
        for _ in range(900):
            far.data_received(bytes.fromhex("00000002 0100"))
            await settled(3)
        assert len(far.streams) == len(far.accept_queue) == far.peer_stream_count == 1
        assert far.endpoint.counters.hits == {"omnistreams.create-on-open-id": 900}
        assert far.failure is None


@virtual
async def test_streams_without_end_leave_nothing_behind() -> None:
    async with pair() as (near, far):
        for number in range(1500):
            sender, receiver = await opened(near, far, window=2)
            await sender.send(b"")
            if number % 3 == 0:
                receiver.cancel()
            elif number % 3 == 1:
                sender.cancel()
                with pytest.raises(polymux.StreamAborted):
                    await receiver.receive_all()
            else:
                await sender.end()
                assert await receiver.receive_all() == b""
            await settled(4)
        assert near.streams == far.streams == {}
        assert (
            near.peer_stream_count,
            far.peer_stream_count,
            far.endpoint.receive_queue.unread_bytes,
        ) == (0, 0, 0)
