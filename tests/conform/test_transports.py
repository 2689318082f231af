"""The tester reaches its peer over every kind of connection."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from tests.conform.peers import PATIENCE

from polymux.core.conformance import Verdict
from polymux.testing import conform


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of a server and a client that trust each other."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


def test_a_peer_behind_tls(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def examine() -> conform.Results:
        url = "tls://127.0.0.1:0"
        async with await conform.serve_testee(url, "mplex", contexts[0]) as server:
            return await conform.run_async(
                server.url, "mplex", ["MPLEX-HDR-2", "MPLEX-CLOSE"], level=2, timeout=PATIENCE,
                tls=contexts[1],
            )  # fmt: skip

    assert conform.failure_text(asyncio.run(examine())) == ""


def test_a_client_that_connects_by_tls(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def examine() -> conform.Results:
        tasks: list[asyncio.Task[None]] = []

        def start(url: str) -> None:
            tasks.append(asyncio.create_task(conform.dial_testee(url, "mplex", contexts[1])))

        results = await conform.run_async(
            "tls://127.0.0.1:0", "mplex", ["MPLEX-HDR-2", "MPLEX-CLOSE-3"], role="acceptor",
            level=2, timeout=PATIENCE, tls=contexts[0], on_listening=start,
        )  # fmt: skip
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return results

    assert conform.failure_text(asyncio.run(examine())) == ""


@pytest.mark.parametrize(
    "protocol", ["mplex", "nerdbank", "omnistreams", "streamux", "minmux", "yamux"]
)
def test_the_end_of_a_tls_connection_is_no_failure(
    protocol: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    async def examine() -> conform.Results:
        names = ["GEN-TRUNC-1", "YAMUX-HDR-5"] if protocol == "yamux" else ["GEN-TRUNC-1"]
        url = "tls://127.0.0.1:0"
        async with await conform.serve_testee(url, protocol, contexts[0]) as server:
            return await conform.run_async(
                server.url, protocol, names, level=2, timeout=PATIENCE, tls=contexts[1]
            )

    results = asyncio.run(examine())
    assert {result.verdict for result in results.cases} == {Verdict.OK}
    assert {result.closing for result in results.cases} <= {"clean", "late"}


def test_a_peer_at_a_unix_socket(tmp_path: Path) -> None:
    async def examine() -> conform.Results:
        url = f"unix://{tmp_path / 'peer'}"
        async with await conform.serve_testee(url, "yamux"):
            return await conform.run_async(
                url, "yamux", ["YAMUX-HDR"], level=2, timeout=PATIENCE, captures=tmp_path
            )

    results = asyncio.run(examine())
    assert conform.failure_text(results) == ""
    assert (tmp_path / "YAMUX-HDR-1-version-1.pcapng").exists()


def test_a_peer_behind_a_websocket(tmp_path: Path) -> None:
    async def examine() -> conform.Results:
        async with await conform.serve_testee("ws://127.0.0.1:0/", "omnistreams") as server:
            return await conform.run_async(
                server.url, "omnistreams", level=2, timeout=PATIENCE, captures=tmp_path
            )

    results = asyncio.run(examine())
    assert conform.failure_text(results) == ""
    assert "OMNI-WS-1/text-message" in [result.case.id for result in results.cases]
    assert results.cooperation == 2


def test_a_client_that_connects_by_websocket() -> None:
    async def examine() -> conform.Results:
        tasks: list[asyncio.Task[None]] = []

        def start(url: str) -> None:
            assert url.startswith("ws://127.0.0.1:")
            tasks.append(asyncio.create_task(conform.dial_testee(url, "omnistreams")))

        results = await conform.run_async(
            "ws://127.0.0.1:0/any/path", "omnistreams", ["GEN", "OMNI-ID", "OMNI-WS"],
            role="acceptor", level=2, timeout=PATIENCE, on_listening=start,
        )  # fmt: skip
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return results

    results = asyncio.run(examine())
    assert conform.failure_text(results) == ""
    assert results.cooperation == 2
    assert "OMNI-WS-1/text-message" in [result.case.id for result in results.cases]


@pytest.mark.parametrize("request_head", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"x" * 20_000])
def test_what_asks_for_no_websocket_is_refused_and_the_next_connection_served(
    request_head: bytes,
) -> None:
    async def examine() -> conform.Results:
        tasks: list[asyncio.Task[None]] = []

        async def ask_and_dial(url: str) -> None:
            port = int(url.split(":")[2].partition("/")[0])
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request_head)
            assert b" 101 " not in await reader.read()
            writer.close()
            await conform.dial_testee(url, "omnistreams")

        results = await conform.run_async(
            "ws://127.0.0.1:0/", "omnistreams", ["OMNI-ID-1"], role="acceptor", level=1,
            timeout=PATIENCE,
            on_listening=lambda url: tasks.append(asyncio.create_task(ask_and_dial(url))),
        )  # fmt: skip
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return results

    assert conform.failure_text(asyncio.run(examine())) == ""
