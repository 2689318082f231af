"""Chunks arrive complete and in order; a lone sender yields to the event loop."""

from __future__ import annotations

import asyncio
import random

import pytest

import polymux
from polymux import Session, Stream
from polymux.core.endpoint import Endpoint
from polymux.core.side import DIALER
from polymux.live.session.busy_poll import BusyPoller, BusyPollLoop
from polymux.live.session.socket_options import raw_socket_fd
from polymux.live.session.socket_writer import (
    MAX_UNFLUSHED_STREAM_CHANGES,
    SENDER_QUOTA_BYTES,
    SocketWriter,
)


def make_writer(transport: asyncio.Transport) -> SocketWriter:
    """A writer over an endpoint that sends nothing by itself."""
    endpoint = Endpoint(polymux.protocol("mplex"), DIALER)
    poller = BusyPoller(BusyPollLoop(), 0)
    writer = SocketWriter(
        endpoint, lambda _: None, lambda: transport, lambda: None, lambda: None, poller
    )
    writer.fd = raw_socket_fd(transport)
    assert writer.fd >= 0
    return writer


class Collecting(asyncio.Protocol):
    """Reads slowly: pauses for a moment after every chunk."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.transport.pause_reading()
        asyncio.get_running_loop().call_later(0.001, self.transport.resume_reading)

    def connection_lost(self, error: Exception | None) -> None:
        self.over.set_result(None)


async def test_chunks_of_any_size_arrive_complete_and_in_order() -> None:
    loop = asyncio.get_running_loop()
    rng = random.Random(5)
    for _ in range(5):
        reading: asyncio.Future[Collecting] = loop.create_future()

        def accepted(told: asyncio.Future[Collecting] = reading) -> Collecting:
            told.set_result(Collecting())
            return told.result()

        server = await loop.create_server(accepted, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        writer = make_writer(transport)
        sent = bytearray()
        for _ in range(40):
            sizes = [rng.choice((1, 5, 300, 20_000, 70_000)) for _ in range(rng.randrange(1, 30))]
            chunks = [rng.randbytes(size) for size in sizes]
            assert writer.write_chunks(transport, chunks) == sum(sizes)
            sent += b"".join(chunks)
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        transport.close()
        collected = await reading
        async with asyncio.timeout(30):
            await collected.over
        assert collected.got == sent
        server.close()


async def test_chunks_for_a_connection_that_is_gone_raise_nothing() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    writer = make_writer(transport)
    transport.abort()
    chunks = [bytes(70_000), bytes(70_000)]
    assert writer.write_chunks(transport, chunks) == 140_000
    await asyncio.sleep(0)  # the socket is closed by now; its descriptor may be reused
    assert writer.write_chunks(transport, chunks) == 140_000
    server.close()


async def test_a_sender_that_never_waits_yields_to_other_tasks() -> None:
    async def swallow(session: Session) -> None:
        async for stream in session.incoming:
            async for _ in stream:
                pass

    turns = 0

    async def live() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with await polymux.serve(swallow, "tcp://127.0.0.1:0", protocol="mplex") as server:
        async with polymux.connect(server.url, protocol="mplex") as session:
            stream = await session.open()
            other = asyncio.create_task(live())
            pieces = 320
            for _ in range(pieces):
                await stream.send(bytes(65536))
            assert turns >= pieces * 65536 // SENDER_QUOTA_BYTES - 1
            other.cancel()
            await stream.end()


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank"])
async def test_many_opened_or_closed_streams_are_flushed_before_the_next_iteration(
    protocol: str,
) -> None:
    async def swallow(session: Session) -> None:
        await session.serve_streams(drain)

    async def drain(stream: Stream) -> None:
        async for _ in stream:
            pass

    before = 0

    def grew() -> bool:
        nonlocal before
        before, earlier = session.bytes_sent, before
        return before > earlier

    async with await polymux.serve(swallow, "tcp://127.0.0.1:0", protocol=protocol) as server:
        async with polymux.connect(server.url, protocol=protocol) as session:
            await session.ready
            streams = [await session.open()]
            before = session.bytes_sent
            if protocol == "mplex":  # no event-loop iteration while these are opened
                streams += [await session.open() for _ in range(MAX_UNFLUSHED_STREAM_CHANGES - 2)]
                assert not grew()
                streams += [await session.open()]
                assert grew()
                streams += [await session.open()]
                assert not grew()
            else:  # each of these waits until it is accepted
                streams += await asyncio.gather(
                    *(session.open() for _ in range(MAX_UNFLUSHED_STREAM_CHANGES))
                )
            await asyncio.sleep(0.01)
            grew()
            for stream in streams[: MAX_UNFLUSHED_STREAM_CHANGES - 1]:
                await stream.end()
            assert not grew()
            await streams[MAX_UNFLUSHED_STREAM_CHANGES - 1].end()
            assert grew()
            await streams[MAX_UNFLUSHED_STREAM_CHANGES].end()
            assert not grew()
            for stream in streams:
                assert await stream.receive_all() == b""
