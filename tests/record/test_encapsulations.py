"""The recording proxy with TLS, Unix sockets and WebSocket: the file has what both exchanged."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import websockets
from tests.record.captured_bytes import by_number, talks
from tests.record.certificate_authority import Authority
from tests.record.logging_peers import Room
from websockets.frames import Frame
from websockets.protocol import CLIENT, SERVER, Protocol

from polymux.capture import PcapngWriter
from polymux.record import RecordingProxy
from polymux.record.tls_contexts import client_context, server_context


def same(room: Room, out: Path) -> None:
    """The file has what was exchanged, and that all of them ended."""
    recorded = by_number(out)
    assert set(recorded) == set(room.dialers)
    for number, talk in recorded.items():
        dialer, acceptor = room.dialers[number], room.acceptors[number]
        assert talk.raw_bytes == (bytes(dialer.sent), bytes(acceptor.sent))
        assert talk.raw_bytes == (bytes(acceptor.received), bytes(dialer.received))
        assert talk.ends == ("fin", "fin")
        assert talk.vantage == "middle"


async def talk_through(
    room: Room,
    tap: RecordingProxy,
    where: Callable[[], int | str],
    tls: ssl.SSLContext | None = None,
) -> None:
    await room.dial_all(where(), tls=tls)
    await asyncio.sleep(0.2)
    await room.settle()
    await room.close()
    async with asyncio.timeout(60):
        while tap.stats.open:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("near", ["tls", "tcp"])
@pytest.mark.parametrize("far", ["tls", "tcp"])
async def test_tls_is_terminated_at_the_proxy_and_the_file_has_the_plain_text(
    tmp_path: Path, authority: Authority, near: str, far: str
) -> None:
    room = Room()
    own = server_context(authority.cert, authority.key)
    port = await room.listen(own if far == "tls" else None)
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        tap = RecordingProxy(
            f"{near}://127.0.0.1:0", f"{far}://localhost:{port}", sink,
            tls=own, upstream_tls=client_context(authority.ca),
        )  # fmt: skip
        async with tap:
            dials = client_context(authority.ca) if near == "tls" else None
            await talk_through(room, tap, lambda: tap.address.port, dials)
    same(room, out)


@pytest.mark.parametrize(("near", "far"), [("unix", "unix"), ("unix", "tcp"), ("tcp", "unix")])
async def test_unix_sockets_are_recorded_like_any_other(
    tmp_path: Path, near: str, far: str
) -> None:
    room = Room()
    listen, upstream = str(tmp_path / "near"), str(tmp_path / "far")
    if far == "unix":
        await room.listen_unix(upstream)
        url = f"unix://{upstream}"
    else:
        url = f"tcp://127.0.0.1:{await room.listen()}"
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        own = f"unix://{listen}" if near == "unix" else "tcp://127.0.0.1:0"
        async with RecordingProxy(own, url, sink) as tap:
            await talk_through(room, tap, lambda: listen if near == "unix" else tap.address.port)
    same(room, out)
    recorded = talks(out)
    assert len({talk.dialer for talk in recorded}) == 3
    assert len({talk.acceptor for talk in recorded}) == 1
    assert not Path(listen).exists()


MESSAGES: list[str | bytes] = [
    "hello", b"\0\1\2" * 5000, "", b"", "grüße " * 100, b"x" * 200_000
]  # fmt: skip


def messages_of(raw: bytes, sender: int) -> list[str | bytes]:
    """The messages in a recorded direction, as the websockets library reads them."""
    end = raw.index(b"\r\n\r\n") + 4
    reader = Protocol(SERVER if sender == 0 else CLIENT, max_size=None)
    reader.receive_data(raw[end:])
    found: list[str | bytes] = []
    for frame in reader.events_received():
        assert isinstance(frame, Frame)
        if frame.opcode in (1, 2):
            data = bytes(frame.data)
            found.append(data.decode() if frame.opcode == 1 else data)
    return found


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_websocket_traffic_passes_as_it_is(
    tmp_path: Path, authority: Authority, scheme: str
) -> None:
    got: list[str | bytes] = []

    async def echo(connection: websockets.ServerConnection) -> None:
        async for message in connection:
            got.append(message)
            await connection.send(message)

    out = tmp_path / "tap.pcapng"
    own = server_context(authority.cert, authority.key)
    secure = scheme == "wss"
    with PcapngWriter(str(out)) as sink:
        async with websockets.serve(
            echo, "127.0.0.1", 0, ssl=own if secure else None, compression=None
        ) as server:
            port = server.sockets[0].getsockname()[1]
            tap = RecordingProxy(
                f"{scheme}://127.0.0.1:0/chat", f"{scheme}://localhost:{port}/chat", sink,
                protocol="omnistreams", tls=own, upstream_tls=client_context(authority.ca),
            )  # fmt: skip
            async with tap:
                url = tap.url.replace("127.0.0.1", "localhost")
                trusts = client_context(authority.ca) if secure else None
                async with websockets.connect(url, ssl=trusts, compression=None) as connection:
                    for message in MESSAGES:
                        await connection.send(message)
                        assert await connection.recv() == message
                async with asyncio.timeout(60):
                    while tap.stats.open:
                        await asyncio.sleep(0.01)
    assert got == MESSAGES
    (talk,) = talks(out)
    assert talk.raw_bytes[0].startswith(b"GET /chat HTTP/1.1\r\n")
    assert talk.raw_bytes[1].startswith(b"HTTP/1.1 101 ")
    assert messages_of(talk.raw_bytes[0], 0) == messages_of(talk.raw_bytes[1], 1) == MESSAGES
    assert talk.ends == ("fin", "fin")
    assert talk.protocol == "omnistreams"


async def test_a_reset_is_passed_on_as_a_reset(tmp_path: Path) -> None:
    room = Room()
    port = await room.listen()
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink) as tap:
            await room.dial_all(tap.address.port, 1)
            await room.settle()
            sock = room.dialers[1].transport.get_extra_info("socket")
            sock.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SOL_SOCKET, SO_LINGER: on, 0 seconds
            room.dialers[1].transport.abort()
            await asyncio.wait([room.acceptors[1].over], timeout=60)
    await room.close()
    assert isinstance(room.acceptors[1].error, ConnectionResetError)
    (talk,) = talks(out)
    assert talk.ends == ("rst", None)


async def test_a_proxy_that_is_stopped_records_no_end(tmp_path: Path) -> None:
    room = Room()
    port = await room.listen()
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        async with RecordingProxy("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}", sink) as tap:
            await room.dial_all(tap.address.port)
            await asyncio.sleep(0.05)
    await room.close()
    for number, talk in by_number(out).items():
        assert talk.ends == (None, None)
        assert talk.raw_bytes[0].startswith(room.acceptors[number].received)
