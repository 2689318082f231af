"""TLS against attackers and misconfigured peers: verified by default, rejected with a reason."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import socket
import ssl
import warnings
from collections.abc import AsyncIterator

import pytest
import trustme
from tests.aio.session_helpers import echo, exchange

import polymux
from polymux import OmnistreamsSession, Session

AUTHORITY = trustme.CA()
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def server_context(name: str = "127.0.0.1", expired: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    when = {"not_after": LONG_AGO, "not_before": LONG_AGO} if expired else {}
    AUTHORITY.issue_cert(name, **when).configure_cert(context)  # type: ignore[arg-type]  # dates
    return context


def trusting(authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    """TLS 1.1 and nothing newer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    return context


async def wait(session: Session) -> None:
    await session.wait_closed()


@contextlib.asynccontextmanager
async def served(
    context: ssl.SSLContext, scheme: str = "tls", timeouts: polymux.Timeouts | None = None
) -> AsyncIterator[polymux.Server]:
    protocol = "omnistreams" if scheme == "wss" else "mplex"
    handler = wait if scheme == "wss" else echo
    async with await polymux.serve(
        handler, f"{scheme}://127.0.0.1:0", protocol=protocol, tls=context, timeouts=timeouts
    ) as server:
        yield server


CASES = [
    ("nobody was told to trust it", server_context(), None, "not trusted"),
    ("unknown authority", server_context(), trusting(trustme.CA()), "not trusted"),
    ("wrong host", server_context("other.example"), trusting(), "IP address mismatch"),
    ("expired", server_context(expired=True), trusting(), "certificate has expired"),
    ("TLS 1.1 only", old(server_context()), trusting(), "TLS"),
]


@pytest.mark.parametrize("scheme", ["tls", "wss"])
@pytest.mark.parametrize(("case", "server_tls", "client_tls", "word"), CASES)
def test_a_server_that_cannot_be_trusted_is_refused_with_the_reason(
    scheme: str, case: str, server_tls: ssl.SSLContext, client_tls: ssl.SSLContext | None, word: str
) -> None:
    async def run() -> str:
        async with served(server_tls, scheme) as server:
            protocol = "omnistreams" if scheme == "wss" else "mplex"
            with pytest.raises(polymux.Unreachable) as problem:
                await polymux.connect(server.url, protocol=protocol, tls=client_tls)
            assert not server.sessions
            return str(problem.value)

    said = asyncio.run(run())
    assert word in said
    assert "\n" not in said
    assert "_ssl.c" not in said


def test_a_trusted_server_is_reached_by_both_schemes() -> None:
    async def run() -> None:
        async with served(server_context()) as server:
            async with polymux.connect(server.url, protocol="mplex", tls=trusting()) as session:
                assert await exchange(session, "x", bytes(100_000)) == bytes(100_000)
        async with served(server_context(), "wss") as server:
            async with polymux.connect(
                server.url, protocol="omnistreams", tls=trusting()
            ) as session:
                assert isinstance(session, OmnistreamsSession)
                await session.control(b"hello")

    asyncio.run(run())


def test_clients_of_tls_1_1_and_clients_of_nothing_at_all_leave_the_others_in_peace(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Old clients, garbage, half a handshake: each connection ends, and a good one goes on."""

    async def attempt(port: int, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        async with asyncio.timeout(20):
            with contextlib.suppress(OSError):
                while await reader.read(4096):
                    pass
        writer.close()

    def old_client(port: int) -> str:
        context = old(trusting())
        with socket.create_connection(("127.0.0.1", port)) as sock:
            with pytest.raises((ssl.SSLError, OSError)) as problem:
                context.wrap_socket(sock, server_hostname="127.0.0.1")
        return str(problem.value)

    async def run() -> None:
        timeouts = polymux.Timeouts(handshake=1.0)
        async with served(server_context(), timeouts=timeouts) as server:
            async with polymux.connect(server.url, protocol="mplex", tls=trusting()) as good:
                hello = bytes.fromhex("1603010200010001fc0303") + bytes(40)  # and then silence
                await asyncio.gather(
                    *[
                        attempt(server.port, data)
                        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(500))
                    ],
                    *[attempt(server.port, hello) for _ in range(50)],
                    *[asyncio.to_thread(old_client, server.port) for _ in range(3)],
                )
                assert len(server.sessions) == 1
                assert await exchange(good, "x", bytes(1_000_000)) == bytes(1_000_000)

    asyncio.run(run())
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
