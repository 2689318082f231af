"""Every limit of a live session: the error names it and its value, and it is counted."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.session_helpers import PROTOCOLS, joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Limits, Session

OFFER = "94 00 {:02x} 01 c4 06 92 a1 78 cd 1000"  # v3: name x, window 4096


def deliver(session: Session, text: str) -> None:
    """Deliver bytes of the peer, given as hex."""
    session.data_received(bytes.fromhex(text))


def new_streams(first: int, count: int) -> str:
    """NewStream frames of mplex with empty names, for ids below 2048."""
    return "".join(uvarint(8 * number) + "00" for number in range(first, first + count))


def uvarint(value: int) -> str:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return (out + bytes([value])).hex()


async def check_ended_by(session: Session, limit: str, value: int) -> None:
    """Check that this limit has ended the session, and that every call raises it."""
    await session.wait_closed()
    assert session.failure is not None
    text = str(session.failure)
    assert text.endswith(f"limit {limit}={value}; raise it with Limits({limit}=...)")
    assert "\n" not in text
    assert session.endpoint.counters.hits[limit] >= 1
    with pytest.raises(polymux.SessionClosed, match=limit):
        await session.open("x")
    with pytest.raises(polymux.LimitExceeded, match=limit):
        await session.accept()


@virtual
async def test_streams_that_are_not_accepted_are_rejected_after_a_pause() -> None:
    async with joined("mplex", limits=Limits(accept_backlog=128)) as (near, _):
        assert near.transport is not None
        deliver(near, new_streams(0, 200))
        assert len(near.accept_queue) == 128
        assert near.endpoint.counters.hits["accept_backlog"] == 72
        assert not near.transport.is_reading()
        await asyncio.sleep(near.timeouts.slow_reader + 0.1)
        assert near.failure is None
        assert near.transport.is_reading()
        assert near.open_streams == 128
        deliver(near, new_streams(200, 1))  # none was accepted: no second pause
        await settled()
        assert near.transport.is_reading()
        assert near.open_streams == 128
        for _ in range(128):
            await near.accept()
        deliver(near, new_streams(201, 1))
        assert (await near.accept()).stream_id == 201


@virtual
async def test_streams_over_a_limit_wait_for_room_before_they_are_rejected() -> None:
    async with joined("mplex", limits=Limits(accept_backlog=10, max_streams=20)) as (near, _):
        assert near.transport is not None
        deliver(near, new_streams(0, 30))
        taken = []
        for _ in range(20):
            await asyncio.sleep(0.1)
            taken.append(await near.accept())
        assert not near.transport.is_reading()  # ten more, and no room for any
        for stream in taken:
            stream.abort()
        for number in range(20, 30):
            assert (await near.accept()).stream_id == number
        assert near.transport.is_reading()
        assert near.failure is None


@virtual
async def test_a_stream_that_is_reset_while_it_waits_for_room_is_removed() -> None:
    async with joined("mplex", limits=Limits(accept_backlog=1)) as (near, _):
        assert near.transport is not None
        deliver(near, new_streams(0, 3) + "0e 00")  # the second is reset
        await near.accept()
        assert (await near.accept()).stream_id == 2
        await settled()
        assert near.open_streams == 2
        assert near.transport.is_reading()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@virtual
async def test_a_rejected_stream_names_the_limit(protocol: str) -> None:
    async with joined(protocol, limits=Limits(accept_backlog=1)) as (near, far):
        first = asyncio.create_task(near.open("first"))
        await settled()
        with pytest.raises(polymux.StreamAborted):
            await (await near.open("second")).receive()
        (await far.accept()).abort()
        (await asyncio.wait([first]))
        assert far.failure is None


@virtual
async def test_open_streams_are_limited_and_make_room_when_they_end() -> None:
    async with joined("mplex", limits=Limits(max_streams=3)) as (near, far):
        pairs = [await opened(near, far) for _ in range(3)]
        fourth = await near.open("fourth")
        with pytest.raises(polymux.StreamAborted):
            await fourth.receive()
        assert far.endpoint.counters.hits == {"max_streams": 1}
        pairs[0][1].abort()
        await settled()
        await opened(near, far)


@virtual
async def test_a_name_over_the_limit_is_rejected() -> None:
    async with joined("mplex", limits=Limits(max_name_bytes=10)) as (near, far):
        deliver(far, "08 0b" + "78" * 11)
        await settled()
        assert far.endpoint.counters.hits == {"max_name_bytes": 1}
        assert len(far.accept_queue) == 0
        with pytest.raises(polymux.LimitExceeded, match="name of 11 bytes is over the limit"):
            await near.open("x" * 11)


@virtual
async def test_an_open_flood_ends_the_session_within_its_memory() -> None:
    async with joined("mplex") as (near, _):
        deliver(near, new_streams(0, 100_000))
        await check_ended_by(near, "open_reset_burst", 1000)
        assert near.endpoint.connection.next_serial < 3000  # not the whole flood was decoded


@virtual
async def test_opening_and_resetting_at_line_rate_ends_the_session() -> None:
    async with joined("mplex") as (near, _):
        taken = 0
        for number in range(0, 3000, 10):
            pairs = "".join(
                uvarint(8 * n) + "00" + uvarint(8 * n + 6) + "00"
                for n in range(number, number + 10)
            )
            deliver(near, pairs)
            taken += len(near.accept_queue)
            if near.failure is not None:
                break
        await check_ended_by(near, "open_reset_burst", 1000)
        assert number <= 1010
        assert taken == 0  # no handler got a stream that was reset already


@virtual
async def test_occasional_opening_and_resetting_is_fine() -> None:
    async with joined("mplex") as (near, _):
        for number in range(2500):
            deliver(near, uvarint(8 * number) + "00" + uvarint(8 * number + 6) + "00")
            await asyncio.sleep(1 / 30)
        assert near.failure is None
        assert near.streams == {}


@virtual
async def test_frames_for_unknown_streams_are_counted_and_end_the_session() -> None:
    async with joined("mplex") as (near, _):
        deliver(near, "0a0178" * 500)
        assert near.failure is None
        assert near.endpoint.counters.hits == {"mplex.unknown-stream": 500}
        await asyncio.sleep(1)
        deliver(near, "0a0178" * 100)
        assert near.failure is None
        deliver(near, "0a0178" * 100)
        await check_ended_by(near, "unknown_stream_burst", 500)


@pytest.mark.parametrize(
    ("protocol", "frame"),
    [
        ("mplex", "0200"),  # an empty message
        ("nerdbank:version=3", "93 02 01 01"),  # empty content
        ("nerdbank:version=3", "93 08 01 01"),  # a request for a larger window
        ("nerdbank:version=3", "93 63 01 01"),  # an unknown code
    ],
)
@virtual
async def test_empty_frames_are_tolerated_up_to_the_limit(protocol: str, frame: str) -> None:
    async with joined(protocol) as (near, _):
        deliver(near, "0000" if protocol == "mplex" else OFFER.format(1))
        await near.accept()
        deliver(near, frame * 900)
        assert near.failure is None
        await settled()
        deliver(near, frame * 900)
        await check_ended_by(near, "empty_frame_burst", 1000)


@virtual
async def test_empty_frames_between_content_are_fine() -> None:
    async with joined("mplex") as (near, _):
        deliver(near, "0000")
        stream = await near.accept()
        for _ in range(100):
            deliver(near, "0200 020178" * 100)
            assert await stream.receive() == b"x" * 100
        assert near.failure is None


@virtual
async def test_replies_that_the_peer_does_not_read_end_the_session() -> None:
    async with joined("nerdbank", limits=Limits(max_queued_replies=50)) as (near, far):
        assert far.transport is not None
        far.transport.pause_reading()  # it reads no more
        mine = await near.offer("x")  # type: ignore[attr-defined]
        mine.session.socket_writer.blocked = True
        for number in range(1, 120):
            deliver(near, OFFER.format(number) + f"93 04 {number:02x} 01")  # offered, withdrawn
            if near.failure is not None:
                break
        assert len(near.endpoint.scheduler.control_queue) <= 50
        await check_ended_by(near, "max_queued_replies", 50)


@virtual
async def test_aborting_a_thousand_streams_at_once_is_no_flood_of_replies() -> None:
    limits = Limits(
        max_streams=3000, accept_backlog=3000, max_own_streams=3000, open_reset_burst=3000
    )
    async with joined("mplex", limits=limits) as (near, far):
        streams = [await near.open() for _ in range(2000)]
        await settled(50)
        for stream in streams:
            stream.abort()
        await settled(50)
        assert near.failure is far.failure is None
        assert near.streams == far.streams == {}


@virtual
async def test_a_window_overrun_ends_that_channel_with_the_name_of_the_rule() -> None:
    async with joined("nerdbank", limits=Limits(receive_window=100)) as (near, far):
        mine, theirs = await opened(near, far, "overrun")
        other, others = await opened(near, far, "other")
        deliver(far, "94 02 01 01 c4 65" + "78" * 101)
        with pytest.raises(polymux.StreamAborted, match=r"nerdbank\.window-exceeded.*1 byte bey"):
            await theirs.receive()
        with pytest.raises(polymux.StreamAborted, match=r"nerdbank\.window-exceeded"):
            await mine.receive()
        assert far.endpoint.receive_queue.unread_bytes == 0  # no byte past the window was delivered
        await other.send(b"fine")
        assert await others.receive() == b"fine"


@virtual
async def test_acknowledging_more_than_was_sent_ends_the_session() -> None:
    async with joined("nerdbank") as (near, far):
        await opened(near, far)
        deliver(near, "94 05 01 ff c4 02 91 05")
        await near.wait_closed()
        assert isinstance(near.failure, polymux.PeerViolation)
        assert "nerdbank.acknowledged-too-much" in str(near.failure)
