"""How Minmux streams end: limits, last items, `async with` blocks, reuse of ids."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.aio.minmux_helpers import PROFILE, pair, read_all
from tests.aio.session_helpers import settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, MinmuxSession
from polymux.protocols.minmux.item_codecs import Fixed, Prefixed
from polymux.protocols.minmux.packets import write


@pytest.fixture
def profiled(tmp_path: Path) -> str:
    (tmp_path / "profile.toml").write_text(PROFILE)
    return f"minmux:profile={tmp_path}/profile.toml"


@virtual
async def test_a_limit_ends_the_stream_after_so_many_items() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=4)
        await sender.stop(after=6)
        await settled()
        assert receiver.announced == 6
        with pytest.raises(polymux.LocalProtocolError, match=r"minmux\.limit-raised"):
            await sender.stop(after=7)
        with pytest.raises(polymux.LocalProtocolError, match="announced 6 more items, not 7"):
            sender.send_nowait(b"1234567")
        await sender.send(b"123")
        await sender.send(b"456")
        with pytest.raises(polymux.StreamEnded, match="has announced its end"):
            await sender.send(b"7")
        assert await read_all(receiver) == b"123456"
        assert receiver.last is None
        await settled()
        assert sender.state.over
        assert near.streams == far.streams == {}
        with pytest.raises(polymux.StreamEnded, match="is over"):
            sender.promise(1)
        assert await read_all(far.receiver(1)) == b""
        with pytest.raises(polymux.StreamEnded):
            near.sender(1).send_nowait(b"x")


@virtual
async def test_a_reader_that_stops_ends_the_waiting_of_the_writer() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=2)
        await settled()
        receiver.stop(more=1)
        await settled()
        assert sender.announced == 1
        with pytest.raises(polymux.StreamEnded, match="the peer takes 3 more items, not 4"):
            sender.send_nowait(b"1234")
        await sender.send(b"12")
        waiting = asyncio.create_task(sender.send(b"3"))
        another = asyncio.create_task(sender.send(b"4"))
        assert await receiver.receive() == b"12"
        with pytest.raises(polymux.StreamEnded, match="takes 0 more items"):
            await another
        await waiting
        assert await receiver.receive() == b"3"
        with pytest.raises(polymux.LocalProtocolError, match=r"minmux\.credit-past-limit"):
            receiver.grant(1)


@virtual
async def test_a_close_does_not_wait_for_undeliverable_items() -> None:
    async with pair() as (near, far):
        loop = asyncio.get_running_loop()
        far.receiver(1, window=1).stop()
        near.sender(1).endpoint.send(near.sender(1).state, b"abc")
        await settled()
        began = loop.time()
        await near.close()
        assert loop.time() - began < 2


@virtual
async def test_the_last_item_needs_no_credit_and_comes_apart_from_the_others(
    profiled: str,
) -> None:
    async with pair(profiled) as (near, far):
        sender, receiver = near.sender(1), far.receiver(1, window=1, codec=Fixed(4))
        await sender.send(b"aaaabbbb")
        with pytest.raises(polymux.LocalProtocolError, match="3 bytes are not its last item"):
            await sender.last(b"end")
        with pytest.raises(polymux.LocalProtocolError, match="5 bytes are no whole items"):
            await sender.send(b"ccccc")
        await sender.last(b"fi")
        assert receiver.last is None
        with pytest.raises(polymux.StreamEnded):
            await sender.send(b"cccc")
        with pytest.raises(polymux.StreamEnded):
            await sender.last(b"fo")
        assert [item async for item in receiver] == [b"aaaa", b"bbbb"]
        assert receiver.last == b"fi"
        await settled()
        assert sender.state.over
        half = receiver.state.half(0)
        assert (half.content_units, half.content_bytes) == (2, 10)


@virtual
async def test_items_that_carry_their_length_are_received_one_by_one(profiled: str) -> None:
    async with pair(profiled) as (near, far):
        sender, receiver = near.sender(3), far.receiver(3)
        items = [b"", b"a", b"b" * 300, b"c" * 65_000]
        for item in items:
            await sender.send(Prefixed().encode(item))
        await sender.last(Prefixed().encode(b"the end"))
        assert [item async for item in receiver] == items
        assert receiver.last == b"\x07the end"
        with pytest.raises(polymux.StreamEnded):
            sender.send_nowait(b"\x01x")
        with pytest.raises(polymux.LocalProtocolError, match="not the one of its profile"):
            far.receiver(1, codec=Prefixed())
        with pytest.raises(polymux.LocalProtocolError, match="not assigned"):
            near.sender(9)


@virtual
async def test_a_stream_without_end_is_not_stopped_and_items_without_bytes_are_counted(
    profiled: str,
) -> None:
    async with pair(profiled) as (near, far):
        async with near.sender(5) as endless:
            far.receiver(5)
            await endless.send(b"x")
            with pytest.raises(polymux.LocalProtocolError, match="endless-stream-stopped"):
                await endless.stop()
            with pytest.raises(polymux.LocalProtocolError, match="it cannot end"):
                await endless.last(b"x")
        assert endless.state.half(0).promised_limit < 0
        sender, receiver = near.sender(7), far.receiver(7, window=2)
        await settled()
        with pytest.raises(polymux.Unsupported, match="have no bytes"):
            sender.send_nowait(b"")
        near.endpoint.send_frame(write(7, b"", 2))
        await sender.last(b"end")
        assert [item async for item in receiver] == [b"", b""]
        assert receiver.last == b"end"


@virtual
async def test_leaving_the_block_early_stops_the_stream_and_drops_the_rest() -> None:
    async with pair() as (near, far):
        sender = near.sender(1)
        async with far.receiver(1, window=8) as receiver:
            await sender.send(b"12345678")
            assert await receiver.receive() == b"12345678"
            await sender.send(b"1234")
            await settled()
        with pytest.raises(polymux.StreamEnded, match="closed by this side"):
            await receiver.receive()
        await settled()
        assert far.endpoint.receive_queue.unread_bytes == 0
        with pytest.raises(polymux.StreamEnded, match="takes 4 more items"):
            await sender.send(b"12345")
        sender.abort("enough")
        await settled()
        assert near.streams == far.streams == {}
        with pytest.raises(polymux.StreamAborted, match="enough"):
            sender.send_nowait(b"x")


@virtual
async def test_an_id_can_be_used_again_where_the_profile_allows_it(tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text("reuse = true\n[default]\nitem = 1\nlast = 2\n")
    async with pair(f"minmux:profile={tmp_path}/again.toml") as (near, far):
        for use in range(1, 21):
            sender, receiver = near.sender(1), far.receiver(1, window=use)
            await sender.send(b"x" * use)
            await sender.last(b"%02d" % use)
            assert await read_all(receiver) == b"x" * use
            assert receiver.last == b"%02d" % use
            assert receiver.state.incarnation == use
            await settled()
            with pytest.raises(polymux.StreamEnded):
                sender.promise(1)
        assert near.streams == far.streams == {}
        assert near.failure is None


@virtual
async def test_each_side_goes_from_use_to_use_at_its_own_pace(tmp_path: Path) -> None:
    (tmp_path / "again.toml").write_text("reuse = true\n[default]\nitem = 1\nlast = 2\n")
    heard: list[tuple[bytes, bytes | None]] = []

    async def write_uses(session: MinmuxSession) -> None:
        for use in range(100):
            sender = session.sender(1)
            await sender.send(b"%d" % use)
            await sender.last(b"%02d" % use)
            await sender.wait_over()

    async def read_uses(session: MinmuxSession) -> None:
        for _ in range(100):
            receiver = session.receiver(1, window=1)
            heard.append((await receiver.receive_all(), receiver.last))
            await receiver.wait_over()

    async with pair(f"minmux:profile={tmp_path}/again.toml") as (near, far):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write_uses(near))
            tasks.create_task(read_uses(far))
        assert heard == [(b"%d" % use, b"%02d" % use) for use in range(100)]
        await settled()
        assert near.streams == far.streams == {}
        waiting = asyncio.create_task(near.sender(3).wait_over())
        await settled()
        await far.close()
        with pytest.raises(polymux.SessionClosed):
            await waiting


@virtual
async def test_unclaimed_streams_are_kept_within_a_limit() -> None:
    async with pair(limits=Limits(max_streams=3)) as (near, far):
        for number in (0, 2, 4):
            near.receiver(number, window=5)
        await settled()
        assert far.failure is None
        await far.sender(4).send(b"found")  # now it counts no more
        assert await near.receiver(4).receive() == b"found"
        near.receiver(6)
        await settled()
        assert far.failure is None
        near.receiver(8)
        await settled()
        assert isinstance(far.failure, polymux.LimitExceeded)
        assert "limit max_streams=3" in str(far.failure)
        with pytest.raises(polymux.SessionClosed):
            await far.sender(4).send(b"x")


@virtual
async def test_the_end_of_the_session_ends_every_wait() -> None:
    async with pair() as (near, far):
        sender, receiver = near.sender(1), near.receiver(0)
        waits = [asyncio.create_task(sender.send(b"x")), asyncio.create_task(receiver.receive())]
        await settled()
        await far.close()
        results = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(result) for result in results] == [polymux.SessionClosed] * 2
        with pytest.raises(polymux.SessionClosed):
            near.sender(1)


async def test_many_small_items_wait_without_being_counted_again_and_again(
    profiled: str,
) -> None:
    async with pair(profiled) as (near, far):
        sender, receiver = near.sender(3), far.receiver(3, window=30_000)
        await settled()
        began = time.perf_counter()
        for _ in range(15_000):
            await sender.send(b"\x01x")
        await sender.stop(after=15_000)
        for _ in range(15_000):
            await sender.send(b"\x01y")
        assert time.perf_counter() - began < 40  # some minutes if each send looked at all of them
        with pytest.raises(polymux.StreamEnded):
            await sender.send(b"\x01z")
        await sender.last(b"\x00")
        assert await receiver.receive_all() == b"x" * 15_000 + b"y" * 15_000
