"""Sessions over real transports, with polymux at both ends."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from pathlib import Path

import pytest
import trustme
from tests.aio.session_helpers import PROTOCOLS, echo, exchange, joined, settled
from tests.aio.virtual_clock import virtual

import polymux
from polymux import Session

every = pytest.mark.parametrize("protocol", PROTOCOLS)


async def echoes(session: Session) -> None:
    """Check that ten concurrent streams of a mebibyte each are echoed unchanged."""
    data = bytes(range(256)) * 4096
    names = ["", "ascii", "grüße ✓", *map(str, range(7))]
    async with asyncio.TaskGroup() as tasks:
        jobs = [tasks.create_task(exchange(session, name, data)) for name in names]
    for job in jobs:
        assert hashlib.sha256(job.result()).digest() == hashlib.sha256(data).digest()


@every
async def test_ten_streams_echo_a_mebibyte_over_tcp(protocol: str) -> None:
    async with (
        await polymux.serve(echo, "tcp://127.0.0.1:0", protocol=protocol) as server,
        polymux.connect(server.url, protocol=protocol) as session,
    ):
        await echoes(session)
        assert session.peer == f"127.0.0.1:{server.port}"


@every
async def test_ten_streams_echo_a_mebibyte_over_a_unix_socket(
    protocol: str, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/s"
    async with (
        await polymux.serve(echo, url, protocol=protocol),
        polymux.connect(url, protocol=protocol) as session,
    ):
        await echoes(session)
    assert not (tmp_path / "s").exists()


@every
async def test_ten_streams_echo_a_mebibyte_over_tls(protocol: str) -> None:
    authority = trustme.CA()
    server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(server_tls)
    client_tls = ssl.create_default_context()
    authority.configure_trust(client_tls)
    async with (
        await polymux.serve(echo, "tls://127.0.0.1:0", protocol=protocol, tls=server_tls) as server,
        polymux.connect(
            server.url, protocol=protocol, tls=client_tls, server_hostname="localhost"
        ) as session,
    ):
        await echoes(session)


@every
@virtual
async def test_ten_streams_echo_a_mebibyte_in_memory(protocol: str) -> None:
    async with joined(protocol) as (near, far):
        serving = asyncio.create_task(echo(far))
        await echoes(near)
        await near.close()
        await serving


@virtual
async def test_each_session_has_its_own_limits_and_timeouts() -> None:
    limits = polymux.Limits(receive_window=5000)
    near, far = await polymux.pipe("nerdbank", limits=limits, timeouts=polymux.Timeouts(close=1))
    assert near.endpoint.limits is not far.endpoint.limits
    assert near.endpoint.limits.receive_window == far.endpoint.limits.receive_window == 5000
    assert near.timeouts.close == 1
    await near.close()
    await far.wait_closed()


async def names_of(session: Session) -> list[str]:
    return [stream.name async for stream in session.incoming]


@virtual
async def test_incoming_ends_quietly_with_the_session_and_raises_if_it_failed() -> None:
    async with joined("mplex") as (near, far):
        listening = asyncio.create_task(names_of(far))
        await near.open("one")
        await near.close()
        assert await listening == ["one"]
    async with joined("mplex") as (near, far):
        listening = asyncio.create_task(names_of(far))
        await settled()
        far.data_received(b"\x07\x00")
        with pytest.raises(polymux.PeerViolation, match=r"mplex\.bad-flag"):
            await listening


@virtual
async def test_late_content_of_an_aborted_stream_is_discarded() -> None:
    async with joined("mplex") as (near, _):
        near.data_received(bytes.fromhex("0000"))
        stream = await near.accept()
        stream.abort()
        for _ in range(100):
            near.data_received(b"\x02\xff\x7f" + bytes(16383))
        await settled()
        assert near.endpoint.receive_queue.unread_bytes == 0
        assert near.endpoint.receive_queue.discarded_bytes == 100 * 16383
        assert near.streams == {}
        assert near.failure is None
