"""Minmux sessions and scripted peers: a violation ends the session with the name of the rule."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
from tests.aio.minmux_helpers import MOST, PROFILE, pair
from tests.aio.session_helpers import settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, MinmuxSession
from polymux.core.frames import Frame
from polymux.protocols.minmux.packets import (
    forgo_credit,
    give_credit,
    oops,
    promise_write,
    stop_read,
    stop_write,
    write,
)

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def profiled(tmp_path: Path) -> str:
    (tmp_path / "profile.toml").write_text(PROFILE)
    return f"minmux:profile={tmp_path}/profile.toml"


async def served(
    protocol: str, work: Callable[[MinmuxSession], Awaitable[None]], talk: Talk
) -> None:
    """A server that does `work` with its session, and a plain socket that talks to it."""

    async def handle(session: polymux.Session) -> None:
        await work(cast(MinmuxSession, session))

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol) as server:
        host, port = server.url.removeprefix("tcp://").rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()


# What a dialer says; the server has given credit for 3 items on stream 1.
BROKEN = [
    ("overrun by one item", "01 03 61626364", "credit-exceeded"),
    ("overrun at the second write", "01 01 6162 01 01 6162", "credit-exceeded"),
    ("a write without any credit", "03 00 61", "credit-exceeded"),
    ("a raised write limit", "41 02 41 05", "limit-raised"),
    ("a raised read limit", "40 02 40 03", "limit-raised"),
    ("more credit than announced", "40 01 00 01", "credit-past-limit"),
    ("more items than announced", "41 01 01 01 6162", "write-past-limit"),
    ("a write after the end", "41 00 01 00 61", "write-past-limit"),
    ("forgo beyond credit", "81 03", "forgo-exceeds-credit"),
    ("credit overflow", "00 ff fffffffffffffffe 00 00", "credit-overflow"),
    ("a number longer than need be", "00 f8 05", "varint-noncanonical"),
    ("an id longer than need be", "3f f8 05 00", "varint-noncanonical"),
    ("an amount of 2^64", "00 ff ffffffffffffffff", "varint-overflow"),
    ("an id past 2^64-1", "3f ff ffffffffffffffff 00", "varint-overflow"),
]


@pytest.mark.parametrize(("what", "data", "rule"), BROKEN)
async def test_a_broken_rule_ends_the_connection_with_its_name(
    what: str, data: str, rule: str
) -> None:
    failures: list[BaseException] = []
    heard: list[bytes] = []

    async def work(session: MinmuxSession) -> None:
        receiver = session.receiver(1, window=3)
        try:
            while True:
                heard.append(await receiver.receive())
        except (polymux.SessionClosed, polymux.StreamEnded):
            await session.wait_closed()
        assert session.failure is not None
        failures.append(session.failure)
        assert session.endpoint.counters.hits == {f"minmux.{rule}": 1}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(2) == bytes.fromhex("0102")  # GiveCredit 3
        writer.write(bytes.fromhex(data))
        while await reader.read(99):
            pass  # until the server has hung up

    await served("minmux", work, talk)
    assert isinstance(failures[0], polymux.PeerViolation)
    assert f"minmux.{rule}" in str(failures[0])
    assert len(b"".join(heard)) <= 3, what


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("01 00 61626364 09 00", "unassigned-stream"),  # credit on a stream that is not there
        ("49 00", "unassigned-stream"),  # a stop on one
        ("09 00 61", "unassigned-stream"),  # a write, whose size is not known either
        ("45 00", "endless-stream-stopped"),
        ("03 00 f80161", "varint-noncanonical"),  # the length of an item
        ("03 00 fa010001", "item-too-long"),
        ("03 00 ffffffffffffffffff", "bad-item"),
    ],
)
async def test_what_breaks_the_profile_ends_the_connection(
    data: str, rule: str, profiled: str
) -> None:
    failures: list[str] = []

    async def work(session: MinmuxSession) -> None:
        session.receiver(1, window=1)
        session.receiver(3, window=1)
        await session.wait_closed()
        failures.append(str(session.failure))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(4) == bytes.fromhex("0100 0300")
        writer.write(bytes.fromhex(data))
        while await reader.read(99):
            pass

    await served(profiled, work, talk)
    assert f"minmux.{rule}" in failures[0]


@virtual
@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ([write(1, b"abcd", 4)], "credit-exceeded"),
        ([stop_write(1, 1), stop_write(1, 2)], "limit-raised"),
        ([stop_read(0, 1), give_credit(0, 2)], "credit-past-limit"),
        ([forgo_credit(1, 4)], "forgo-exceeds-credit"),
        ([give_credit(0, MOST), give_credit(0, 1)], "credit-overflow"),
        ([stop_write(1, 0), write(1, b"a", 1)], "write-past-limit"),
    ],
)
async def test_our_own_peer_made_to_break_a_rule_is_found_out(
    frames: list[Frame], rule: str
) -> None:
    async with pair() as (near, far):
        receiver = far.receiver(1, window=3)
        await settled()
        for frame in frames[:-1]:
            near.endpoint.send_frame(frame)
        with pytest.raises(polymux.LocalProtocolError, match=f"minmux.{rule}"):
            near.endpoint.send_frame(frames[-1])
        near.endpoint.send_frame(frames[-1], force=True)
        near.schedule_flush()
        await settled()
        assert isinstance(far.failure, polymux.PeerViolation)
        assert f"minmux.{rule}" in str(far.failure)
        assert receiver.state.half(0).content_units == 0
        if not receiver.all_received:  # the waiting reader is woken
            with pytest.raises(polymux.PeerViolation, match=rule):
                await receiver.receive()


async def test_an_end_is_no_end_before_its_last_byte_has_come(profiled: str) -> None:
    found: list[object] = []

    async def work(session: MinmuxSession) -> None:
        for number in (1, 3):
            receiver = session.receiver(number, window=2)
            found.append([part async for part in receiver])
            found.append(receiver.last)
        await session.wait_closed()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # StopWrite 1, a Write of 1, the last item; then the same with lengths.
        for byte in bytes.fromhex("4101 01 00 61626364 0100 7879"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert await reader.readexactly(6) == bytes.fromhex("0101 4100 0301")
        for byte in bytes.fromhex("4301 0300 03616263 0300 027879"):
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        assert await reader.readexactly(2) == bytes.fromhex("4300")
        writer.write_eof()
        assert await reader.read() == b""

    await served(profiled, work, talk)
    parts, last, items, other = found
    assert isinstance(parts, list)
    assert b"".join(parts) == b"abcd"
    assert (last, items, other) == (b"xy", [b"abc"], b"\x02xy")


async def test_a_connection_that_ends_inside_the_last_item_is_no_end_of_the_stream(
    profiled: str,
) -> None:
    problems: list[str] = []

    async def work(session: MinmuxSession) -> None:
        receiver = session.receiver(1, window=2)
        with pytest.raises(polymux.SessionClosed, match="in the middle of a frame"):
            await receiver.receive()
        assert receiver.last is None
        problems.append(str(session.failure))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("4100 0100 78"))
        writer.write_eof()
        await reader.read()

    await served(profiled, work, talk)
    assert problems == ["the peer closed the connection in the middle of a frame"]


async def test_last_items_of_unclaimed_streams_are_kept_within_the_buffer_limit(
    profiled: str, tmp_path: Path
) -> None:
    async with pair(profiled) as (near, far):
        await near.sender(1).last(b"!!")
        await settled()
        late = far.receiver(1)
        assert [part async for part in late] == []
        assert late.last == b"!!"
        await settled()
        assert near.streams == far.streams == {}
    (tmp_path / "big.toml").write_text('[default]\nlast = "prefixed"\n')
    limits = Limits(session_buffer_bytes=100_000)
    async with pair(f"minmux:profile={tmp_path}/big.toml", limits=limits) as (near, far):
        item = b"\xf9\xea\x60" + bytes(60_000)
        await near.sender(1).last(item)
        await settled()
        assert far.failure is None
        await near.sender(3).last(item)
        await settled()
        assert isinstance(far.failure, polymux.LimitExceeded)
        assert "limit session_buffer_bytes=100000" in str(far.failure)
    (tmp_path / "huge.toml").write_text("[default]\nlast = 17000000\n")
    async with pair(f"minmux:profile={tmp_path}/huge.toml") as (near, far):
        with pytest.raises(polymux.LimitExceeded, match="limit max_message_bytes="):
            far.receiver(1)


@virtual
async def test_a_flood_of_words_that_carry_nothing_ends_the_session() -> None:
    for frame in (promise_write(1, 5), oops(0, 5)):
        async with pair(limits=Limits(empty_frame_burst=50)) as (near, far):
            far.receiver(1)
            for _ in range(60):
                near.endpoint.send_frame(frame)
            near.schedule_flush()
            await settled()
            assert isinstance(far.failure, polymux.LimitExceeded)
            assert "limit empty_frame_burst=50" in str(far.failure)


@virtual
async def test_data_sent_just_before_a_close_still_reaches_the_peer() -> None:
    async with pair() as (near, far):
        sender = near.sender(1)
        sender.promise(7)
        far.receiver(1, window=0).stop(3)
        await far.close()
        assert sender.announced == 3
