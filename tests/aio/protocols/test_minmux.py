"""Minmux sessions: streams by id, and credit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.aio.cancellation_points import everywhere
from tests.aio.conftest import run_strictly
from tests.aio.minmux_helpers import MOST, pair, read_all, write_all
from tests.aio.session_helpers import settled
from tests.aio.virtual_clock import ClockLoop, virtual

import polymux
from polymux import Limits, MinmuxSession
from polymux.protocols.minmux.item_codecs import Fixed


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_items_go_both_ways_over_a_socket(scheme: str, tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def handle(session: polymux.Session) -> None:
        session = cast(MinmuxSession, session)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_all(session.receiver(1)))
            tasks.create_task(write_all(session.sender(2), b"from there" * 30_000, 77_777))
        heard.append(reading.result())
        await session.wait_closed()

    url = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/s"
    async with (
        await polymux.serve(handle, url, protocol="minmux") as server,
        polymux.connect(server.url, protocol="minmux") as session,
    ):
        near = session
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(read_all(near.receiver(2)))
            tasks.create_task(write_all(near.sender(1), b"from here" * 30_000, 10_000))
        assert reading.result() == b"from there" * 30_000
        while not heard:
            await asyncio.sleep(0.001)
        assert heard == [b"from here" * 30_000]
        assert near.endpoint.counters.hits == {}


async def test_however_many_streams_end_their_stops_are_no_fault() -> None:
    async def handle(session: polymux.Session) -> None:
        far = cast(MinmuxSession, session)
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 1001, 2):
                tasks.create_task(read_all(far.receiver(number)))
        assert far.endpoint.counters.hits == {}
        await session.wait_closed()

    limits = Limits(empty_frame_burst=5, empty_frame_rate=1)
    async with (
        await polymux.serve(
            handle, "tcp://127.0.0.1:0", protocol="minmux", limits=limits
        ) as server,
        polymux.connect(server.url, protocol="minmux", limits=limits) as session,
    ):
        near = session
        async with asyncio.TaskGroup() as tasks:
            for number in range(1, 1001, 2):
                tasks.create_task(write_all(near.sender(number), bytes(16_000), 16_000))
        while near.streams:
            await asyncio.sleep(0.001)
        assert near.failure is None


@virtual
async def test_a_thousand_streams_at_once_with_credit_for_one_item_at_a_time() -> None:
    async with pair() as (near, far):
        numbers = [1 + 2 * i for i in range(996)] + [MOST - 2 * i for i in range(4)]
        totals: dict[int, bytes] = {}

        async def read(number: int) -> None:
            totals[number] = await read_all(far.receiver(number, window=1))

        async with asyncio.TaskGroup() as tasks:
            for number in numbers:
                tasks.create_task(read(number))
                tasks.create_task(write_all(near.sender(number), b"%d" % number, 2))
        assert totals == {number: b"%d" % number for number in numbers}
        await settled()
        for session in (near, far):
            assert session.failure is None
            assert session.endpoint.counters.hits == {}
            assert session.streams == {}
            streams = session.protocol.streams.all()
            assert len(streams) == 1000
            for stream in streams:
                half = stream.half(0)
                size = len(b"%d" % (stream.stream_id % 2**64))
                assert stream.over
                assert (half.content_units, half.content_bytes, half.credit_spent) == (
                    size,
                    size,
                    size,
                )
                assert half.credit_granted in (size, size + 1)


@virtual
async def test_the_largest_id_works_from_both_sides() -> None:
    async with pair() as (near, far):
        up, down = near.sender(MOST), far.sender(MOST - 1)
        assert (up.stream_id, down.stream_id) == (MOST, MOST - 1)
        assert str(up) == f"stream d{MOST}"
        one, two = far.receiver(MOST), near.receiver(MOST - 1)
        await up.send(b"up")
        await down.send(b"down")
        assert await one.receive() == b"up"
        assert await two.receive() == b"down"


@virtual
async def test_a_second_call_for_an_id_returns_the_same_stream() -> None:
    async with pair() as (near, far):
        assert near.sender(1) is near.sender(1)
        assert far.receiver(1, window=3) is far.receiver(1, window=99)
        await settled()
        assert near.sender(1).credit == 3


@virtual
async def test_a_stream_is_written_by_one_side_only() -> None:
    async with pair() as (near, far):
        with pytest.raises(polymux.Unsupported, match=r"by the acceptor: read it with receiver\(0"):
            near.sender(0)
        with pytest.raises(polymux.Unsupported, match=r"dialer, this side: write it with sender"):
            near.receiver(1)
        with pytest.raises(polymux.Unsupported, match="by the dialer"):
            far.sender(1)
        with pytest.raises(polymux.LocalProtocolError, match="0 to 2\\*\\*64-1"):
            near.sender(2**64 + 1)
        with pytest.raises(polymux.LocalProtocolError, match="a window is 0 to"):
            near.receiver(0, window=-1)
        with pytest.raises(polymux.Unsupported, match=r"session.sender\(id\)"):
            await near.open("x")
        with pytest.raises(polymux.Unsupported, match=r"session.receiver\(id\)"):
            await near.accept()
        sender, receiver = near.sender(1), far.receiver(1)
        with pytest.raises(polymux.Unsupported, match="flows to the peer"):
            await sender.receive()
        with pytest.raises(polymux.Unsupported, match="flows from the peer"):
            receiver.send_nowait(b"x")


@virtual
async def test_sending_waits_for_credit_and_cancelled_it_has_queued_nothing() -> None:
    async for cut in everywhere():
        async with pair() as (near, far):
            sender, receiver = near.sender(1), far.receiver(1, window=0)
            asyncio.get_running_loop().call_later(0.05, receiver.grant, 5)
            finished, _ = await cut(sender.send(b"hello"))
            if receiver.window == 0:
                await asyncio.sleep(0.1)
            await sender.send(b"world") if not finished else None
            await settled()
            assert await receiver.receive() == (b"hello" if finished else b"world"), str(cut)
            assert sender.buffers.queued_bytes == 0


@virtual
async def test_receiving_cancelled_takes_nothing() -> None:
    async for cut in everywhere():
        async with pair() as (near, far):
            sender, receiver = near.sender(1), far.receiver(1, codec=Fixed(1))
            sender.send_nowait(b"ab")
            finished, item = await cut(receiver.receive())
            assert item == (b"a" if finished else None)
            rest = [await receiver.receive() for _ in range(1 if finished else 2)]
            assert rest == ([b"b"] if finished else [b"a", b"b"]), str(cut)


@virtual
async def test_credit_comes_back_at_half_the_window_once_it_was_read() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=10)
        await settled()
        await sender.send(b"0123456789")
        await settled()
        assert sender.credit == 0
        assert receiver.state.half(0).credit_granted == 10
        assert await receiver.receive() == b"0123456789"
        await settled()
        assert sender.credit == 10
        await sender.send(b"abcd")
        await settled()
        assert await receiver.receive() == b"abcd"
        await settled()
        assert sender.credit == 6


@virtual
async def test_without_a_window_only_grants_give_credit() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=0)
        waiting = asyncio.create_task(sender.send(b"abc"))
        await settled()
        assert not waiting.done()
        receiver.grant(2)
        await waiting
        assert await receiver.receive() == b"ab"
        await settled()
        assert receiver.receive_nowait() == b""
        receiver.grant(1)
        assert await receiver.receive() == b"c"
        receiver.grant(MOST)
        with pytest.raises(polymux.LocalProtocolError, match=r"minmux\.credit-overflow"):
            receiver.grant(1)


@virtual
async def test_a_reader_that_grants_nothing_costs_the_others_nothing() -> None:
    async with pair() as (near, far):
        far.receiver(1, window=0)
        stuck = near.sender(1)
        stuck.send_nowait(bytes(1024 * 1024))
        waiting = asyncio.create_task(stuck.send(b"more"))
        data = bytes(300_000)
        async with asyncio.TaskGroup() as tasks:
            reading = [tasks.create_task(read_all(far.receiver(n))) for n in (3, 5, 7)]
            for n in (3, 5, 7):
                tasks.create_task(write_all(near.sender(n), data, 50_000))
        assert [task.result() for task in reading] == [data] * 3
        assert near.endpoint.scheduler.ready_bytes == 0
        assert not waiting.done()
        waiting.cancel()


@virtual
async def test_credit_is_forgone_on_request_or_without_and_can_be_given_again() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=10)
        await settled()
        sender.forgo(3)
        with pytest.raises(polymux.LocalProtocolError, match=r"minmux\.forgo-exceeds-credit"):
            sender.forgo(8)
        await settled()
        assert receiver.window == sender.credit == 7
        receiver.oops(keep=2)
        await settled()
        assert receiver.window == sender.credit == 2
        for _ in range(5):  # the smaller window still comes back
            await sender.send(b"ab")
            assert await receiver.receive() == b"ab"
            await settled()
        receiver.grant(4)
        await settled()
        assert receiver.window == sender.credit == 6
        half = receiver.state.half(0)
        assert (half.credit_granted, half.credit_spent, half.content_units) == (24, 18, 10)
        with pytest.raises(polymux.LocalProtocolError, match="no credit was given yet"):
            far.receiver(3, window=0).oops()


@virtual
async def test_promises_are_reported_and_not_binding() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=0)
        sender.promise(MOST)
        receiver.promise(5)
        await settled()
        assert (receiver.promised, sender.promised) == (MOST, 5)
        assert sender.credit == 0


@virtual
async def test_credit_adds_up_while_the_transport_is_full() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=2)
        await settled()
        far.pause_writing()
        await sender.send(b"ab")
        assert await receiver.receive() == b"ab"
        await settled()
        assert sender.credit == 0
        far.resume_writing()
        await settled()
        assert sender.credit == 2


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_whatever_the_two_sides_do_totals_agree(data: st.DataObject) -> None:
    plans = data.draw(
        st.lists(
            st.tuples(st.lists(st.integers(1, 40), max_size=6), st.integers(1, 30), st.booleans()),
            min_size=1,
            max_size=8,
        )
    )

    async def run() -> None:
        async with pair() as (near, far):

            async def write(number: int, sizes: list[int], early: bool) -> None:
                sender = near.sender(number)
                if early:
                    await sender.stop(after=sum(sizes))
                for size in sizes:
                    await sender.send(bytes([size]) * size)
                await sender.stop()

            async with asyncio.TaskGroup() as tasks:
                reading = []
                for i, (sizes, window, early) in enumerate(plans):
                    tasks.create_task(write(2 * i + 1, sizes, early))
                    receiver = far.receiver(2 * i + 1, window=window)
                    reading.append(tasks.create_task(read_all(receiver)))
            expected = [b"".join(bytes([n]) * n for n in sizes) for sizes, _, _ in plans]
            assert [task.result() for task in reading] == expected
            await settled()
            assert near.streams == far.streams == {}
            assert near.failure is None
            assert far.failure is None

    run_strictly(run, ClockLoop)


@virtual
async def test_queued_frames_are_sent_before_received_data_is_processed() -> None:
    async with pair() as (near, _):
        near.sender(1).promise(5)
        written = near.bytes_sent
        near.data_received(bytes.fromhex("0100"))  # GiveCredit
        assert near.bytes_sent == written + 2
        assert near.sender(1).credit == 1


@virtual
@pytest.mark.parametrize("codec", [None, Fixed(1)])
async def test_receiving_everything_stops_at_a_limit(codec: Fixed | None) -> None:
    async with pair() as (near, far):
        sender = near.sender(1)
        receiver = far.receiver(1, codec=codec)
        await sender.send(bytes(1003))
        with pytest.raises(polymux.LimitExceeded, match="more than 999 bytes"):
            await receiver.receive_all(limit=999)
        await settled()
        assert sender.announced == 0
        with pytest.raises(polymux.StreamAborted):
            await receiver.receive()
        await sender.stop()
        await settled()
        assert near.streams == far.streams == {}
