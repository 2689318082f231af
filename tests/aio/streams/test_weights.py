"""Weights of live streams: arguments, and how the streams of a session share its connection."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import pytest
from tests.aio.minmux_helpers import pair
from tests.aio.session_helpers import joined, opened
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session, Stream


async def shares(near: Session, far: Session, weights: list[int], size: int) -> list[float]:
    """What of its fair share each of these bulk streams sends until `size` bytes have arrived."""
    arrived: Counter[str] = Counter()
    measured: Counter[str] = Counter()
    done = asyncio.Event()

    async def read(stream: Stream) -> None:
        async for data in stream:
            arrived[stream.name] += len(data)
            total = arrived.total()
            if total >= size // 4 and not measured:  # the beginning is not counted
                measured.subtract(arrived)
            if total >= size:
                done.set()

    async def send(stream: Stream) -> None:
        while True:
            await stream.send(bytes(20_000))

    streams = [await near.open(str(n), weight=w) for n, w in enumerate(weights)]
    tasks = [asyncio.create_task(send(stream)) for stream in streams]
    tasks.append(asyncio.create_task(far.serve_streams(read)))
    await done.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    measured.update(arrived)
    fair = measured.total() / sum(weights)
    return [measured[str(n)] / w / fair for n, w in enumerate(weights)]


@virtual
@pytest.mark.parametrize("weights", [[1, 2, 4], [1, 1, 1, 1], [1, 8, 8]])
async def test_bulk_streams_share_a_session_by_weight(weights: list[int]) -> None:
    async with joined("mplex") as (near, far):
        found = await shares(near, far, weights, 2_000_000 * sum(weights))
        assert found == pytest.approx([1] * len(weights), abs=0.1)


@virtual
async def test_a_short_message_passes_bulk_streams_of_any_weight() -> None:
    async with joined("mplex", limits=polymux.Limits(accept_backlog=300)) as (near, far):
        bulk_bytes = 0

        async def serve(stream: Stream) -> None:
            nonlocal bulk_bytes
            async for data in stream:
                if stream.name == "ping":
                    await stream.send(data)
                else:
                    bulk_bytes += len(data)

        async def send(stream: Stream) -> None:
            while True:
                await stream.send(bytes(60_000))

        serving = asyncio.create_task(far.serve_streams(serve))
        heavy = [await near.open("bulk", weight=16) for _ in range(100)]
        tasks = [asyncio.create_task(send(stream)) for stream in heavy]
        ping = await near.open("ping")
        passed = []
        for _ in range(20):
            before = bulk_bytes
            await ping.send(b"ping")
            assert await ping.receive() == b"ping"
            passed.append(bulk_bytes - before)
        # Each bulk stream sends a first piece; then a ping passes one send buffer of the session.
        assert sum(passed[:10]) < 20_000_000
        assert max(passed[10:]) < 2_000_000
        for task in (*tasks, serving):
            task.cancel()
        await asyncio.gather(*tasks, serving, return_exceptions=True)


@virtual
async def test_streams_opened_one_after_another_do_not_keep_a_bulk_stream_waiting() -> None:
    async with joined("mplex") as (near, far):
        bulk_bytes = 0

        async def read(stream: Stream) -> None:
            nonlocal bulk_bytes
            async for data in stream:
                bulk_bytes += len(data) if stream.name == "bulk" else 0

        async def send(stream: Stream) -> None:
            while True:
                await stream.send(bytes(60_000))

        async def open_and_send() -> None:
            for _ in itertools.count():
                async with near.open("short") as stream:
                    await stream.send(bytes(60_000))

        serving = asyncio.create_task(far.serve_streams(read))
        tasks = [asyncio.create_task(open_and_send()) for _ in range(20)]
        tasks.append(asyncio.create_task(send(await near.open("bulk"))))
        while bulk_bytes < 2_000_000:
            await asyncio.sleep(0)
            assert near.bytes_sent < 200_000_000
        for task in (*tasks, serving):
            task.cancel()
        await asyncio.gather(*tasks, serving, return_exceptions=True)


@virtual
async def test_streams_of_a_session_that_has_sent_much_begin_as_equals() -> None:
    async with joined("mplex") as (near, far):
        sent: Counter[Stream] = Counter()

        async def read(stream: Stream) -> None:
            async for _ in stream:
                pass

        async def send(stream: Stream) -> None:
            while True:
                await stream.send(bytes(16_384))
                sent[stream] += 1

        serving = asyncio.create_task(far.serve_streams(read))
        earlier = [await near.open("earlier", weight=16) for _ in range(3)]
        tasks = [asyncio.create_task(send(stream)) for stream in earlier]
        while near.bytes_sent < 100_000_000:
            await asyncio.sleep(0)
        for stream in earlier:
            stream.abort()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert far.transport is not None
        far.transport.pause_reading()  # the first ones fill their buffers
        streams = [await near.open("equal", weight=16) for _ in range(100)]
        tasks = [asyncio.create_task(send(stream)) for stream in streams]
        for _ in range(20):
            await asyncio.sleep(0)
        far.transport.resume_reading()
        while min(sent[stream] for stream in streams) < 33:
            await asyncio.sleep(0)
        assert max(sent[stream] for stream in streams) < 3 * 33
        for task in (*tasks, serving):
            task.cancel()
        await asyncio.gather(*tasks, serving, return_exceptions=True)


@virtual
async def test_both_sides_have_a_weight_of_their_own_for_a_stream() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        assert (mine.weight, theirs.weight) == (1, 1)
        theirs.weight = 256
        assert (mine.weight, theirs.weight) == (1, 256)
        with pytest.raises(ValueError, match="to 256, not 0"):
            theirs.weight = 0
        with pytest.raises(TypeError, match="a weight is an int, not str"):
            theirs.weight = "heavy"  # type: ignore[assignment]  # the error is what is tested
        assert theirs.weight == 256


@virtual
async def test_a_wrong_weight_opens_no_stream() -> None:
    for protocol in ("mplex", "nerdbank", "omnistreams:carrier=length", "streamux", "yamux"):
        async with joined(protocol) as (near, _):
            await near.ready
            with pytest.raises(ValueError, match="to 256, not 1000"):
                await near.open(weight=1000)
            for weight in (1.0, float("nan"), True, "1"):
                kind = type(weight).__name__
                with pytest.raises(TypeError, match=f"a weight is an int, not {kind}"):
                    await near.open(weight=weight)  # type: ignore[arg-type]  # wrong on purpose
            assert near.open_streams == 0


@virtual
async def test_every_kind_of_stream_has_a_weight() -> None:
    async with joined("omnistreams:carrier=length") as (near, far):
        assert isinstance(near, polymux.OmnistreamsSession)
        sender = await near.open("x", weight=5)
        assert sender.weight == 5
    near, far = await polymux.streamux.pipe()
    async with near.exchange(weight=7) as exchange:
        assert exchange.weight == 7
        await exchange.send_message(b"?")
        call = await far.accept()
        call.weight = 9
        assert call.weight == 9
        await call.reply(b"!")
        assert await exchange.read() == b"!"
    near.abort()
    await far.wait_closed()
    first, second = await polymux.nerdbank.pipe()
    offered = await first.offer("x", weight=3)
    channel = await second.accept()
    channel.weight = 2
    assert (offered.weight, channel.weight) == (3, 2)
    first.abort()
    await second.wait_closed()
    async with pair() as (one, _):
        items = one.sender(1)
        items.weight = 4
        assert items.weight == 4
