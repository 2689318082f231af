"""WebSocket transports: the handshake, third-party libraries, invalid input, the close."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trustme
from tests.aio.omnistreams_echo import MESSAGES, answer, there_and_back
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as library_connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as library_serve
from websockets.exceptions import ConnectionClosed

import polymux
from polymux import OmnistreamsSession, Server, Session, Timeouts
from polymux.aio import BadUrl

URL = "ws://127.0.0.1:0/omnistreams"
REQUEST = (
    b"GET /omnistreams HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@contextlib.asynccontextmanager
async def served(
    url: str = URL, timeouts: Timeouts | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, list[OmnistreamsSession]]]:
    """A server that echoes, and the sessions it had."""
    had: list[OmnistreamsSession] = []

    async def handle(session: Session) -> None:
        had.append(cast(OmnistreamsSession, session))
        await answer(session)

    async with await polymux.serve(
        handle, url, protocol="omnistreams", timeouts=timeouts, tls=tls
    ) as server:
        yield server, had


@contextlib.asynccontextmanager
async def unharmed(server: Server) -> AsyncIterator[None]:
    """Another session lives through what happens in this block."""
    async with polymux.connect(server.url, protocol="omnistreams") as other:
        yield
        assert await there_and_back(other, MESSAGES) == MESSAGES


async def raw(server: Server, *parts: bytes) -> bytes:
    """What comes back for these bytes, to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    answered = b""
    with contextlib.suppress(ConnectionError):
        for part in parts:
            writer.write(part)
            await writer.drain()
            if part is REQUEST:
                await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(30):
            while data := await reader.read(65536):
                answered += data
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answered


async def test_the_library_websockets_dials_us() -> None:
    async with served() as (server, _), library_connect(server.url) as client:
        await client.send(bytes.fromhex("0105 7b7d"))
        assert await client.recv() == bytes.fromhex("0505 40")
        assert await client.recv() == bytes.fromhex("0100 7b7d")
        await client.send(bytes.fromhex("0500 09"))
        await client.send([bytes.fromhex("0205"), b"in", b"", b"fragments"])
        assert await client.recv() == bytes.fromhex("0200") + b"infragments"
        await client.send(bytes.fromhex("0205") + bytes(200_000))
        assert await client.recv() == bytes.fromhex("0200") + bytes(200_000)
        await (await client.ping(b"are you there"))
        await client.send(bytes.fromhex("0305"))
        assert await client.recv() == bytes.fromhex("0300")


async def test_we_dial_the_library_websockets() -> None:
    got: list[bytes] = []

    async def handle(connection: ServerConnection) -> None:
        create = await connection.recv()
        assert create == b"\x01\x00m"
        await connection.send(bytes.fromhex("0500 03"))
        await (await connection.ping())
        got.extend([cast(bytes, await connection.recv()) for _ in range(4)])
        await connection.send([b"\x00con", b"trol"])
        await connection.wait_closed()
        assert connection.close_code == 1000

    async with (
        library_serve(handle, "127.0.0.1", 0) as server,
        polymux.connect(
            f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/any?x=1", protocol="omnistreams"
        ) as session,
    ):
        sender = await session.open("m")
        for message in (b"", b"\xff", bytes(100_000)):
            await sender.send(message)
        await sender.end()
        assert await session.receive_control() == b"control"
    assert got == [b"\x02\x00", b"\x02\x00\xff", b"\x02\x00" + bytes(100_000), b"\x03\x00"]


async def test_wss_is_verified() -> None:
    authority = trustme.CA()
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server_side)
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    url = URL.replace("ws:", "wss:")
    with pytest.raises(BadUrl, match="wss:// needs a context with a certificate"):
        await polymux.serve(answer, url, protocol="omnistreams")
    async with served(url, tls=server_side) as (server, had):
        assert server.url.startswith("wss://127.0.0.1:")
        async with polymux.connect(server.url, protocol="omnistreams", tls=client_side) as session:
            assert await there_and_back(session, MESSAGES) == MESSAGES
        with pytest.raises(polymux.Unreachable, match="the certificate is not trusted"):
            await polymux.connect(server.url, protocol="omnistreams")
        assert had[0].failure is None


IGNORED = [
    ("", "omnistreams.empty-message"),
    ("09aabb", "omnistreams.unknown-type"),
    ("01", "omnistreams.bad-length"),
    ("0399", "omnistreams.end-on-unknown-id"),
]


@pytest.mark.parametrize(("message", "rule"), IGNORED)
async def test_a_bad_message_is_counted_by_name_and_the_session_goes_on(
    message: str, rule: str
) -> None:
    async with served() as (server, had), library_connect(server.url) as client:
        await client.send(bytes.fromhex(message))
        await works(client)
        assert had[0].endpoint.counters.hits == {rule: 1}
        assert had[0].failure is None


async def works(client: ClientConnection, number: str = "07", back: str = "00") -> None:
    await client.send(bytes.fromhex(f"01{number}"))
    assert await client.recv() == bytes.fromhex(f"05{number}40")
    assert await client.recv() == bytes.fromhex(f"01{back}")


async def test_create_on_an_open_id_abandons_the_old_stream_only() -> None:
    async with served() as (server, had), library_connect(server.url) as client:
        await works(client)
        await client.send(bytes.fromhex("0107"))
        heard = {await client.recv() for _ in range(3)}
        assert heard == {b"\x05\x07\x40", b"\x04\x00", b"\x01\x01"}  # the old echo is cancelled
        assert had[0].endpoint.counters.hits == {"omnistreams.create-on-open-id": 1}
        assert [str(stream) for stream in had[0].streams.values()] == ["stream d7.2", "stream a1"]


async def test_data_beyond_credit_is_answered_with_one_cancel() -> None:
    async with served() as (server, had), library_connect(server.url) as client:
        await works(client)
        for _ in range(70):
            await client.send(bytes.fromhex("0207 78"))
        assert await client.recv() == bytes.fromhex("0607")
        await works(client, "08", "01")
        assert had[0].endpoint.counters.hits["omnistreams.credit-exceeded"] >= 1


async def test_text_is_closed_with_1003_and_what_is_too_long_with_1009() -> None:
    async with served() as (server, had), unharmed(server):
        for code, message in ((1003, "text"), (1009, bytes(2_000_000))):
            async with library_connect(server.url) as client:
                with contextlib.suppress(ConnectionClosed):
                    await client.send(message)
                await client.wait_closed()
            assert client.close_code == code
        failures = [str(session.failure) for session in had if session.failure is not None]
    assert len(failures) == 2
    assert all("websocket." in text and "\n" not in text for text in failures)


async def test_a_message_of_64_mebibytes_is_refused_by_its_length_alone() -> None:
    head = bytes.fromhex("82ff") + (64 << 20).to_bytes(8, "big") + bytes(4)
    async with served() as (server, had), unharmed(server):
        answered = await raw(server, REQUEST, head + b"\x02\x07")
        assert (1009).to_bytes(2, "big") in answered
        await raw(server, REQUEST, head, bytes(64 << 20))
        assert len([session for session in had if session.failure is not None]) == 2
        assert all(session.endpoint.receive_queue.unread_bytes == 0 for session in had)


async def test_a_length_prefix_of_64_mebibytes_is_refused_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served("tcp://127.0.0.1:0") as (server, _), unharmed(server):
        await raw(server, (64 << 20).to_bytes(4, "big") + b"\x02\x07")
    line = caplog.records[0].getMessage()  # its handler may not even have been called
    assert "session with 127.0.0.1:" in line
    assert "omnistreams.message-too-long" in line
    assert "limit max_frame_bytes=1048576" in line


NO_UPGRADES = [
    (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 "),
    (b"GET /omnistreams HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 426 "),
    (b"GET /omnistreams HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n", b"HTTP/1.1 431 "),
    (b"x" * 20_000, b"HTTP/1.1 431 "),
    (b"\x00\xff\r\n\r\n", b""),
]


@pytest.mark.parametrize(("data", "answer"), NO_UPGRADES)
async def test_what_asks_for_no_websocket_gets_none(data: bytes, answer: bytes) -> None:
    async with served() as (server, had), unharmed(server):
        assert (await raw(server, data)).startswith(answer)
        assert len(had) == 1
        assert server.upgrade_listener is not None
        assert server.upgrade_listener.pending == set()


async def test_frames_that_come_with_the_request_are_read() -> None:
    async with served() as (server, _):
        create = bytes.fromhex("8282 00000000 0107")
        close = bytes.fromhex("8882 00000000 03e8")
        answered = await raw(server, REQUEST + create, close)
        assert answered.split(b"\r\n\r\n", 1)[1].endswith(bytes.fromhex("8802 03e8"))


async def test_an_upgrade_or_a_frame_left_unfinished_ends_in_time() -> None:
    async with served(timeouts=Timeouts(handshake=0.1, frame=0.1)) as (server, had):
        assert await raw(server, REQUEST[:-2]) == b""
        await raw(server, REQUEST, bytes.fromhex("8282 0000"))
        assert "deadline frame=0.1" in str(had[0].failure)


async def test_closing_the_server_cuts_upgrades_that_are_not_finished() -> None:
    async with served() as (server, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST[:20])
        while server.upgrade_listener is None or not server.upgrade_listener.pending:
            await asyncio.sleep(0.01)
        await server.close()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


ANSWERS = [
    (b"HTTP/1.1 404 Not Found\r\n\r\n", "404 Not Found' and no WebSocket; is the path right"),
    (b"HTTP/1.1 101 Yes\r\n\r\n", "the WebSocket handshake failed"),
    (b"HTTP/1.1 200 " + b"x" * 20_000, "an HTTP head of more than 16384 bytes"),
    (b"SSH-2.0-OpenSSH\r\n\r\n", "'SSH-2.0-OpenSSH' and no WebSocket"),
    (b"", "the peer ended the connection during the WebSocket handshake"),
]


@pytest.mark.parametrize(("data", "text"), ANSWERS)
async def test_a_server_without_websocket_is_unreachable_in_one_line(
    data: bytes, text: str
) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        writer.close()

    async with await asyncio.start_server(say, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(polymux.Unreachable, match=text) as problem:
            await polymux.connect(f"ws://127.0.0.1:{port}/", protocol="omnistreams")
        assert "\n" not in str(problem.value)


async def test_a_close_code_of_the_peer_is_reported() -> None:
    async with served() as (server, had):
        for code, clean in ((1000, True), (1001, True), (4001, False)):
            async with library_connect(server.url) as client:
                await works(client)
                await client.close(code)
            await had[-1].wait_closed()
            assert (had[-1].failure is None) == clean
        assert "closed the WebSocket with code 4001" in str(had[-1].failure)


async def test_an_end_without_a_close_is_a_failure() -> None:
    async with served() as (server, had):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        while not had:
            await asyncio.sleep(0.01)
        await had[0].wait_closed()
        assert "without a WebSocket close" in str(had[0].failure)


async def test_protocols_that_cannot_use_a_websocket_are_rejected() -> None:
    with pytest.raises(polymux.Unsupported, match="mplex does not run over WebSocket"):
        polymux.connect("ws://127.0.0.1:1/", protocol="mplex")
    with pytest.raises(BadUrl, match="the carrier is websocket"):
        polymux.connect("ws://127.0.0.1:1/", protocol="omnistreams:carrier=length")
    with pytest.raises(BadUrl, match="needs a ws:// or wss:// URL"):
        polymux.connect("tcp://127.0.0.1:1", protocol="omnistreams:carrier=websocket")


async def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "websockets.client", None)
    with pytest.raises(polymux.MissingExtra, match=r"pip install 'polymux\[websocket\]'"):
        polymux.connect("ws://127.0.0.1:1/", protocol="omnistreams")
    with pytest.raises(polymux.MissingExtra):
        await polymux.serve(answer, URL, protocol="omnistreams")


async def test_a_session_ends_if_pings_are_not_answered_and_only_then() -> None:
    """A suspended process keeps its connection: only a ping shows that it does not answer."""
    async with served(timeouts=Timeouts(keepalive_interval=1)) as (server, had):
        async with library_connect(server.url) as client:
            silent = await raw(server, REQUEST)
            assert silent.startswith(b"\x89\x00")  # a ping
            failure = str(had[1].failure)
            assert "answered no ping: deadline keepalive_interval=1" in failure
            assert had[1].endpoint.counters.hits["keepalive_interval"] == 1
            await works(client)  # the library answers pings by itself
            assert had[0].failure is None
