"""Every wait of a session has a timeout. Default timeouts, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest
from tests.aio.session_helpers import PROTOCOLS, joined, opened, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux.aio.runtime import current_runtime
from polymux.live.factory import session_factory
from polymux.live.transports import memory


def lone(protocol: str, timeouts: polymux.Timeouts | None = None) -> polymux.Session:
    """A session whose peer sends nothing."""
    session = session_factory(protocol, 1, None, timeouts, 0.0, runtime=current_runtime)()
    other = session_factory("mplex", 0, None, None, 0.0, runtime=current_runtime)
    far = memory.MemoryTransport(other())
    near = memory.MemoryTransport(session)
    near.other, far.other = far, near
    far._reading = False
    session.connection_made(near)
    return session


async def ends(session: polymux.Session) -> tuple[float, str]:
    """Return after how many seconds the session ends, and why."""
    begun = session.loop.time()
    await session.wait_closed()
    return session.loop.time() - begun, str(session.failure)


@pytest.mark.parametrize("start", ["", "2fdf1d50", "2fdf1d50" + "00" * 15])
@virtual
async def test_an_unfinished_handshake_ends_the_session(start: str) -> None:
    session = lone("nerdbank:version=1")
    session.data_received(bytes.fromhex(start))
    opening = asyncio.create_task(session.open("x"))
    after, why = await ends(session)
    assert 10 <= after <= 11
    assert why.endswith("for 10 s: deadline handshake=10; allow more with Timeouts(handshake=...)")
    assert session.endpoint.counters.hits == {"handshake": 1}
    with pytest.raises(polymux.SessionClosed, match="no handshake from the peer"):
        await opening


HEADERS = [
    ("mplex", "ff"),
    ("mplex", "00 8020 61"),  # half a name
    ("nerdbank:version=3", "94"),
    ("nerdbank:version=3", "94 00 01 01 c4 0b 92 a4 65"),
]


@pytest.mark.parametrize(("protocol", "start"), HEADERS)
@virtual
async def test_an_unfinished_frame_ends_the_session(protocol: str, start: str) -> None:
    session = lone(protocol)
    session.data_received(bytes.fromhex(start))
    after, why = await ends(session)
    assert 10 <= after <= 12
    assert why == (
        "the peer left a frame unfinished for 10 s: deadline frame=10; "
        "allow more with Timeouts(frame=...)"
    )
    assert session.endpoint.counters.hits == {"frame": 1}


@virtual
async def test_bytes_that_trickle_in_do_not_extend_the_deadline_of_a_frame() -> None:
    session = lone("mplex")
    session.data_received(bytes.fromhex("00 8020"))

    async def dribble() -> None:
        while not session.closed.done():
            session.data_received(b"a")
            await asyncio.sleep(1)

    task = asyncio.create_task(dribble())
    after, why = await ends(session)
    assert 10 <= after <= 12
    assert "deadline frame=10" in why
    await task


@virtual
async def test_content_may_take_any_time() -> None:
    session = lone("mplex")
    session.data_received(bytes.fromhex("0000 02 e807"))  # a thousand bytes, to come
    stream = await session.accept()
    for _ in range(1000):
        await asyncio.sleep(1)
        session.data_received(b"x")
    assert await stream.receive() == b"x" * 1000
    session.abort()
    await session.wait_closed()


@pytest.mark.parametrize("protocol", PROTOCOLS[:1] + PROTOCOLS[3:])
@virtual
async def test_a_peer_that_takes_nothing_ends_the_session(protocol: str) -> None:
    session = lone(protocol)
    stream = await (session.open("x") if protocol == "mplex" else session.offer("x"))  # type: ignore[attr-defined]
    sending = asyncio.create_task(stream.send(bytes(100)))
    after, why = await ends(session)
    assert 30 <= after <= 32
    assert why == (
        "the peer accepted no data for 30 s: deadline write=30; allow more with Timeouts(write=...)"
    )
    assert session.endpoint.counters.hits == {"write": 1}
    await asyncio.wait([sending])
    sending.exception()


@virtual
async def test_a_peer_that_reads_little_by_little_is_waited_for() -> None:
    async with joined("mplex") as (near, far):
        mine, _ = await opened(near, far)
        assert isinstance(far.transport, memory.MemoryTransport)
        assert isinstance(near.transport, memory.MemoryTransport)
        far.transport._reading = False
        near.transport.write(b"\x02\xe8\x07")  # a frame of a thousand bytes
        for _ in range(1000):
            near.transport.write(b"x")
        pieces = near.transport
        for _ in range(50):  # twenty seconds without progress, fifty times
            await asyncio.sleep(20)
            pieces._size -= 1
        assert near.failure is None
        assert mine.send_error is None


@virtual
async def test_short_deadlines_are_kept_as_exactly_as_long_ones() -> None:
    session = lone("nerdbank:version=2", polymux.Timeouts(handshake=0.5))
    after, why = await ends(session)
    assert 0.5 <= after <= 0.6
    assert "handshake=0.5" in why


@virtual
async def test_an_idle_session_stays_open() -> None:
    async with joined("nerdbank:version=2") as (near, far):
        await asyncio.sleep(100_0)
        serving = asyncio.create_task(far.accept())
        await near.open("x")
        assert (await serving).name == "x"


@virtual
async def test_an_unfinished_frame_does_not_time_out_while_this_side_does_not_read() -> None:
    limits = polymux.Limits(session_buffer_bytes=10_000)
    async with joined("mplex", limits=limits, timeouts=polymux.Timeouts(slow_reader=60)) as (
        near,
        far,
    ):
        mine, theirs = await opened(near, far)
        await mine.send(bytes(20_000))
        await settled()
        assert far.read_backpressure.paused_at
        far.data_received(b"\x02\x81")  # the beginning of another frame had been read, too
        await asyncio.sleep(50)
        assert far.failure is None
        assert len(await theirs.receive()) == 20_000


async def test_a_child_that_ends_its_output_and_keeps_running_is_not_waited_for() -> None:
    async with polymux.connect("exec:sh -c 'exec >&-; sleep 60'", protocol="mplex") as session:
        with pytest.raises(polymux.SessionClosed, match="the peer closed the connection"):
            async with asyncio.timeout(30):
                await session.accept()
