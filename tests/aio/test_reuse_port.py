"""Several servers at one TCP address, and at inherited sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

import pytest
from tests.aio.session_helpers import echo, exchange

import polymux
import polymux.sync
from polymux.aio.server import serve_within
from polymux.core.limits import Limits
from polymux.live.listener import Inherited
from polymux.live.server import server_bounds

ATTEMPTS = 64
HERE = "tcp://127.0.0.1:0"

divides = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere SO_REUSEPORT does not divide connections"
)


@divides
async def test_connections_are_divided_among_servers_that_reuse_the_port() -> None:
    async with (
        polymux.serve(echo, HERE, protocol="mplex", reuse_port=True) as one,
        polymux.serve(echo, one.url, protocol="mplex", reuse_port=True) as other,
    ):
        assert one.url == other.url
        served: set[polymux.Server] = set()
        for _ in range(ATTEMPTS):
            async with polymux.connect(one.url, protocol="mplex") as session:
                assert await exchange(session, "x", b"hello") == b"hello"
                served |= {server for server in (one, other) if server.sessions}
            while one.sessions or other.sessions:
                await asyncio.sleep(0)
            if len(served) == 2:
                break
        assert len(served) == 2


@divides
def test_threads_have_it_too() -> None:
    with (
        polymux.sync.serve(lambda session: None, HERE, protocol="mplex", reuse_port=True) as one,
        polymux.sync.serve(lambda session: None, one.url, protocol="mplex", reuse_port=True) as two,
    ):
        assert one.url == two.url


async def test_an_address_is_taken_unless_all_reuse_it() -> None:
    async with polymux.serve(echo, HERE, protocol="mplex") as server:
        with pytest.raises(polymux.Unreachable, match="cannot listen there"):
            await polymux.serve(echo, server.url, protocol="mplex", reuse_port=True)


@pytest.mark.parametrize("url", ["unix:///nowhere/socket", "stdio:"])
def test_only_tcp_addresses_are_bound_several_times(url: str) -> None:
    with pytest.raises(polymux.BadUrl, match="only TCP addresses"):
        polymux.serve(echo, url, protocol="mplex", reuse_port=True)


def test_a_system_without_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(polymux.Unsupported, match="no SO_REUSEPORT"):
        polymux.serve(echo, HERE, protocol="mplex", reuse_port=True)


async def test_a_server_accepts_from_inherited_sockets_and_leaves_their_path(
    tmp_path: Path,
) -> None:
    path = tmp_path / "socket"
    url = f"unix://{path}"
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.listen()
    bound.setblocking(False)
    limits = Limits()
    server = await serve_within(
        server_bounds(limits, "mplex", None), echo, url, "mplex", limits=limits, timeouts=None,
        tls=None, inherited=Inherited([bound.dup()], shared=True),
    )  # fmt: skip
    async with server, polymux.connect(url, protocol="mplex") as session:
        assert await exchange(session, "x", b"hello") == b"hello"
    assert path.exists()
    bound.close()


async def test_servers_at_one_socket_take_turns_in_a_burst(tmp_path: Path) -> None:
    url = f"unix://{tmp_path / 'socket'}"
    count = 20
    limits = Limits()
    with socket.socket(socket.AF_UNIX) as bound, contextlib.ExitStack() as clients:
        bound.bind(str(tmp_path / "socket"))
        bound.listen(count)
        bound.setblocking(False)
        for _ in range(count):
            clients.enter_context(socket.socket(socket.AF_UNIX)).connect(bound.getsockname())
        servers = [
            await serve_within(
                server_bounds(limits, "mplex", None), echo, url, "mplex", limits=limits,
                timeouts=None, tls=None, inherited=Inherited([bound.dup()], shared=True),
            )
            for _ in range(2)
        ]  # fmt: skip
        async with servers[0], servers[1]:
            async with asyncio.timeout(60):
                while sum(len(server.sessions) for server in servers) < count:
                    await asyncio.sleep(0)
            assert min(len(server.sessions) for server in servers) >= count // 4
