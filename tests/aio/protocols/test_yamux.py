"""Live yamux sessions: acceptance, pings, Go Away, windows, half-close, resets, both dialects."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.attacks import raw_frames as words

import polymux
from polymux import Limits, Timeouts, YamuxSession

UPDATE, DATA = words.YAMUX_UPDATE, words.YAMUX_DATA


@asynccontextmanager
async def joined(
    protocol: str = "yamux", other: str | None = None, limits: Limits | None = None
) -> AsyncIterator[tuple[YamuxSession, YamuxSession]]:
    near, far = await polymux.pipe(protocol, other=other, limits=limits)
    assert isinstance(near, YamuxSession)
    assert isinstance(far, YamuxSession)
    async with near, far:
        yield near, far


@asynccontextmanager
async def raw_peer(
    reply: bytes = b"", timeouts: Timeouts | None = None, protocol: str = "yamux"
) -> AsyncIterator[tuple[YamuxSession, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A session whose server is written byte by byte."""
    ends: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda r, w: ends.put_nowait((r, w)), "127.0.0.1", 0)
    url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    session = await polymux.connect(url, protocol=protocol, timeouts=timeouts)
    assert isinstance(session, YamuxSession)
    reader, writer = await ends.get()
    writer.write(reply)
    try:
        yield session, reader, writer
    finally:
        session.abort()
        writer.close()
        server.close()


async def test_content_of_a_frame_that_ends_the_stream_is_read_however_it_arrives() -> None:
    async with raw_peer() as (session, _, writer):
        stream = await session.open()
        number = stream.stream_id
        frame = words.yamux(DATA, words.FIN, number, 10, b"abcdefghij")
        writer.write(frame[:-7])
        assert await stream.receive() == b"abc"
        reading = asyncio.create_task(stream.receive())
        await asyncio.sleep(0.01)
        assert not reading.done()
        writer.write(frame[-7:])
        assert await reading == b"defghij"
        assert await stream.receive() == b""


async def test_streams_of_both_sides_carry_bytes_both_ways_and_half_close() -> None:
    async with joined() as (near, far):
        for opener, taker in ((near, far), (far, near)):
            stream = await opener.open()
            await stream.send(b"question")
            await stream.end()
            theirs = await taker.accept()
            assert await theirs.receive_all() == b"question"
            await theirs.send(b"answer after the end")
            await theirs.end()
            assert await stream.receive_all() == b"answer after the end"
        assert near.endpoint.counters.hits == far.endpoint.counters.hits == {}


@pytest.mark.parametrize("dialect", ["hashicorp", "libp2p"])
async def test_megabytes_pass_under_windows_that_grow(dialect: str) -> None:
    limits = Limits(receive_window=262144)
    async with joined(f"yamux:dialect={dialect}", limits=limits) as (near, far):
        payload = bytes(range(256)) * 16384

        async def echo(stream: polymux.Stream) -> None:
            async for chunk in stream:
                await stream.send(chunk)

        serving = asyncio.create_task(far.serve_streams(echo))
        stream = await near.open()
        sending = asyncio.create_task(stream.send(payload))
        assert await stream.readexactly(len(payload)) == payload
        await sending
        await stream.end()
        assert await stream.receive() == b""
        await near.close()
        await serving
        assert far.round_trip is not None
        assert near.endpoint.counters.hits == far.endpoint.counters.hits == {}


async def test_a_ping_returns_the_round_trip() -> None:
    async with joined() as (near, far):
        assert near.round_trip is None
        taken = await asyncio.gather(near.ping(), near.ping(), far.ping())
        assert all(0 <= seconds < 5 for seconds in taken)
        assert near.round_trip is not None


async def test_answers_to_our_own_pings_are_no_flood() -> None:
    near_limits = Limits(empty_frame_burst=5, empty_frame_rate=0)
    async with polymux.yamux.serve(stay, "tcp://127.0.0.1:0") as server:
        url = f"tcp://127.0.0.1:{server.port}"
        async with polymux.connect(url, protocol="yamux", limits=near_limits) as session:
            assert isinstance(session, YamuxSession)
            for _ in range(50):
                await session.ping()
            assert session.endpoint.counters.hits == {}


async def stay(session: polymux.Session) -> None:
    await session.wait_closed()


async def test_a_cancelled_ping_leaves_the_session_usable() -> None:
    async with raw_peer() as (session, reader, writer):
        ping = asyncio.create_task(session.ping())
        asked = await reader.readexactly(12)
        ping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ping
        again = asyncio.create_task(session.ping())
        await reader.readexactly(12)
        for value in (asked[-1], asked[-1] + 1):
            writer.write(words.yamux(words.YAMUX_PING, 2, 0, value))
        assert 0 <= await again < 60


async def test_a_ping_that_is_never_answered_ends_with_the_session() -> None:
    async with raw_peer() as (session, _, writer):
        ping = asyncio.create_task(session.ping())
        await asyncio.sleep(0)
        writer.close()
        with pytest.raises(polymux.SessionClosed):
            await ping


async def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    async with raw_peer(timeouts=Timeouts(keepalive_interval=0.1)) as (session, reader, _):
        assert await reader.readexactly(12) == words.yamux(words.YAMUX_PING, words.SYN, 0, 0)
        await session.wait_closed()
        assert "answered no ping" in str(session.failure)


async def test_after_go_away_the_peer_opens_nothing_and_old_streams_live() -> None:
    async with joined() as (near, far):
        stream = await near.open()
        theirs = await far.accept()
        far.go_away()
        await theirs.send(b"still here")
        assert await stream.receive() == b"still here"
        assert (near.peer_go_away, far.peer_go_away) == (0, None)
        with pytest.raises(polymux.LocalProtocolError, match="it has sent Go Away with code 0"):
            await near.open()
        await (await far.open()).send(b"x")  # the side that goes away may open
        assert await (await near.accept()).receive() == b"x"


async def test_callers_that_wait_to_open_hear_of_a_go_away() -> None:
    async with joined(limits=Limits(max_own_streams=1)) as (near, far):
        await near.open()
        waiting = asyncio.create_task(opened(near))
        await far.accept()
        far.go_away(2)
        with pytest.raises(polymux.LocalProtocolError, match="code 2"):
            await waiting


async def opened(session: YamuxSession) -> polymux.Stream:
    return await session.open()


async def test_no_more_streams_than_peers_queue_wait_for_their_ack() -> None:
    async with joined() as (near, far):
        streams = [await near.open() for _ in range(256)]
        late = asyncio.create_task(opened(near))
        await asyncio.sleep(0.01)
        assert not late.done()
        await far.accept()
        streams.append(await late)
        near.reset(streams[5])  # one that was never acknowledged makes room too
        streams.append(await opened(near))
        assert len({stream.stream_id for stream in streams}) == 258


async def test_a_window_is_announced_with_the_opening_and_with_the_ack() -> None:
    async with raw_peer(words.yamux(UPDATE, words.SYN, 2)) as (session, reader, _):
        await session.open(window=300_000)
        assert await reader.readexactly(12) == words.yamux(UPDATE, words.SYN, 1, 300_000 - 262144)
        await session.accept(window=262144)
        assert await reader.readexactly(12) == words.yamux(UPDATE, words.ACK, 2, 0)
        with pytest.raises(polymux.LocalProtocolError, match="at most 4294967295"):
            await session.open(window=2**32)


async def test_a_name_cannot_be_sent_and_costs_no_id() -> None:
    async with joined() as (near, _):
        with pytest.raises(polymux.Unsupported, match="yamux has no names"):
            await near.open("logs")
        assert (await near.open()).stream_id == 1


async def test_a_reset_carries_its_code_where_the_dialect_has_codes() -> None:
    for protocol, error in (("yamux:dialect=libp2p", "code 42"), ("yamux", None)):
        async with joined(protocol) as (near, far):
            stream = await near.open()
            theirs = await far.accept()
            near.reset(stream, 42)
            with pytest.raises(polymux.StreamAborted):
                await theirs.receive()
            assert theirs.error == error
            with pytest.raises(polymux.LocalProtocolError, match="0 to 4294967295"):
                near.reset(stream, -1)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (words.yamux(UPDATE, words.SYN, 1), 1),  # the ids of the client
        (words.yamux(DATA, words.SYN, 2, 2**32 - 1), 1),
        (words.yamux(words.YAMUX_PING, words.SYN, 0) * 5000, 2),
    ],
)
async def test_a_peer_is_told_why_its_session_ends(sent: bytes, code: int) -> None:
    async with raw_peer(sent) as (session, reader, _):
        data = await reader.read()
        assert data.endswith(words.yamux(words.YAMUX_GO_AWAY, 0, 0, code))
        await session.wait_closed()
        assert session.failure is not None


@pytest.mark.parametrize(("dialect", "last"), [("libp2p", True), ("hashicorp", False)])
async def test_libp2p_says_go_away_as_its_last_frame(dialect: str, last: bool) -> None:
    async with raw_peer(protocol=f"yamux:dialect={dialect}") as (session, reader, writer):
        stream = await session.open()
        await stream.send(b"x" * 100_000)
        closing = asyncio.create_task(session.close())
        data = await reader.read()
        writer.close()
        await closing
        goodbye = words.yamux(words.YAMUX_GO_AWAY, 0, 0)
        assert data.endswith(goodbye if last else b"x")
        assert data.count(b"x") == 100_000


async def test_sessions_negotiate_by_multistream_select() -> None:
    async def work(session: YamuxSession) -> None:
        await (await session.accept()).send(b"negotiated")
        await session.wait_closed()

    async with (
        polymux.yamux.serve(work, "tcp://127.0.0.1:0", preamble="multistream") as server,
        polymux.yamux.connect(server.url, preamble="multistream") as session,
    ):
        stream = await session.open()
        assert await stream.receive() == b"negotiated"


async def test_streams_beyond_the_backlog_are_reset_and_the_others_go_on() -> None:
    limits = Limits(accept_backlog=2)
    async with joined(limits=limits) as (near, far):
        streams = [await near.open() for _ in range(3)]
        with pytest.raises(polymux.StreamAborted):
            await streams[2].receive()
        assert far.endpoint.counters.hits == {"accept_backlog": 1}
        await (await far.accept()).send(b"first")
        assert await streams[0].receive() == b"first"
