"""Tunnels: what is forwarded, what is refused, and what happens when a side goes away."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trustme
from tests.ports import free_port

import polymux
from polymux.record import AuditLog
from polymux.relay import CannotRelay
from polymux.relay.stalled import stalled_streams
from polymux.relay.tunnel.client import TunnelClient
from polymux.relay.tunnel.forwards import parse_dynamic, parse_local, parse_remote
from polymux.relay.tunnel.server import TunnelServer
from polymux.relay.tunnel.targets import TargetRefused

LOCAL = "tcp://127.0.0.1:0"
TOKEN = "correct horse battery staple"
AUTHORITY = trustme.CA()


async def until(truth: Callable[[], bool]) -> None:
    while not truth():
        await asyncio.sleep(0.002)


@contextlib.asynccontextmanager
async def target_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]] | None = None,
) -> AsyncIterator[int]:
    """A TCP server; yields its port. By default it answers after the end of what it reads."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            data = await reader.read(-1)
            writer.write(data[::-1])
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(handle or answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def running(client: TunnelClient) -> AsyncIterator[TunnelClient]:
    """A client that is connected."""
    async with asyncio.timeout(40), client:
        task = asyncio.create_task(client.run())
        connected = asyncio.create_task(client.connected.wait())
        try:
            await asyncio.wait([task, connected], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
            yield client
        finally:
            task.cancel()
            connected.cancel()
            await asyncio.gather(task, connected, return_exceptions=True)


async def exchange(port: int, data: bytes) -> bytes:
    """Send `data` to a port, half-close, and return what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection with a TCP reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("protocol", ["yamux", "mplex", "nerdbank", "nerdbank:version=1"])
async def test_local_remote_and_socks_ports_carry_both_directions_and_half_closes(
    protocol: str,
) -> None:
    data = random.Random(1).randbytes(400_000)
    digest = hashlib.sha256(data[::-1]).digest()
    async with (
        target_server() as target,
        TunnelServer(
            LOCAL, protocol=protocol, allow=[f"localhost:{target}"], allow_remote=["*"]
        ) as server,
        running(
            TunnelClient(
                server.url,
                protocol=protocol,
                local=[parse_local(f"0:localhost:{target}"), parse_dynamic("0")],
                remote=[parse_remote(f"0:127.0.0.1:{target}")],
            )
        ) as client,
    ):
        for port in (client.bound[0].port, client.remote_bound[0].port):
            assert hashlib.sha256(await exchange(port, data)).digest() == digest
        request = b"\x05\x01\x00\x05\x01\x00\x03\x09localhost" + target.to_bytes(2, "big")
        answer = await exchange(client.bound[1].port, request + data)
        assert answer[:12] == b"\x05\x00\x05\x00\x00\x01" + bytes(6)
        assert hashlib.sha256(answer[12:]).digest() == digest
        await until(lambda: server.stats.open == client.stats.open == 0)
        assert (server.stats.streams, server.stats.aborted) == (3, 0)


async def test_a_reset_of_either_side_reaches_the_other() -> None:
    resets: asyncio.Queue[BaseException | bytes] = asyncio.Queue()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(1)
        if first == b"a":
            reset(writer)
            return
        writer.write(b"x")
        try:
            resets.put_nowait(await reader.read(1))
        except OSError as problem:
            resets.put_nowait(problem)
        writer.close()

    async with (
        target_server(handle) as target,
        TunnelServer(LOCAL, protocol="yamux", allow=[f"127.0.0.1:{target}"]) as server,
        running(
            TunnelClient(server.url, protocol="yamux", local=[parse_local(f"0:127.0.0.1:{target}")])
        ) as client,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.bound[0].port)
        writer.write(b"a")
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", client.bound[0].port)
        writer.write(b"b")
        assert await reader.read(1) == b"x"
        reset(writer)
        assert isinstance(await resets.get(), ConnectionResetError)


async def test_only_what_is_allowed_is_connected_to_and_refusals_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit_path = tmp_path / "audit.jsonl"
    async with target_server() as target:
        with AuditLog(audit_path) as audit:
            async with (
                TunnelServer(
                    LOCAL, protocol="yamux", allow=["10.0.0.0/8:*"], audit=audit
                ) as server,
                running(
                    TunnelClient(
                        server.url,
                        protocol="yamux",
                        local=[parse_local(f"0:localhost:{target}"), parse_dynamic("0")],
                    )
                ) as client,
            ):
                with pytest.raises(ConnectionResetError):
                    await exchange(client.bound[0].port, b"hello")
                request = b"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01"
                answer = await exchange(client.bound[1].port, request + target.to_bytes(2, "big"))
                assert answer[2:4] == b"\x05\x02"  # not allowed
                assert server.refused == 2
    refused = [
        json.loads(line)["reason"]
        for line in audit_path.read_text().splitlines()
        if json.loads(line)["event"] == "refused"
    ]
    assert refused == [f"localhost:{target} is not allowed", f"127.0.0.1:{target} is not allowed"]
    assert f"refused: localhost:{target} is not allowed" in caplog.text


async def test_listening_for_a_client_is_refused_unless_it_is_allowed() -> None:
    async with TunnelServer(LOCAL, protocol="yamux", allow_remote=["8080"]) as server:
        client = TunnelClient(
            server.url, protocol="yamux", remote=[parse_remote("0.0.0.0:8080:127.0.0.1:80")]
        )
        with pytest.raises(TargetRefused, match=r"-R 0\.0\.0\.0:8080: listening on .* not allowed"):
            async with running(client):
                pass
        assert server.refused == 1


@pytest.mark.parametrize("url", ["tls://0.0.0.0:9443", "tcp://192.0.2.1:9443"])
def test_a_tunnel_that_others_can_reach_needs_a_token(url: str) -> None:
    for make in (TunnelServer, TunnelClient):
        with pytest.raises(polymux.BadUrl, match="needs a token on both sides"):
            make(url, protocol="yamux")


def test_a_tunnel_needs_two_way_streams() -> None:
    with pytest.raises(CannotRelay, match="needs two-way streams"):
        TunnelServer(LOCAL, protocol="omnistreams")


async def test_a_wrong_token_and_an_unknown_certificate_are_refused_and_audited(
    tmp_path: Path,
) -> None:
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(own)
    AUTHORITY.configure_trust(own)
    own.verify_mode = ssl.CERT_REQUIRED
    audit_path = tmp_path / "audit.jsonl"

    def client_context(authority: trustme.CA) -> ssl.SSLContext:
        context = ssl.create_default_context()
        AUTHORITY.configure_trust(context)
        authority.issue_cert("client.example").configure_cert(context)
        return context

    async def attempt(url: str, token: str, authority: trustme.CA) -> None:
        client = TunnelClient(
            url,
            protocol="yamux",
            local=[parse_dynamic("0")],
            token=token,
            tls=client_context(authority),
        )
        async with running(client):
            pass

    with AuditLog(audit_path) as audit:
        async with TunnelServer(
            "tls://127.0.0.1:0", protocol="yamux", tls=own, token=TOKEN, audit=audit
        ) as server:
            await attempt(server.url, TOKEN, AUTHORITY)
            with pytest.raises(polymux.PolymuxError, match="refused the token"):
                await attempt(server.url, "an entirely different one", AUTHORITY)
            with pytest.raises(polymux.PolymuxError, match=r"certificate|TLS|connection"):
                await attempt(server.url, TOKEN, trustme.CA())
            await until(lambda: audit_path.read_text().count('"refused"') >= 2)
    reasons = [
        json.loads(line)["reason"]
        for line in audit_path.read_text().splitlines()
        if json.loads(line)["event"] == "refused"
    ]
    assert reasons[0] == "it presented another token"
    assert "certificate is not trusted" in reasons[1]


async def test_a_client_connects_again_and_connections_wait_for_it() -> None:
    port = free_port()
    url = f"tcp://127.0.0.1:{port}"
    async with target_server() as target:
        options = {"protocol": "yamux", "allow": [f"127.0.0.1:{target}"]}
        first = TunnelServer(url, **options)  # type: ignore[arg-type]
        await first.start()
        client = TunnelClient(url, protocol="yamux", local=[parse_local(f"0:127.0.0.1:{target}")])
        async with running(client):
            assert await exchange(client.bound[0].port, b"abc") == b"cba"
            await first.close()
            await until(lambda: client.session is None)
            waiting = asyncio.create_task(exchange(client.bound[0].port, b"def"))
            async with TunnelServer(url, **options):  # type: ignore[arg-type]
                assert await waiting == b"fed"


async def test_a_client_connects_again_though_its_remote_port_is_not_free_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    remote_port = free_port()
    asked = asyncio.Event()

    async def hang_up(session: polymux.Session) -> None:
        await session.accept()
        asked.set()
        session.abort("not now")

    async with target_server() as target:
        remote = parse_remote(f"{remote_port}:127.0.0.1:{target}")
        first = TunnelServer(url, protocol="yamux", allow_remote=["*"])
        await first.start()
        async with running(TunnelClient(url, protocol="yamux", remote=[remote])) as client:
            await first.close()
            async with await polymux.serve(hang_up, url, protocol="yamux"):
                await asked.wait()
            taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", remote_port)
            second = TunnelServer(url, protocol="yamux", allow_remote=["*"])
            refused = asyncio.Event()
            second.refuse = lambda peer, problem: refused.set()  # type: ignore[method-assign]
            async with second:
                await refused.wait()
                taken.close()
                await taken.wait_closed()
                await client.connected.wait()
                assert await exchange(remote_port, b"abc") == b"cba"
    assert "trying again" in caplog.text


async def test_a_client_ends_when_its_remote_port_is_no_longer_allowed() -> None:
    url = f"tcp://127.0.0.1:{free_port()}"
    first = TunnelServer(url, protocol="yamux", allow_remote=["*"])
    await first.start()
    async with TunnelClient(
        url, protocol="yamux", remote=[parse_remote("0:127.0.0.1:9")]
    ) as client:
        task = asyncio.create_task(client.run())
        await client.connected.wait()
        await first.close()
        async with TunnelServer(url, protocol="yamux"):
            with pytest.raises(TargetRefused, match="is not allowed"):
                await task


async def test_a_client_can_listen_on_a_bounded_number_of_ports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymux.relay.tunnel.server.MAX_LISTENERS", 2)
    request = b"polymux-tunnel/1 listen 127.0.0.1:0\n"
    async with (
        TunnelServer(LOCAL, protocol="yamux", allow_remote=["*"]) as server,
        polymux.connect(server.url, protocol="yamux") as session,
    ):

        async def listen() -> tuple[polymux.Stream, bytes]:
            stream = await session.open()
            await stream.send(request)
            return stream, await stream.readline()

        first, answer = await listen()
        assert answer.startswith(b"ok ")
        assert (await listen())[1].startswith(b"ok ")
        refusal = b"refused 2 listening on 127.0.0.1:0 is not allowed: one client can listen on 2 "
        assert (await listen())[1].startswith(refusal)
        await first.end()
        while not (await listen())[1].startswith(b"ok "):  # as soon as the first is closed
            pass


async def test_a_client_that_sends_no_requests_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        TunnelServer(LOCAL, protocol="yamux") as server,
        polymux.connect(server.url, protocol="yamux") as session,
    ):
        for _ in range(3):
            stream = await session.open()
            await stream.send(b"GET / HTTP/1.1\n")
            assert (await stream.readline()).startswith(b"refused 1 not a request")
    assert caplog.text.count("not a request of a polymux tunnel") == 1


async def test_a_client_gives_up_after_its_deadline() -> None:
    client = TunnelClient(
        f"tcp://127.0.0.1:{free_port()}",
        protocol="yamux",
        local=[parse_dynamic("0")],
        give_up_after=0.3,
    )
    async with client:
        with pytest.raises(polymux.Unreachable, match="nothing listens there; tried for 0 s"):
            await client.run()


async def test_a_connection_that_is_not_read_is_named_with_its_cause_and_delays_no_other() -> None:
    go_on = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if await reader.read(1) == b"s":  # then it reads nothing
                await go_on.wait()
            else:
                writer.write(b"answer")
                await writer.drain()
            writer.close()

    async with (
        target_server(handle) as target,
        TunnelServer(LOCAL, protocol="yamux", allow=[f"127.0.0.1:{target}"]) as server,
        running(
            TunnelClient(server.url, protocol="yamux", local=[parse_local(f"0:127.0.0.1:{target}")])
        ) as client,
    ):
        port = client.bound[0].port
        _, stuck = await asyncio.open_connection("127.0.0.1", port)
        stuck.write(b"s" + bytes(64 << 20))
        await until(
            lambda: (
                bool(dict(stalled_streams(client.relays, 0)))
                and bool(dict(stalled_streams(server.relays, 0)))
            )
        )
        for _ in range(20):
            assert await exchange(port, b"x") == b"answer"
        (near,) = dict(stalled_streams(client.relays, 0)).values()
        (far,) = dict(stalled_streams(server.relays, 0)).values()
        assert near.cause == "no-credit"
        assert near.name == f"connect 127.0.0.1:{target}"
        assert "gives no more credit" in near.explanation
        assert far.cause == "slow-reader"
        assert far.explanation == f"127.0.0.1:{target} does not read"
        stuck.transport.abort()
        go_on.set()
        await until(lambda: server.stats.open == 0)


async def test_binding_beyond_loopback_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "polymux")
    client = TunnelClient(LOCAL[:-1] + "9", protocol="yamux", local=[parse_dynamic("*:0")])
    async with client:
        assert "is open to everyone who can reach it" in caplog.text
