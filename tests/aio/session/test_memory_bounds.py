"""What a peer can make a session, and all peers can make a server, hold in memory."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import sys
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from tests.aio.session_helpers import echo, exchange, joined, opened, settled
from tests.aio.virtual_clock import virtual
from tests.record.certificate_authority import Authority

import polymux
from polymux import (
    Call,
    Limits,
    MessageSender,
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
    Timeouts,
)
from polymux.live.session.server_budget import REVIEW_SECONDS, ServerBudget
from polymux.live.streams.exchanges import MessageBuffer

KIB, MIB = 1024, 1024 * 1024
READ = 256 * KIB  # bytes that the system hands over at once
SMALL = Limits(session_buffer_bytes=256 * KIB, assembly_buffer_bytes=512 * KIB)


# Messages that are being put together


@virtual
async def test_a_thousand_unfinished_messages_share_one_budget() -> None:
    limits = Limits(session_buffer_bytes=256 * KIB, assembly_buffer_bytes=512 * KIB,
                    max_message_bytes=300 * KIB)  # fmt: skip
    async with joined("streamux", limits=limits) as (one, two):
        near, far = cast(StreamuxSession, one), cast(StreamuxSession, two)

        async def read(call: Call) -> None:
            await call.reply(await call.read())

        serving = asyncio.create_task(far.serve_calls(read, max_concurrent=1000))
        exchanges = [await near.exchange() for _ in range(300)]
        most = 0

        async def push(number: int) -> None:
            with contextlib.suppress(polymux.PolymuxError):
                while True:
                    await exchanges[number].send(bytes(4 * KIB))
                    await asyncio.sleep(0)

        work = [asyncio.create_task(push(number)) for number in range(300)]
        for _ in range(400):
            await settled(10)
            most = max(most, far.read_backpressure.held_bytes)
        assert far.read_backpressure.paused_at, "the rest is not read"
        bound = limits.assembly_buffer_bytes + limits.max_message_bytes
        assert most <= bound + limits.session_buffer_bytes + READ
        assert most > limits.assembly_buffer_bytes
        await asyncio.sleep(6)
        assert far.endpoint.counters.hits["assembly_buffer_bytes"]
        assert far.endpoint.counters.hits["stream_buffer_bytes"] >= 1, "the pause has an end"
        assert far.failure is None
        for task in (serving, *work):
            task.cancel()


@virtual
async def test_requests_that_fit_together_are_all_answered() -> None:
    async with joined("streamux", limits=SMALL) as (one, two):
        near, far = cast(StreamuxSession, one), cast(StreamuxSession, two)

        async def read(call: Call) -> None:
            await call.reply(b"%d" % len(await call.read()))

        serving = asyncio.create_task(far.serve_calls(read, max_concurrent=100))
        sizes = [KIB * (1 + number % 20) for number in range(60)]
        replies = await asyncio.gather(*(near.request(bytes(size)) for size in sizes))
        assert replies == [b"%d" % size for size in sizes]
        assert far.assembly.total_bytes == 0
        serving.cancel()


@pytest.mark.parametrize("protocol", ["nerdbank:version=2", "nerdbank:version=3"])
@virtual
async def test_with_windows_messages_beyond_the_budget_wait_for_their_turn(protocol: str) -> None:
    """Nothing is aborted: the windows hold the sender up until there is room."""
    async with joined(protocol, limits=SMALL) as (near, far):
        pairs = [await opened(near, far, str(number)) for number in range(20)]
        reading = [asyncio.create_task(theirs.receive_all()) for _, theirs in pairs]
        most = 0

        async def send(stream: Stream) -> None:
            for _ in range(10):
                await stream.send(bytes(20 * KIB))
            await stream.end()

        async with asyncio.TaskGroup() as tasks:
            sending = [tasks.create_task(send(mine)) for mine, _ in pairs]
            while not all(task.done() for task in sending):
                await settled(1)
                most = max(most, far.read_backpressure.held_bytes)
        assert [len(data) for data in await asyncio.gather(*reading)] == [200 * KIB] * 20
        assert far.read_backpressure.pause_count == 0
        bound = SMALL.assembly_buffer_bytes + 4 * SMALL.session_buffer_bytes
        assert SMALL.assembly_buffer_bytes < most <= bound + 200 * KIB + READ


@virtual
async def test_a_message_that_is_given_up_makes_room() -> None:
    limits = Limits(assembly_buffer_bytes=1000)
    async with joined("mplex", limits=limits) as (near, far):
        pairs = [await opened(near, far, str(number)) for number in range(3)]
        reading = [asyncio.create_task(theirs.readexactly(2000)) for _, theirs in pairs]
        for mine, _ in pairs:
            await mine.send(bytes(1500))
            await settled()
        assert far.assembly.total_bytes == 1500
        assert far.endpoint.receive_queue.unread_bytes == 3000
        reading[0].cancel()
        await settled()
        assert far.assembly.total_bytes == 1500, "the next one"
        for mine, _ in pairs:
            await mine.send(bytes(500))
        assert [len(await task) for task in reading[1:]] == [2000, 2000]
        assert len(await pairs[0][1].readexactly(2000)) == 2000
        assert far.assembly.total_bytes == 0


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("read", ["receive_all", "readexactly", "readline"])
async def test_unfinished_reads_of_tiny_parts_hold_little_more_than_their_bytes(read: str) -> None:
    pieces = 1500
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        if read == "readexactly":
            reading = asyncio.create_task(theirs.readexactly(4 * pieces))
        else:
            reading = asyncio.create_task(
                theirs.readline() if read == "readline" else theirs.receive_all()
            )
        await mine.send(b"ab")
        await settled()
        tracemalloc.start()
        before = traced_bytes()
        for _ in range(pieces):
            await mine.send(b"ab")
            await settled(3)
        held = traced_bytes() - before
        tracemalloc.stop()
        assert far.assembly.total_bytes == 2 * pieces + 2
        assert held < 12 * pieces
        reading.cancel()
        await settled()
        if read != "receive_all":  # nothing was taken
            queue = far.endpoint.receive_queue
            assert (queue.unread_bytes, queue.unread_parts) == (
                2 * pieces + 2,
                len(theirs.buffers.received),
            )
            assert await theirs.receive() == b"ab" * (pieces + 1)


def test_a_request_that_comes_two_bytes_at_a_time_holds_little_more_than_its_bytes() -> None:
    message = MessageBuffer()
    tracemalloc.start()
    before = traced_bytes()
    for _ in range(5000):
        message.add(bytes(2))
    held = traced_bytes() - before
    tracemalloc.stop()
    assert held < 10 * 5000
    assert message.getvalue() == bytes(10_000)


# Windows


@pytest.mark.parametrize("protocol", ["nerdbank:version=2", "nerdbank:version=3"])
@virtual
async def test_the_windows_of_a_thousand_channels_add_up_to_four_session_buffers_at_most(
    protocol: str,
) -> None:
    async with joined(protocol) as (near, far):
        pairs = [await opened(near, far, str(number)) for number in range(1000)]
        windows = [theirs.peer_half.window for _, theirs in pairs]
        assert sum(windows) <= 4 * Limits().session_buffer_bytes
        assert windows[0] == windows[1] == Limits().receive_window
        assert windows == sorted(windows, reverse=True)
        assert windows[99] >= 32 * KIB, "a hundred channels are not slowed down"
        assert min(windows) >= 12 * KIB
        assert far.endpoint.receive_queue.window_bytes == sum(windows)
        for mine, theirs in pairs:
            mine.abort()
            theirs.abort()
        await settled()
        assert far.endpoint.receive_queue.window_bytes == 0
        _, theirs = await opened(near, far)
        assert theirs.peer_half.window == Limits().receive_window


@virtual
async def test_channels_that_were_ended_and_not_read_leave_less_for_windows() -> None:
    """Otherwise a peer could fill a window, end the channel, and do the same again."""
    limits = Limits(session_buffer_bytes=25 * KIB, receive_window=10 * KIB)
    async with joined("nerdbank", limits=limits) as (near, far):
        held = []
        for number in range(60):
            mine, theirs = await opened(near, far, str(number))
            held.append(theirs)
            await mine.send(bytes(theirs.peer_half.window))
            await mine.end()
            await settled()
        assert far.endpoint.receive_queue.unread_bytes <= 4 * limits.session_buffer_bytes + 60 * KIB
        assert held[-1].peer_half.window == 1024


@virtual
async def test_minmux_credit_adds_up_to_four_session_buffers_at_most() -> None:
    async with joined("minmux") as (_, two):
        far = cast(MinmuxSession, two)
        receivers = [far.receiver(2 * number + 1) for number in range(1000)]
        assert receivers[0].window == Limits().receive_window
        assert sum(receiver.window for receiver in receivers) <= 4 * Limits().session_buffer_bytes
        assert min(receiver.window for receiver in receivers) >= 12 * KIB


@virtual
async def test_fixed_windows_that_exceed_the_session_buffer_pause_reading_for_a_while() -> None:
    """The initial window of yamux cannot be made smaller: a pause bounds it."""
    limits = Limits(session_buffer_bytes=512 * KIB)
    async with joined("yamux", limits=limits) as (near, far):
        pairs = [await opened(near, far, "") for _ in range(12)]
        for mine, _ in pairs:
            mine.send_nowait(bytes(200 * KIB))
        await settled(200)
        assert far.read_backpressure.paused_at
        most = 4 * limits.session_buffer_bytes
        assert far.endpoint.receive_queue.unread_bytes <= most + READ
        reading = [theirs.readexactly(200 * KIB) for _, theirs in pairs]
        assert [len(data) for data in await asyncio.gather(*reading)] == [200 * KIB] * 12
        assert not far.read_backpressure.paused_at
        for mine, _ in pairs:
            mine.send_nowait(bytes(200 * KIB))
        await asyncio.sleep(60)
        assert far.endpoint.counters.hits["stream_buffer_bytes"] >= 1
        assert far.endpoint.receive_queue.unread_bytes <= most
        assert far.failure is None


# Parts of chunks


async def test_small_parts_of_large_chunks_do_not_keep_the_chunks() -> None:
    async with joined("mplex") as (near, far):
        pairs = [await opened(near, far, str(number)) for number in range(2)]
        (unread, theirs), (read, drained) = pairs
        for _ in range(80):
            await unread.send(bytes(8000))
            await read.send(bytes(200_000))
            while drained.has_unread or not far.endpoint.receive_queue.unread_bytes:
                await settled(2)
                drained.receive_nowait()
            await settled()
            drained.receive_nowait()
        parts = theirs.buffers.received
        assert theirs.unread_bytes == 640_000
        chunks = {id(part.obj): part.obj for part in parts if isinstance(part, memoryview)}
        assert sum(memoryview(chunk).nbytes for chunk in chunks.values()) < 4 * 640_000
        assert len(await theirs.readexactly(640_000)) == 640_000


async def test_very_small_parts_are_joined() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        for _ in range(300):
            mine.send_many([b"ab"] * 1000)
            near.flush()
            await settled(2)
        await settled()
        assert theirs.unread_bytes == 600_000
        assert len(theirs.buffers.received) < 200_000
        assert await theirs.readexactly(600_000) == b"ab" * 300_000


async def send_each(sender: MessageSender, messages: list[bytes]) -> None:
    for message in messages:
        await sender.send(message)


async def test_small_parts_count_with_what_they_cost_besides_their_bytes() -> None:
    """A message keeps its boundaries, so its part is not joined with others."""
    limits = Limits(session_buffer_bytes=256 * KIB)
    async with joined("omnistreams", limits=limits) as (one, two):
        near, far = cast(OmnistreamsSession, one), cast(OmnistreamsSession, two)
        far.window = 10_000
        sender = await near.open()
        receiver = await far.accept()
        await settled()
        sending = asyncio.create_task(send_each(sender, [b"ab"] * 10_000))
        await settled(200)
        queue = far.endpoint.receive_queue
        assert far.read_backpressure.paused_at, "20,000 bytes of content"
        assert queue.held_bytes == queue.unread_bytes + 64 * queue.unread_parts
        assert [await receiver.receive() for _ in range(10_000)] == [b"ab"] * 10_000
        await sending
        assert (queue.unread_bytes, queue.unread_parts) == (0, 0)


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "yamux"])
async def test_unread_content_in_tiny_frames_holds_little_more_than_its_bytes(
    protocol: str,
) -> None:
    limits = Limits(server_buffer_bytes=2 * MIB)
    streams: list[Stream] = []

    async def never_read(session: Session) -> None:
        async for stream in session.incoming:
            streams.append(stream)
        await session.wait_closed()

    server = await polymux.serve(
        never_read, "tcp://127.0.0.1:0", protocol=protocol, limits=limits,
        timeouts=Timeouts(close=1),
    )  # fmt: skip
    async with server, polymux.connect(server.url, protocol=protocol) as near:
        mine = [await near.open() for _ in range(4)]
        for _ in range(20):
            for stream in mine:
                stream.send_many([b"ab"] * 500)
            near.flush()
            await settled(2)
        async with asyncio.timeout(50):
            while len(streams) < 4 or sum(each.unread_bytes for each in streams) < 80_000:
                await asyncio.sleep(0.005)
        [session] = server.sessions
        parts = [part for stream in streams for part in stream.buffers.received]
        assert sum(map(sys.getsizeof, parts)) < 2 * 80_000 + 4096 * 56
        queue = session.endpoint.receive_queue
        assert queue.unread_parts == len(parts)
        assert queue.held_bytes >= sum(map(sys.getsizeof, parts)) - len(parts) * 8
        assert session.read_backpressure.pause_count == 0
        for stream in streams:
            assert await stream.readexactly(20_000) == b"ab" * 10_000
        assert (queue.unread_bytes, queue.unread_parts) == (0, 0)


async def test_every_way_to_read_keeps_the_count_of_unread_parts() -> None:
    async with joined("mplex") as (near, far):
        mine, theirs = await opened(near, far)
        queue = far.endpoint.receive_queue

        async def arrived(pieces: list[bytes]) -> None:
            mine.send_many(pieces)
            near.flush()
            await settled()
            assert queue.unread_parts == theirs.buffers.unread_parts == len(theirs.buffers.received)

        def check(size: int) -> None:
            assert queue.unread_bytes == theirs.unread_bytes == size
            assert queue.unread_parts == theirs.buffers.unread_parts == len(theirs.buffers.received)

        await arrived([b"ab\n"] * 100)
        assert await theirs.readline() == b"ab\n"
        check(297)
        await arrived([b"cd"] * 10)
        for _ in range(99):
            assert await theirs.readline() == b"ab\n"
        with pytest.raises(polymux.LimitExceeded):
            await theirs.readline(limit=4)
        check(20)
        reading = asyncio.create_task(theirs.readexactly(30))
        await settled()
        check(0)
        reading.cancel()
        await settled()
        check(20)
        assert theirs.receive_nowait(7) == b"cdcdcdc"
        check(13)
        theirs.free_unread()
        assert queue.unread_parts == 0
        await arrived([b"xy"])
        check(15)
        theirs.mark_read(13)
        assert theirs.unread_bytes == 2
        theirs.abort()
        assert (queue.unread_bytes, queue.unread_parts) == (0, 0)


# TLS


def tls_sockets(port: int, authority: Authority, count: int) -> list[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=authority.ca)
    return [
        context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), timeout=30), server_hostname="localhost"
        )
        for _ in range(count)
    ]


async def test_a_tls_session_that_transfers_nothing_holds_little(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.cert, authority.key)

    async def wait(session: Session) -> None:
        await session.wait_closed()

    async with polymux.serve(wait, "tls://127.0.0.1:0", protocol="mplex", tls=context) as server:
        held = await asyncio.to_thread(tls_sockets, server.port, authority, 2)
        tracemalloc.start()
        held += await asyncio.to_thread(tls_sockets, server.port, authority, 20)
        async with asyncio.timeout(30):
            while len(server.sessions) < 22:
                await asyncio.sleep(0.01)
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for sock in held:
            sock.close()
    assert size / 20 < 128 * KIB


async def test_what_is_sent_over_tls_arrives(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.cert, authority.key)
    async with polymux.serve(echo, "tls://127.0.0.1:0", protocol="mplex", tls=context) as server:
        trusting = ssl.create_default_context(cafile=authority.ca)
        url = f"tls://localhost:{server.port}"
        async with polymux.connect(url, protocol="mplex", tls=trusting) as session:
            data = bytes(range(256)) * 12_000
            assert await exchange(session, "s", data) == data


# All sessions of a server


class Holder:
    """A session that holds memory, without one."""

    def __init__(self, budget: ServerBudget, held: int = 0) -> None:
        self.budget = budget
        self.lease_bytes = 0
        self.held_bytes = held
        self.paused = False

    def hold(self, held: int) -> bool:
        self.held_bytes = held
        self.update()
        return not self.paused

    def update(self) -> None:
        self.paused = not self.budget.may_hold(self, self.held_bytes)


def test_leases_that_are_not_used_are_taken_back() -> None:
    budget = ServerBudget(4 * MIB)
    holders = [Holder(budget) for _ in range(100)]
    for holder in holders:
        assert holder.hold(MIB)
        holder.held_bytes = 0
    assert budget.times_exceeded == 0


def test_those_above_an_equal_share_pause_and_the_others_go_on() -> None:
    budget = ServerBudget(4 * MIB)
    greedy = [Holder(budget) for _ in range(3)]
    for holder in greedy:
        assert holder.hold(MIB + 300 * KIB)
    modest = Holder(budget)
    assert modest.hold(500 * KIB), "it is below an equal share"
    assert all(holder.paused for holder in greedy)
    assert budget.held_bytes <= 4 * MIB + 500 * KIB
    for holder in greedy[:2]:
        holder.held_bytes = 0
        budget.release(holder)
    assert not greedy[2].paused, "there is room again"


class Looks:
    """Holders that have used up their budget; counts how often what one holds is looked at."""

    def __init__(self, count: int, held: int) -> None:
        self.now = 0.0
        self.count = 0
        looks = self

        class Counted(Holder):
            @property
            def held_bytes(self) -> int:
                looks.count += 1
                return self.size

            @held_bytes.setter
            def held_bytes(self, size: int) -> None:
                self.size = size

        self.budget = ServerBudget(count * held, count, lambda: self.now)
        self.holders: list[Holder] = [Counted(self.budget) for _ in range(count)]
        for holder in self.holders:
            holder.hold(held)


def test_a_growth_of_a_budget_that_is_used_up_looks_at_each_session_twice_at_most() -> None:
    for count in (50, 200):
        looks = Looks(count, 300 * KIB)
        looks.now += 10
        looks.count = 0
        looks.holders[0].hold(301 * KIB)
        assert count <= looks.count <= 2 * count + 1


def test_a_trickle_into_a_budget_that_is_used_up_does_not_look_at_all_each_time() -> None:
    looks = Looks(200, 300 * KIB)
    looks.now += 10
    looks.count = 0
    for growth in range(10):
        for holder in looks.holders:
            holder.hold(300 * KIB + 1 + growth)
    assert all(holder.paused for holder in looks.holders)
    assert looks.count <= 2 * 10 * 200
    looks.count = 0
    for holder in looks.holders:
        looks.budget.release(holder)
    assert looks.count <= 2 * 10 * 200


def test_memory_that_was_freed_is_found_after_a_moment() -> None:
    looks = Looks(20, 300 * KIB)
    first, *others = looks.holders
    assert not first.hold(2 * MIB)
    for holder in others:
        holder.held_bytes = 0
    first.update()
    looks.now += REVIEW_SECONDS
    first.update()
    assert not first.paused


def test_with_many_sessions_and_a_small_budget_each_may_hold_little() -> None:
    assert ServerBudget(256 * MIB, 8192).base_lease_bytes == 8 * KIB
    assert ServerBudget(256 * MIB, 100).base_lease_bytes == 16 * KIB
    small = ServerBudget(4 * MIB, 2000)
    assert small.base_lease_bytes == 4 * KIB
    holders = [Holder(small) for _ in range(2000)]
    for holder in holders:
        holder.hold(5 * KIB)
    assert small.share_bytes(holders[0]) == 4 * KIB
    assert holders[-1].paused


@contextlib.asynccontextmanager
async def hog_server(limits: Limits) -> AsyncIterator[tuple[polymux.aio.Server, list[str]]]:
    """Echoes streams named `echo`, and never reads any other."""
    said: list[str] = []

    async def ignore(stream: Stream) -> None:
        if stream.name == "echo":
            async with stream:
                async for chunk in stream:
                    await stream.send(chunk)
            return
        try:
            while not stream.check_eof():
                await asyncio.sleep(0.02)
        except polymux.PolymuxError as problem:
            said.append(str(problem))

    async def handle(session: Session) -> None:
        await session.serve_streams(ignore)

    server = await polymux.serve(
        handle, "tcp://127.0.0.1:0", protocol="mplex", limits=limits,
        timeouts=Timeouts(slow_reader=0.5, close=1),
    )  # fmt: skip
    async with server:
        yield server, said


async def test_the_sessions_of_a_server_share_one_budget() -> None:
    limits = Limits(server_buffer_bytes=2 * MIB, session_buffer_bytes=MIB)
    async with hog_server(limits) as (server, said), contextlib.AsyncExitStack() as stack:
        honest = await stack.enter_async_context(polymux.connect(server.url, protocol="mplex"))
        hogs = [
            await stack.enter_async_context(polymux.connect(server.url, protocol="mplex"))
            for _ in range(8)
        ]

        async def push(session: Session) -> None:
            with contextlib.suppress(polymux.PolymuxError):
                stream = await session.open("hog")
                while True:
                    await stream.send(bytes(50_000))

        work = [asyncio.create_task(push(session)) for session in hogs]
        most = 0
        async with asyncio.timeout(50):
            while len(said) < 8:
                sessions = list(server.sessions)
                held = [session.read_backpressure.held_bytes for session in sessions]
                most = max(most, sum(held))
                assert await exchange(honest, "echo", b"still served") == b"still served"
                await asyncio.sleep(0.01)
        assert MIB < most <= limits.server_buffer_bytes + 8 * READ
        assert any("limit server_buffer_bytes=2097152" in text for text in said)
        for session in hogs:
            session.abort()
        await asyncio.gather(*work)


async def test_honest_sessions_are_served_within_a_small_budget() -> None:
    limits = Limits(server_buffer_bytes=MIB, session_buffer_bytes=512 * KIB)
    for protocol in ("mplex", "nerdbank"):
        server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol, limits=limits)
        async with server:

            async def talk(url: str = server.url, protocol: str = protocol) -> int:
                async with polymux.connect(url, protocol=protocol) as session:
                    return len(await exchange(session, "s", bytes(500_000)))

            assert await asyncio.gather(*(talk() for _ in range(12))) == [500_000] * 12
