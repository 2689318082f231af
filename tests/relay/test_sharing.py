"""Streams that are relayed over one slow connection share it."""

import asyncio

import pytest
from tests.relay.relayed_sessions import open_stream

import polymux
from polymux.relay import ChaosProxy

STREAMS = 16
TOTAL_BYTES = 12 << 20  # received by then; one stream's window alone has a tenth of it


@pytest.mark.parametrize("protocol", ["nerdbank", "yamux"])
async def test_streams_take_turns_on_a_connection_that_is_slower_than_their_senders(
    protocol: str,
) -> None:
    received: dict[int, int] = {}
    enough = asyncio.Event()

    async def count(stream: polymux.Stream) -> None:
        async for chunk in stream:
            received[id(stream)] = received.get(id(stream), 0) + len(chunk)
            if sum(received.values()) >= TOTAL_BYTES:
                enough.set()

    async def serve(session: polymux.Session) -> None:
        await session.serve_streams(count)

    async def send(stream: polymux.Stream) -> None:
        while True:
            await stream.send(bytes(60_000))

    local = "tcp://127.0.0.1:0"
    rules = ["* : bandwidth rate=16000 toward=upstream"]  # KB/s
    async with (
        asyncio.timeout(50),
        polymux.serve(serve, local, protocol=protocol) as server,
        ChaosProxy(local, server.url, protocol=protocol, rules=rules) as proxy,
        polymux.connect(proxy.url, protocol=protocol) as client,
    ):
        streams = [await open_stream(client, f"{number}") for number in range(STREAMS)]
        tasks = [asyncio.create_task(send(stream)) for stream in streams]
        await enough.wait()
        shares = sorted(received.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        client.abort()
    assert len(shares) == STREAMS
    assert shares[-1] < TOTAL_BYTES // 4  # two streams had nearly everything
