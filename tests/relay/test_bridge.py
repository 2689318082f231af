"""Bridges: sessions of one protocol relayed to a server of another, over real connections."""

import asyncio
import contextlib
import hashlib
import os
import random
from collections.abc import AsyncIterator

import pytest
from tests.relay.relayed_sessions import PAIRS, digest_of, fill, open_stream, send_all

import polymux
from polymux.metrics import Meter
from polymux.relay import Bridge, CannotRelay, bridge

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
TIMEOUT = 30
SOME_PAIRS = [
    ("mplex", "nerdbank"),
    ("nerdbank:version=2", "yamux"),
    ("yamux:dialect=libp2p", "mplex"),
]


@contextlib.asynccontextmanager
async def bridged(
    protocol_a: str, protocol_b: str, **options: object
) -> AsyncIterator[tuple[polymux.Session, polymux.Session, Bridge]]:
    """A client of `protocol_a`, the server's session of `protocol_b`, and the bridge between."""
    accepted: asyncio.Queue[polymux.Session] = asyncio.Queue()

    async def keep(session: polymux.Session) -> None:
        accepted.put_nowait(session)
        await session.wait_closed()

    local = "tcp://127.0.0.1:0"
    async with (
        asyncio.timeout(TIMEOUT),
        polymux.serve(keep, local, protocol=protocol_b) as server,
        bridge(
            local,
            server.url,
            protocol_a=protocol_a,
            protocol_b=protocol_b,
            **options,  # type: ignore[arg-type]  # keywords of `bridge`
        ) as between,
        polymux.connect(between.url, protocol=protocol_a) as client,
    ):
        yield client, await accepted.get(), between


async def echo(stream: polymux.Stream) -> None:
    async for chunk in stream:
        await stream.send(chunk)
    await stream.end()


@pytest.mark.parametrize(("protocol_a", "protocol_b"), PAIRS if SOAK else SOME_PAIRS)
async def test_five_hundred_streams_pass_a_bridge_with_equal_digests(
    protocol_a: str, protocol_b: str
) -> None:
    data = random.Random(3).randbytes(20_000)

    async def exchange(client: polymux.Session) -> None:
        stream = await open_stream(client, "echo")
        sending = asyncio.create_task(send_all(stream, data))
        assert await digest_of(stream) == hashlib.sha256(data).digest()
        await sending

    async with bridged(protocol_a, protocol_b) as (client, server, between):
        serving = asyncio.create_task(server.serve_streams(echo))
        await asyncio.gather(*(exchange(client) for _ in range(500)))
        while between.stats.open:
            await asyncio.sleep(0)
        assert (between.stats.streams, between.stats.aborted) == (500, 0)
        assert between.stats.bytes_a == between.stats.bytes_b == 500 * len(data)
    await asyncio.gather(serving, return_exceptions=True)


async def test_a_client_is_closed_if_the_server_cannot_be_reached() -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        bridge(
            "tcp://127.0.0.1:0", "unix:///nonexistent", protocol_a="mplex", protocol_b="nerdbank"
        ) as between,
        polymux.connect(between.url, protocol="mplex") as client,
    ):
        await client.wait_closed()
        assert between.refused == 1
        assert "/nonexistent" in between.failure


@pytest.mark.parametrize(
    ("protocol_a", "protocol_b"),
    [("mplex", "omnistreams"), ("streamux", "mplex"), ("minmux", "nerdbank")],
)
def test_protocols_of_different_shapes_are_refused_in_words(
    protocol_a: str, protocol_b: str
) -> None:
    with pytest.raises(CannotRelay, match=r"streamux only to streamux"):
        bridge(
            "tcp://127.0.0.1:0",
            "tcp://127.0.0.1:1",
            protocol_a=protocol_a,
            protocol_b=protocol_b,
        )


async def test_omnistreams_messages_metadata_cancels_and_control_messages_pass() -> None:
    protocol = "omnistreams:carrier=length"
    async with bridged(protocol, protocol) as (client, server, between):
        assert isinstance(client, polymux.OmnistreamsSession)
        assert isinstance(server, polymux.OmnistreamsSession)
        sender = await client.open({"kind": "log"})
        receiver = await server.accept()
        assert receiver.json() == {"kind": "log"}
        for message in (b"one", b"", b"three"):
            await sender.send(message)
        await sender.end()
        assert [message async for message in receiver] == [b"one", b"", b"three"]
        back = await server.open(b"back")
        (await client.accept()).cancel()
        with pytest.raises(polymux.StreamAborted):
            await fill(back)
        await client.control(b"hello")
        assert await server.receive_control() == b"hello"
        assert not between.stats.lost


async def test_omnistreams_streams_become_minmux_streams_and_back() -> None:
    async with bridged("omnistreams:carrier=length", "minmux") as (client, server, between):
        assert isinstance(client, polymux.OmnistreamsSession)
        assert isinstance(server, polymux.MinmuxSession)
        sender = await client.open(b"metadata")
        await sender.send(b"one")
        await sender.send(b"two")
        await sender.end()
        receiver = server.receiver(1)
        assert await receiver.receive_all() == b"onetwo"
        writer = server.sender(2)
        writer.promise(1)  # the first packet: the bridge learns of the stream and gives credit
        await writer.send(bytes(200_000))
        await writer.stop()
        back = await client.accept()
        assert await back.receive_all() == bytes(200_000)
        await client.control(b"not for Minmux")
        while between.stats.lost["control_message"] == 0:
            await asyncio.sleep(0)
        assert between.stats.lost == {"name": 1, "message_boundaries": 1, "control_message": 1}


async def test_minmux_streams_keep_their_ids_and_the_reader_s_credit_reaches_the_writer() -> None:
    async with bridged("minmux", "minmux") as (client, server, _):
        assert isinstance(client, polymux.MinmuxSession)
        assert isinstance(server, polymux.MinmuxSession)
        receiver = server.receiver(7)
        sender = client.sender(7)
        await sender.send(b"seven")
        await sender.stop()
        assert await receiver.receive_all() == b"seven"


async def test_given_minmux_ids_get_credit_before_anything_is_sent() -> None:
    async with bridged("minmux", "omnistreams:carrier=length", minmux_streams=[3]) as (
        client,
        server,
        _,
    ):
        assert isinstance(client, polymux.MinmuxSession)
        assert isinstance(server, polymux.OmnistreamsSession)
        await client.sender(3).send(b"three")
        assert await (await server.accept()).receive() == b"three"


async def test_streamux_requests_replies_and_cancels_pass() -> None:
    async with bridged("streamux", "streamux:length_bits=8,id_bits=6") as (client, server, between):
        assert isinstance(client, polymux.StreamuxSession)
        assert isinstance(server, polymux.StreamuxSession)
        cancelled = asyncio.Event()

        async def answer(call: polymux.Call) -> None:
            request = await call.read()
            if request == b"wait":
                try:
                    await asyncio.Event().wait()
                finally:
                    cancelled.set()
            await call.reply(request.upper())

        serving = asyncio.create_task(server.serve_calls(answer))
        assert await client.request(b"hello" * 50_000, timeout=10) == b"HELLO" * 50_000
        waiting = asyncio.create_task(client.request(b"wait", timeout=20))
        while between.stats.streams < 2:
            await asyncio.sleep(0)
        waiting.cancel()
        await cancelled.wait()
    await asyncio.gather(serving, waiting, return_exceptions=True)


async def test_a_meter_counts_the_sessions_of_both_sides_and_what_was_relayed() -> None:
    meter = Meter()
    async with bridged("mplex", "yamux", meter=meter) as (client, server, between):
        serving = asyncio.create_task(server.serve_streams(echo))
        stream = await client.open("named")
        await send_all(stream, b"x" * 1000)
        assert len(await stream.receive_all()) == 1000
        while between.stats.open:
            await asyncio.sleep(0)
        begun = next(family for family in meter.collect() if family.name == "sessions_begun")
        assert sum(begun.values.values()) == 2
        families = {family.name: family.values for family in between.collect()}
        assert families["relay_streams"] == {(): 1}
        assert families["relay_bytes"] == {("a",): 1000, ("b",): 1000}
        assert families["relay_lost"] == {("name",): 1}
    await asyncio.gather(serving, return_exceptions=True)
