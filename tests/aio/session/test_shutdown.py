"""How sessions and servers end: queued data arrives, every wait is bounded, nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest
import trustme
from tests.aio.cancellation_points import everywhere
from tests.aio.session_helpers import PROTOCOLS, channels, echo, exchange, joined, opened, settled
from tests.aio.virtual_clock import virtual
from tests.loops import new_event_loop

import polymux
from polymux import Session, Stream

every = pytest.mark.parametrize("protocol", PROTOCOLS)


@every
async def test_what_was_queued_before_close_arrives_over_tcp(protocol: str) -> None:
    got: list[bytes] = []
    done = asyncio.Event()

    async def collect(session: Session) -> None:
        stream = await session.accept()
        await asyncio.sleep(0.1)
        got.append(await stream.receive_all())
        done.set()

    async with await polymux.serve(collect, "tcp://127.0.0.1:0", protocol=protocol) as server:
        session = await polymux.connect(server.url, protocol=protocol)
        stream = await session.open("x")
        stream.send_nowait(bytes(3_000_000))  # more than a window and than the kernel's buffers
        await stream.end()
        await session.close()
        await done.wait()
    assert len(got[0]) == 3_000_000


@pytest.mark.parametrize("problem", [SystemExit(7), KeyboardInterrupt()])
def test_system_exit_in_a_reader_ends_the_program_and_disturbs_no_other_reader(
    problem: BaseException,
) -> None:
    """SystemExit in a resumed reader ends the loop and not the connection."""
    got: list[bytes] = []
    reading: list[Stream] = []

    async def serve(session: Session) -> None:
        async def work(stream: Stream) -> None:
            reading.append(stream)
            data = await stream.receive()
            if stream.name == "last":
                raise problem
            got.append(data)

        await session.serve_streams(work)

    async def dial_and_send() -> None:
        async with await polymux.serve(serve, "tcp://127.0.0.1:0", protocol="mplex") as server:
            session = await polymux.connect(server.url, protocol="mplex")
            streams = [await session.open(name) for name in ("last", "first")]
            while len(reading) < 2:
                await asyncio.sleep(0.01)
            for stream in streams:  # they arrive together
                stream.send_nowait(b"hi")
            await asyncio.sleep(60)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        with pytest.raises(type(problem)) as raised:
            runner.run(dial_and_send())
        assert raised.value is problem
    assert got == [b"hi"]


@pytest.mark.parametrize("size", [100_000, 300_000, 1_000_000])
async def test_data_received_over_tls_while_reading_is_paused_outlasts_the_peer(size: int) -> None:
    authority = trustme.CA()
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(own)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    gone = asyncio.Event()
    got: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    async def read_late(session: Session) -> None:
        stream = await session.accept()
        await gone.wait()
        try:
            got.set_result((session.read_pauses, await stream.receive_all()))
        except polymux.PolymuxError as problem:
            got.set_exception(problem)

    server = await polymux.serve(
        read_late, "tls://127.0.0.1:0", protocol="mplex", tls=own,
        limits=polymux.Limits(session_buffer_bytes=90_000),
    )  # fmt: skip
    async with server:
        hasty = polymux.Timeouts(close=0.3)  # TLS would wait for a reply that is never read
        session = await polymux.connect(server.url, protocol="mplex", tls=trusting, timeouts=hasty)
        stream = await session.open("x")
        for _ in range(0, size, 50_000):
            await stream.send(bytes(50_000))
            await asyncio.sleep(0.005)  # more than one read of it
        await stream.end()
        assert session.transport is not None
        while session.shutdown.has_unsent() or session.transport.get_write_buffer_size():
            await asyncio.sleep(0.005)  # what closing has to wait for is the reply alone
        await session.close()
        await asyncio.sleep(0.1)  # the end of stream has arrived, if the TLS layer can see it
        gone.set()
        assert await got == (1, bytes(size))


@every
async def test_closing_while_the_peer_sends_loses_no_data_of_this_side(protocol: str) -> None:
    """Closing a socket with unread bytes would make the peer lose what it had not read."""
    got = asyncio.get_running_loop().create_future()

    async def chatter(session: Session) -> None:
        stream = await session.accept()

        async def keep_sending() -> None:
            with contextlib.suppress(polymux.PolymuxError):
                while True:
                    await stream.send(bytes(20_000))

        sending = asyncio.create_task(keep_sending())
        await asyncio.sleep(0.05)
        got.set_result(await stream.receive_all())
        sending.cancel()

    async with await polymux.serve(chatter, "tcp://127.0.0.1:0", protocol=protocol) as server:
        session = await polymux.connect(server.url, protocol=protocol)
        stream = await session.open("x")
        await stream.send(b"last words")
        await stream.end()
        await session.close()
        assert await got == b"last words"


@every
async def test_an_idle_session_closes_at_once_on_both_sides(protocol: str) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server:
        async with polymux.connect(server.url, protocol=protocol) as session:
            assert await exchange(session, "x", b"y") == b"y"
            begun = session.loop.time()
        assert session.loop.time() - begun < 5  # half of what it waits for one that is not idle
        async with asyncio.timeout(30):
            while server.sessions:
                await asyncio.sleep(0.01)
    assert session.failure is None


@every
async def test_a_server_that_closes_lets_its_replies_arrive(protocol: str) -> None:
    answered = asyncio.Event()

    async def handle(session: Session) -> None:
        stream = await session.accept()
        stream.send_nowait(bytes(500_000))
        await stream.end()
        answered.set()
        await session.wait_closed()

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol)
    async with polymux.connect(server.url, protocol=protocol) as session:
        stream = await session.open("x")
        reading = asyncio.create_task(stream.receive_all())
        await answered.wait()
        await server.close()
        assert len(await reading) == 500_000
    assert not server.sessions
    assert not server._tasks


async def test_waiting_for_a_server_ends_when_it_is_closed() -> None:
    server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
    waiting = asyncio.create_task(server.wait_closed())
    await settled()
    await server.close()
    await server.close()
    await asyncio.wait_for(waiting, 30)


async def test_a_handler_that_does_not_end_is_cancelled() -> None:
    ended = asyncio.Event()

    async def stubborn(session: Session) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    server = await polymux.serve(stubborn, "tcp://127.0.0.1:0", protocol="mplex")
    session = await polymux.connect(server.url, protocol="mplex")
    await asyncio.sleep(0.05)
    async with asyncio.timeout(30):
        await server.close()
    assert ended.is_set()
    await session.close()


async def test_a_handler_that_fails_harms_no_other_session(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handle(session: Session) -> None:
        stream = await session.accept()
        if stream.name == "fail":
            raise ValueError("a mistake of the application")
        await stream.send(b"fine")
        await session.wait_closed()

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with (
            polymux.connect(server.url, protocol="mplex") as good,
            polymux.connect(server.url, protocol="mplex") as bad,
        ):
            doomed = await bad.open("fail")
            with pytest.raises(polymux.SessionClosed):
                await doomed.receive()
            assert await (await good.open("x")).receive() == b"fine"
    assert "a mistake of the application" in caplog.text


async def test_peers_that_vanish_under_many_tasks_are_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        session = await polymux.connect(server.url, protocol="mplex")
        for name in "abc":
            await (await session.open(name)).send(b"x")
        await asyncio.sleep(0.05)
        session.abort()
        await session.wait_closed()
        await asyncio.sleep(0.05)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@virtual
async def test_a_close_that_the_peer_ignores_is_over_in_its_time() -> None:
    async with joined("mplex") as (near, far):
        mine, _ = await opened(near, far)
        assert far.transport is not None
        far.transport.pause_reading()
        await mine.send(bytes(100_000))
        begun = near.loop.time()
        await near.close()
        assert 10 <= near.loop.time() - begun <= 11


@virtual
async def test_data_without_credit_does_not_delay_the_close_once_the_peer_has_ended() -> None:
    near, far = await polymux.pipe("yamux")
    stream = await near.open()
    stream.send_nowait(bytes(10_000_000))
    begun = near.loop.time()
    await asyncio.gather(near.close(), far.close())
    assert near.loop.time() - begun < 1.5


@virtual
async def test_unaccepted_offers_do_not_delay_the_close() -> None:
    async with joined("nerdbank") as sessions:
        near, _ = channels(*sessions)
        offer = await near.offer("x")
        offer.send_nowait(bytes(1000))
        begun = near.loop.time()
        await near.close()
        assert near.loop.time() - begun < 1.5


@every
@virtual
async def test_every_waiting_call_raises_at_the_end(protocol: str) -> None:
    async with joined(protocol, limits=polymux.Limits(receive_window=1000)) as (near, far):
        mine, _ = await opened(near, far)
        mine.send_nowait(bytes(800_000))
        assert far.transport is not None
        far.transport.pause_reading()
        waiting = [
            asyncio.create_task(mine.receive()),
            asyncio.create_task(mine.send(b"x")),
            asyncio.create_task(near.accept()),
        ]
        if protocol != "mplex":
            waiting.append(asyncio.create_task(near.open("never accepted")))
        await settled()
        assert not any(task.done() for task in waiting)
        near.abort("enough")
        for task in waiting:
            with pytest.raises(polymux.SessionClosed, match="enough"):
                await task


class HalfClosing:
    """A peer that ends its side of the TCP connection and goes on reading."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, text: str) -> bytes:
        self.writer.write(bytes.fromhex(text))
        self.writer.write_eof()
        async with asyncio.timeout(30):
            answer = await self.reader.read()
        self.writer.close()
        return answer


async def test_a_peer_that_half_closes_its_connection_still_gets_its_reply() -> None:
    async def handle(session: Session) -> None:
        async for stream in session.incoming:
            data = await stream.receive_all()
            await asyncio.sleep(0.2)
            await stream.send(data * 2)
            await stream.end()

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        peer = HalfClosing(*await asyncio.open_connection("127.0.0.1", server.port))
        answer = await peer.ask("0000 0203616263 0400")
        assert answer == bytes.fromhex("01 06 616263616263 0300")


async def test_a_peer_that_half_closes_in_the_middle_of_a_frame_gets_nothing() -> None:
    problems: list[str] = []

    async def handle(session: Session) -> None:
        stream = await session.accept()
        with pytest.raises(polymux.SessionClosed) as problem:
            await stream.receive_all()
        problems.append(str(problem.value))
        assert str(session.failure) == str(problem.value)

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        peer = HalfClosing(*await asyncio.open_connection("127.0.0.1", server.port))
        assert await peer.ask("0000 02036162") == b""
        await asyncio.sleep(0.05)
    assert problems == ["the peer closed the connection in the middle of a frame"]


async def test_streams_that_the_peer_left_open_end_with_its_connection() -> None:
    ended = asyncio.get_running_loop().create_future()

    async def handle(session: Session) -> None:
        stream = await session.accept()
        try:
            await stream.receive_all()
        except polymux.SessionClosed as problem:
            ended.set_result(str(problem))
        with pytest.raises(polymux.SessionClosed):
            await stream.send(b"x")

    async with await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
        peer = HalfClosing(*await asyncio.open_connection("127.0.0.1", server.port))
        assert await peer.ask("0000 020161") == b""
        assert await ended == "the peer closed the connection"


async def test_a_connection_reset_is_one_clear_line() -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        session = await polymux.connect(server.url, protocol="mplex")
        await exchange(session, "x", b"y")
        for other in list(server.sessions):
            sock = other.transport.get_extra_info("socket")  # type: ignore[union-attr]
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            other.abort()
        with pytest.raises(polymux.SessionClosed, match="Connection reset by peer"):
            await session.accept()
        assert str(session.failure) == "the connection was lost: Connection reset by peer"
        await session.wait_closed()


@pytest.mark.parametrize("scheme", ["tcp", "unix"])
async def test_connecting_and_serving_can_be_cancelled_anywhere(
    scheme: str, tmp_path: object
) -> None:
    url = "tcp://127.0.0.1:0" if scheme == "tcp" else f"unix://{tmp_path}/s"
    async for cut in everywhere(steps=False):
        finished, server = await cut(polymux.serve(echo, url, protocol="nerdbank:version=2"))
        if not finished:
            continue
        async for inner in everywhere(steps=False):

            async def dial(server: polymux.Server = server) -> Session:
                return await polymux.connect(server.url, protocol="nerdbank:version=2")

            connected, session = await inner(dial())
            if connected:
                assert await exchange(session, "x", b"usable") == b"usable"
                await session.close()
        await server.close()


async def test_closing_a_server_can_be_cancelled_anywhere() -> None:
    async for cut in everywhere(steps=False):
        server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
        session = await polymux.connect(server.url, protocol="mplex")
        await exchange(session, "x", b"y")
        await cut(server.close())
        async with asyncio.timeout(30):
            await session.wait_closed()
            while server.sessions or server._tasks:
                await asyncio.sleep(0.01)
        with pytest.raises(polymux.Unreachable):
            await polymux.connect(server.url, protocol="mplex")
