"""A shared token: which clients reach the handler, what the others and the records are told."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from pathlib import Path

import pytest
import trustme
from tests.aio.session_helpers import echo, exchange
from tests.record.collector.test_collector import until

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import PcapngWriter, index_file, read_sessions
from polymux.record import AuditLog, Collector, Recorder, RecordingProxy

TOKEN = "correct horse battery staple"
AUTHORITY = trustme.CA()


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    return context


def client_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


@pytest.mark.parametrize(
    "protocol",
    ["mplex", "mplex:preamble=multistream", "nerdbank:version=1", "nerdbank", "yamux"],
)
@pytest.mark.parametrize("scheme", ["tls", "tcp", "unix"])
async def test_clients_with_the_token_are_served(
    scheme: str, protocol: str, tmp_path: Path
) -> None:
    url = f"unix://{tmp_path}/s" if scheme == "unix" else f"{scheme}://127.0.0.1:0"
    tls = server_context() if scheme == "tls" else None
    async with polymux.serve(echo, url, protocol=protocol, tls=tls, token=TOKEN) as server:
        own = client_context() if scheme == "tls" else None
        async with polymux.connect(
            server.url, protocol=protocol, tls=own, token=TOKEN.encode()
        ) as session:
            assert await exchange(session, "", b"hello" * 1000) == b"hello" * 1000


async def test_a_websocket_is_opened_behind_the_token() -> None:
    received: list[bytes] = []

    async def handle(session: polymux.OmnistreamsSession) -> None:
        async for stream in session.incoming:
            received.append(await stream.receive())

    async with polymux.omnistreams.serve(
        handle, "wss://127.0.0.1:0", tls=server_context(), token=TOKEN
    ) as server:
        async with polymux.omnistreams.connect(
            server.url, tls=client_context(), token=TOKEN
        ) as session:
            stream = await session.open()
            await stream.send(b"hello")
            await stream.end()
        await until(lambda: received == [b"hello"])
        with pytest.raises(polymux.Unreachable, match="refused the token"):
            await polymux.omnistreams.connect(server.url, tls=client_context(), token="x" * 20)


async def test_a_wrong_token_is_refused_logged_audited_and_not_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "polymux")
    wrong = "an entirely different one"
    capture, audit = tmp_path / "served.pcapng", tmp_path / "audit.jsonl"
    with PcapngWriter(capture) as writer, AuditLog(audit) as meter:
        async with polymux.serve(
            echo, "tls://127.0.0.1:0", protocol="mplex", tls=server_context(), token=TOKEN,
            recorder=Recorder(writer), meter=meter,
        ) as server:  # fmt: skip
            with pytest.raises(polymux.Unreachable, match="the server refused the token"):
                await polymux.connect(
                    server.url, protocol="mplex", tls=client_context(), token=wrong
                )
            assert not server.sessions
    assert index_file(capture).summary.packets == 0
    (refused,) = [json.loads(line) for line in audit.read_text().splitlines()]
    assert refused["event"] == "refused"
    assert refused["peer"].startswith("127.0.0.1:")
    assert refused["reason"] == "it presented another token"
    assert "refused: it presented another token" in caplog.text
    said = caplog.text + audit.read_text()
    assert TOKEN not in said
    assert wrong not in said


async def test_a_client_without_the_token_is_refused_and_told_what_to_do() -> None:
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex", token=TOKEN) as server:
        session = await polymux.connect(server.url, protocol="mplex")
        stream = await session.open("x")
        with pytest.raises(polymux.SessionClosed, match="asks for a token: present it with token"):
            await stream.receive()
        await session.wait_closed()
        assert not server.sessions


async def test_a_token_for_a_server_that_asks_for_none_disturbs_only_its_client() -> None:
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        with pytest.raises(polymux.Unreachable, match="does the server ask for a token"):
            await polymux.connect(server.url, protocol="mplex", token=TOKEN, timeout=0.2)
        async with polymux.connect(server.url, protocol="mplex") as session:
            assert await exchange(session, "x", b"hello") == b"hello"
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="nerdbank:version=1") as server:
        with pytest.raises(polymux.Unreachable, match="asks for no token"):
            await polymux.connect(server.url, protocol="nerdbank:version=1", token=TOKEN)


async def test_a_client_that_presents_nothing_is_closed_in_time(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    with AuditLog(audit) as meter:
        async with polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", token=TOKEN, meter=meter,
            timeouts=polymux.Timeouts(handshake=0.1),
        ) as server:  # fmt: skip
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            assert (await reader.read()).startswith(b"polymux-token 1 ")  # and the end
            writer.close()
    (refused,) = [json.loads(line) for line in audit.read_text().splitlines()]
    assert refused["reason"] == "it presented no token within 0.1 s"


async def test_clients_without_the_token_do_not_lock_out_one_with_it() -> None:
    limits = polymux.Limits(max_half_open=4, max_sessions=8)
    async with polymux.serve(
        echo, "tcp://127.0.0.1:0", protocol="mplex", token=TOKEN, limits=limits
    ) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(40)]
        async with polymux.connect(server.url, protocol="mplex", token=TOKEN) as session:
            assert await exchange(session, "x", b"hello") == b"hello"
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("url", ["tcp://0.0.0.0:0", "ws://0.0.0.0:0", "tcp://192.0.2.1:9"])
async def test_a_token_is_not_used_where_the_connection_could_be_taken_over(url: str) -> None:
    protocol = "omnistreams" if url.startswith("ws") else "mplex"
    with pytest.raises(polymux.BadUrl, match="needs TLS"):
        await polymux.serve(echo, url, protocol=protocol, token=TOKEN)
    with pytest.raises(polymux.BadUrl, match="needs TLS"):
        await polymux.connect(url, protocol=protocol, token=TOKEN)
    with pytest.raises(polymux.BadUrl, match="a local process"):
        await polymux.connect("exec:cat", protocol=protocol, token=TOKEN)


async def test_a_server_with_a_token_beyond_this_machine_is_not_open_to_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with polymux.serve(
        echo, "tls://0.0.0.0:0", protocol="mplex", tls=server_context(), token=TOKEN
    ):
        pass
    assert "accepts every client" not in caplog.text


async def test_a_recorder_between_the_two_writes_no_token_and_its_capture_is_decoded(
    tmp_path: Path,
) -> None:
    """Its capture has the exchange, which proves the token and does not contain it."""
    between, inside = tmp_path / "between.pcapng", tmp_path / "inside.pcapng"
    with PcapngWriter(between, sync="none") as sink, PcapngWriter(inside) as own:
        async with polymux.serve(
            echo, "tcp://127.0.0.1:0", protocol="mplex", token=TOKEN, recorder=Recorder(own)
        ) as server:
            async with RecordingProxy("tcp://127.0.0.1:0", server.url, sink) as proxy:
                async with polymux.connect(proxy.url, protocol="mplex", token=TOKEN) as session:
                    assert await exchange(session, "x", b"hello") == b"hello"
                await until(lambda: proxy.stats.open == 0)
    assert b"polymux-token 1 " in between.read_bytes()
    assert TOKEN.encode() not in between.read_bytes() + inside.read_bytes()
    assert b"polymux-token" not in inside.read_bytes()
    for path, protocol, before in (
        (between, "auto", "; a token exchange before it"),
        (between, "mplex", "; a token exchange before it"),
        (inside, "auto", ""),
    ):
        (session_read,) = read_sessions([path])
        summary = analyze_session(session_read, AnalysisOptions(protocol), lambda *_: None)
        assert summary.protocol == "mplex"
        assert (summary.evidence or "").endswith(before)
        assert summary.violations == 0
        assert summary.ending == "clean"


async def test_senders_of_a_collector_present_the_token(tmp_path: Path) -> None:
    async with Collector(tmp_path / "out", sync="none") as collector:
        url = await collector.listen("tcp://127.0.0.1:0", "mplex", token=TOKEN)
        with pytest.raises(polymux.Unreachable, match="refused the token"):
            await polymux.connect(url, protocol="mplex", token="x" * 16)
        async with polymux.connect(url, protocol="mplex", token=TOKEN) as session:
            stream = await session.open("log")
            await stream.send(b"kept")
            await stream.end()
            await stream.receive_all()
        assert collector.stats.sessions == 1
