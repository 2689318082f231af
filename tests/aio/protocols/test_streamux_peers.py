"""Streamux peers that violate rules: a named error for that session, no effect on others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.aio.session_helpers import settled
from tests.aio.streamux_helpers import SMALL, echo, held

import polymux
from polymux import StreamuxSession

GOOD = bytes.fromhex("010a0464")  # 10/4, as SMALL announces


class Place:
    """A server that answers everybody, one good client, and one that sends what it likes."""

    def __init__(
        self, server: polymux.Server, good: StreamuxSession, reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter, sessions: list[StreamuxSession],
    ) -> None:  # fmt: skip
        self.server, self.good, self.reader, self.writer = server, good, reader, writer
        self.sessions = sessions

    async def say(self, text: str | bytes) -> None:
        self.writer.write(bytes.fromhex(text) if isinstance(text, str) else text)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def hear(self, size: int) -> str:
        async with asyncio.timeout(30):
            return (await self.reader.readexactly(size)).hex()

    async def is_cut_off(self) -> None:
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass

    async def others_are_well(self) -> None:
        data = bytes(100_000)
        assert await self.good.request(data) == data

    def bad(self) -> StreamuxSession:
        return self.sessions[-1]


@contextlib.asynccontextmanager
async def place(limits: polymux.Limits | None = None) -> AsyncIterator[Place]:
    sessions: list[StreamuxSession] = []

    async def handle(session: StreamuxSession) -> None:
        sessions.append(session)
        await session.serve_calls(echo)

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=SMALL, limits=limits)
    async with server, polymux.connect(server.url, protocol=SMALL) as good:
        assert isinstance(good, StreamuxSession)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            yield Place(server, good, reader, writer, sessions)
        finally:
            writer.close()


BAD = [
    ("020a0464", "streamux.bad-version"),
    ("010a0564", "streamux.bad-bit-counts"),
    ("010e0064", "streamux.bad-bit-counts"),
    ("01ff0f64", "streamux.bad-bit-counts"),
    ("01100e64", "streamux.mixed-header-sizes"),
]


@pytest.mark.parametrize(("initiator", "rule"), BAD)
async def test_a_bad_initiator_ends_that_session_by_name(
    initiator: str, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "polymux.aio")
    async with place() as here:
        await here.say(initiator)
        await here.is_cut_off()
        await here.others_are_well()
        assert len(here.sessions) == 1  # no handler ran for the bad one
    assert rule in caplog.text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(("initiator", "rule"), BAD)
async def test_a_client_error_names_what_is_wrong_with_the_server(
    initiator: str, rule: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex(initiator))
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(polymux.PeerViolation, match=rule.replace(".", r"\.")) as problem:
        await polymux.connect(f"tcp://127.0.0.1:{port}", protocol=SMALL)
    assert "\n" not in str(problem.value)
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("frames", "rule"),
    [
        ("25c0 6f6b", "streamux.reply-unknown"),
        ("05c0", "streamux.reply-unknown"),
        ("0540", "streamux.ack-not-cancelled"),
        ("0500", "streamux.cancel-unknown"),
    ],
)
async def test_what_belongs_to_nothing_is_counted_and_the_session_goes_on(
    frames: str, rule: str
) -> None:
    async with place() as here:
        await here.say(GOOD.hex() + frames)
        assert await here.hear(4) == "010a0432"
        if rule == "streamux.cancel-unknown":
            assert await here.hear(2) == "0540"  # always acknowledged
        await here.say("5580 68656c6c6f")
        assert await here.hear(7) == "55c068656c6c6f"
        assert here.bad().endpoint.counters.hits == {rule: 1}
        await here.others_are_well()


async def test_a_request_on_an_id_in_flight_is_dropped_and_named() -> None:
    async with place() as here:
        await here.say(GOOD.hex() + "1500 61" + "0580" + "1500 62")  # a, its end, and at once b
        assert await here.hear(4 + 3) == "010a0432" + "15c061"
        assert here.bad().endpoint.counters.hits == {"streamux.id-in-flight": 1}
        await here.others_are_well()


async def test_a_message_ends_with_its_last_byte_not_with_the_header_of_its_last_chunk() -> None:
    async with place() as here:
        await here.say(GOOD.hex() + "5580 6865")
        assert await here.hear(4) == "010a0432"
        await asyncio.sleep(0.05)
        await here.say("6c6c6f")
        assert await here.hear(7) == "55c068656c6c6f"


async def test_an_id_used_again_while_the_last_chunk_still_comes_in_mixes_nothing() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("010d0100"))  # 13/1: two ids
        await reader.readexactly(4 + 3 + 3)
        writer.write(bytes.fromhex("0ac0 6865"))  # id 0: the last chunk of 5, two bytes of it
        assert (await reader.readexactly(3)).hex() == "028063"  # id 0 again
        writer.write(bytes.fromhex("6c6c6f 04c0 7878 03c0 79"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    protocol = "streamux:length_bits=13,id_bits=1"
    async with polymux.connect(f"tcp://127.0.0.1:{port}", protocol=protocol) as session:
        assert isinstance(session, StreamuxSession)
        first = asyncio.create_task(session.request(b"a"))
        second = asyncio.create_task(session.request(b"b"))
        while not session.endpoint.receive_queue.discarded_bytes and not first.done():
            await asyncio.sleep(0.01)
            if session.streams and next(iter(session.streams.values())).peer_half.credit_spent:
                break
        assert await session.request(b"c") == b"xx"
        assert await first == b"hello"
        assert await second == b"y"
        await settled()
        assert not any(held(session).values())
    server.close()
    await server.wait_closed()


async def test_an_id_is_free_at_the_ack_even_if_the_reply_crossed_the_cancel() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex("010d0100"))
        await reader.readexactly(4 + 3 + 3)
        assert (await reader.readexactly(2)).hex() == "0000"  # id 0 is cancelled
        writer.write(bytes.fromhex("02c0 78"))  # its reply was on its way
        await asyncio.sleep(0.05)
        writer.write(bytes.fromhex("0040"))
        assert (await reader.readexactly(3)).hex() == "028063"  # id 0 again
        writer.write(bytes.fromhex("02c0 7a 03c0 79"))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    protocol = "streamux:length_bits=13,id_bits=1"
    async with polymux.connect(f"tcp://127.0.0.1:{port}", protocol=protocol) as session:
        assert isinstance(session, StreamuxSession)
        first = asyncio.create_task(session.request(b"a"))
        second = asyncio.create_task(session.request(b"b"))
        await settled()
        third = asyncio.create_task(session.request(b"c"))
        await settled()
        first.cancel()
        assert await third == b"z"
        assert await second == b"y"
        assert not session.endpoint.counters.hits
    server.close()
    await server.wait_closed()


async def test_a_connection_that_ends_inside_the_last_chunk_ends_no_message() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GOOD)
        await reader.readexactly(4 + 3)
        writer.write(bytes.fromhex("50c06865"))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with polymux.connect(f"tcp://127.0.0.1:{port}", protocol=SMALL) as session:
        assert isinstance(session, StreamuxSession)
        with pytest.raises(polymux.SessionClosed, match="in the middle of a frame"):
            await session.request(b"x")
    server.close()
    await server.wait_closed()


async def test_a_message_without_end_is_capped_and_keeps_no_memory() -> None:
    async with place(polymux.Limits(max_message_bytes=100_000)) as here:
        await here.say(GOOD)
        assert await here.hear(4) == "010a0432"
        for _ in range(40):
            await here.say(bytes.fromhex("f53f") + bytes(1023))
            await here.say((bytes.fromhex("f53f") + bytes(1023)) * 50)
            await settled(5)
        await here.others_are_well()
        session = here.bad()
        assert session.endpoint.counters.hits["max_message_bytes"] == 1
        assert not session.streams
        assert session.endpoint.receive_queue.unread_bytes == 0
        await here.say("5680 68656c6c6f")  # another id is served as ever
        assert await here.hear(7) == "56c068656c6c6f"
        await here.say("0500")
        assert await here.hear(2) == "0540"
        await settled()
        assert not any(held(session).values())


async def test_a_reply_over_the_cap_is_cancelled() -> None:
    async with place(polymux.Limits(max_message_bytes=1000)) as here:
        server = here.server
        limits = polymux.Limits(max_message_bytes=100)
        async with polymux.connect(server.url, protocol=SMALL, limits=limits) as session:
            assert isinstance(session, StreamuxSession)
            with pytest.raises(
                polymux.LimitExceeded, match="more than 100 bytes; limit max_message_bytes"
            ):
                await session.request(bytes(500))
            assert await session.request(bytes(50)) == bytes(50)


async def test_calls_past_the_limit_are_counted_and_answered_once_there_is_room() -> None:
    async with place(polymux.Limits(max_streams=2)) as here:
        await here.say(GOOD)
        assert await here.hear(4) == "010a0432"
        await here.say("1000 61 1100 61 1280 61 0080")  # two that stay open, a third, and an end
        assert await here.hear(6) == "10c061" + "12c061"
        assert here.bad().endpoint.counters.hits == {"max_streams": 1}


async def test_floods_of_keep_alives_end_the_session_but_cancels_may_be_many() -> None:
    async with place() as here:
        await here.say(GOOD)
        assert await here.hear(4) == "010a0432"
        for _ in range(3000):
            await here.say("1580 61 0500")
            assert (await here.hear(2))[-4:] == "0540"
        assert here.bad().failure is None
        await here.say(bytes.fromhex("0080") * 5000)
        await here.is_cut_off()
        assert "limit empty_frame_burst" in str(here.bad().failure)
        await here.others_are_well()
