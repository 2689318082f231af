"""Dialers that send, end or reset before the proxy is connected to the upstream."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from pathlib import Path
from random import Random

import pytest
from tests.record.captured_bytes import Talk, talks
from tests.record.certificate_authority import Authority

from polymux.capture import PcapngWriter
from polymux.record import RecordingProxy
from polymux.record.proxy_connection import ProxyConnection
from polymux.record.tls_contexts import client_context, server_context

ONE_READ = 256 * 1024  # bytes that a loop reads at once, asyncio's own and uvloop
HELD = 0.05  # seconds after which the proxy has received what a dialer did


class LateTap(RecordingProxy):
    """Connects to the acceptor only when the test allows it."""

    def __init__(
        self, listen: str, upstream: str, sink: PcapngWriter, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(listen, upstream, sink, tls=tls)
        self.told = asyncio.Event()
        self.accepted = False

    async def connect_upstream(self, connection: ProxyConnection) -> None:
        self.accepted = True
        await self.told.wait()
        await super().connect_upstream(connection)


class Acceptor:
    """Accepts one connection; `heard` has all data when it ends, or the error."""

    def __init__(self) -> None:
        self.heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(self) -> str:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heard.set_result(await reader.read())
        except ConnectionError as problem:
            self.heard.set_exception(problem)
        writer.close()
        self._server.close()


async def all_gone(tap: RecordingProxy) -> None:
    async with asyncio.timeout(60):
        while tap.stats.open:
            await asyncio.sleep(0.01)


async def dial(tap: RecordingProxy, authority: Authority) -> asyncio.StreamWriter:
    address = tap.address
    if address.scheme == "unix":
        return (await asyncio.open_unix_connection(address.path))[1]
    secure = address.scheme == "tls"
    trusts, name = (client_context(authority.ca), "localhost") if secure else (None, None)
    found = await asyncio.open_connection(
        "127.0.0.1", address.port, ssl=trusts, server_hostname=name
    )
    return found[1]


def only(path: Path) -> Talk:
    (talk,) = talks(path)
    return talk


@pytest.mark.parametrize("carrier", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("said", [b"", b"all of it"])
async def test_a_dialer_that_has_ended_before_the_acceptor_is_reached_is_heard_by_it(
    tmp_path: Path, authority: Authority, carrier: str, said: bytes
) -> None:
    acceptor = Acceptor()
    upstream = await acceptor.listen()
    out = tmp_path / "tap.pcapng"
    url = f"unix://{tmp_path / 'near'}" if carrier == "unix" else f"{carrier}://127.0.0.1:0"
    own = server_context(authority.cert, authority.key)
    with PcapngWriter(str(out)) as sink:
        tap = LateTap(url, upstream, sink, own)
        async with tap:
            writer = await dial(tap, authority)
            writer.write(said)
            if writer.can_write_eof():
                writer.write_eof()
            else:
                writer.close()
            await asyncio.sleep(HELD)
            tap.told.set()
            async with asyncio.timeout(60):
                assert await acceptor.heard == said
            writer.close()
            await all_gone(tap)
    assert only(out).raw_bytes == (said, b"")
    assert only(out).ends == ("fin", "fin")


@pytest.mark.parametrize("carrier", ["tcp", "tls"])
async def test_early_data_is_bounded_in_memory_and_forwarded_completely(
    tmp_path: Path, authority: Authority, carrier: str
) -> None:
    data = Random(3).randbytes(3_000_000)
    acceptor = Acceptor()
    upstream = await acceptor.listen()
    out = tmp_path / "tap.pcapng"
    own = server_context(authority.cert, authority.key)
    with PcapngWriter(str(out)) as sink:
        tap = LateTap(f"{carrier}://127.0.0.1:0", upstream, sink, own)
        async with tap:
            writer = await dial(tap, authority)
            writer.write(data)
            await asyncio.sleep(2 * HELD)
            (pair,) = tap._connections
            assert sum(map(len, pair._early_chunks)) <= ONE_READ
            tap.told.set()
            writer.close()
            async with asyncio.timeout(60):
                assert await acceptor.heard == data
            await all_gone(tap)
    assert only(out).raw_bytes == (data, b"")


def say_and_leave(port: int, trusts: ssl.SSLContext, data: bytes, tells: bool) -> socket.socket:
    """Speak over TLS and end, as few do on asyncio: without waiting for the answer to TLS's own
    end, or without having told of it."""
    plain = socket.create_connection(("127.0.0.1", port))
    secure = trusts.wrap_socket(plain, server_hostname="localhost")
    secure.sendall(data)
    if tells:
        secure.setblocking(False)
        with contextlib.suppress(ssl.SSLWantReadError):  # the answer
            secure.unwrap()
    secure.shutdown(socket.SHUT_WR)
    return secure


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("late", [True, False])
async def test_data_sent_over_tls_is_forwarded_although_its_dialer_is_gone(
    tmp_path: Path, authority: Authority, late: bool, tells: bool
) -> None:
    data = Random(4).randbytes(100_000)
    acceptor = Acceptor()
    upstream = await acceptor.listen()
    out = tmp_path / "tap.pcapng"
    own, trusts = server_context(authority.cert, authority.key), client_context(authority.ca)
    with PcapngWriter(str(out)) as sink:
        tap = LateTap("tls://127.0.0.1:0", upstream, sink, own)
        async with tap:
            if not late:
                tap.told.set()
            port = tap.address.port
            dialer = await asyncio.to_thread(say_and_leave, port, trusts, data, tells)
            await asyncio.sleep(HELD)
            tap.told.set()
            async with asyncio.timeout(60):
                assert await acceptor.heard == data
            await all_gone(tap)
            dialer.close()
    assert only(out).raw_bytes == (data, b"")
    assert only(out).ends == ("fin", "fin")


async def test_a_dialer_that_has_reset_before_the_acceptor_is_reached_keeps_its_name(
    tmp_path: Path,
) -> None:
    acceptor = Acceptor()
    upstream = await acceptor.listen()
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        tap = LateTap("tcp://127.0.0.1:0", upstream, sink)
        async with tap:
            dialer = socket.create_connection(("127.0.0.1", tap.address.port))
            host, port = dialer.getsockname()
            dialer.sendall(b"and out")
            while not tap.accepted:
                await asyncio.sleep(0.01)
            dialer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            dialer.close()
            await asyncio.sleep(HELD)
            tap.told.set()
            async with asyncio.timeout(60):
                with pytest.raises(ConnectionResetError):
                    await acceptor.heard
            await all_gone(tap)
    assert only(out).dialer == f"{host}:{port}"
    assert only(out).raw_bytes == (b"and out", b"")
    assert only(out).ends == ("rst", None)
