"""Invalid input ends its session with one clear message, and affects no other session."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
import ssl
import sys
import warnings
from collections.abc import AsyncIterator

import pytest
import trustme
from tests.aio.session_helpers import PROTOCOLS, echo, exchange

import polymux
from polymux import Session
from polymux.live import factory as making


@contextlib.asynccontextmanager
async def served(
    protocol: str, problems: list[str], **options: object
) -> AsyncIterator[polymux.Server]:
    """A server that records how its sessions failed."""

    async def handle(session: Session) -> None:
        try:
            await echo(session)
        finally:
            if session.failure is not None:
                problems.append(str(session.failure))

    server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol, **options)  # type: ignore[call-overload]
    async with server:
        yield server


GARBAGE = [
    ("mplex", b"\xff" * 40, "mplex.varint-too-long"),
    ("mplex", b"GET / HTTP/1.1\r\nHost: x\r\n" * 9, "mplex.bad-flag"),
    ("mplex", bytes.fromhex("0800 0a 808080808020"), "mplex.frame-too-long"),
    ("mplex", bytes.fromhex("0800 0800"), "mplex.id-reused"),
    ("nerdbank:version=1", b"GET / HTTP/1.1\r\n\r\n", "nerdbank.bad-magic"),
    ("nerdbank:version=2", bytes.fromhex("2fdf1d50") + bytes(16), "nerdbank.bad-handshake"),
    ("nerdbank:version=2", bytes.fromhex("92920300c410") + bytes(16), "nerdbank.version-mismatch"),
    ("nerdbank:version=3", b"\xc1" * 9, "nerdbank.bad-frame"),
    ("nerdbank:version=3", bytes.fromhex("94020101c6ffffffff"), "nerdbank.frame-too-long"),
    ("nerdbank:version=3", b"\xdc\xff\xff" * 30_000, "nerdbank.bad-frame"),
    ("nerdbank:version=3", b"\x91" * 100_000, "nerdbank.bad-frame"),
]


@pytest.mark.parametrize(("protocol", "data", "rule"), GARBAGE)
async def test_garbage_ends_that_session_with_the_rule_it_broke(
    protocol: str, data: bytes, rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    problems: list[str] = []
    async with (
        served(protocol, problems) as server,
        polymux.connect(server.url, protocol=protocol) as good,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(data)
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                while await reader.read(65536):
                    pass
        writer.close()
        assert await exchange(good, "still", bytes(1_000_000)) == bytes(1_000_000)
    failures = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert failures == []
    if problems:  # without a handshake no handler was called
        assert rule in problems[0]
        assert "\n" not in problems[0]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("nerdbank:version=1", "nerdbank:version=2"), ("nerdbank:version=2", "nerdbank:version=1")],
)
async def test_mismatched_versions_are_reported(ours: str, theirs: str) -> None:
    async with served(theirs, []) as server:
        with pytest.raises(polymux.SessionClosed) as problem:
            await polymux.connect(server.url, protocol=ours, timeout=30)
        assert "\n" not in str(problem.value)


async def test_this_sides_random_bytes_echoed_back_are_an_error() -> None:
    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1000):
                writer.write(data)
        writer.close()

    server = await asyncio.start_server(mirror, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    for version in (1, 2):
        with pytest.raises(polymux.PeerViolation, match=r"nerdbank\.equal-randoms"):
            await polymux.connect(f"tcp://127.0.0.1:{port}", protocol=f"nerdbank:version={version}")
    server.close()
    await server.wait_closed()


async def test_a_server_that_sends_nothing_is_unreachable_after_the_timeout() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(polymux.Unreachable, match=r"no handshake within 0\.2 s.*timeout="):
        await polymux.connect(f"tcp://127.0.0.1:{port}", protocol="nerdbank:version=1", timeout=0.2)
    server.close()
    await server.wait_closed()


ADDRESSES = [
    ("tcp://127.0.0.1:1", "nothing listens there"),
    ("unix:///nowhere/at/all", "No such file or directory"),
    ("exec:/no/such/program", "No such file or directory"),
    ("tcp://no-such-host.invalid:9", "no-such-host.invalid:9: "),
]


@pytest.mark.parametrize(("url", "text"), ADDRESSES)
async def test_an_unreachable_url_is_one_clear_message(url: str, text: str) -> None:
    with pytest.raises(polymux.Unreachable) as problem:
        await polymux.connect(url, protocol="mplex", timeout=30)
    assert text in str(problem.value)
    assert "\n" not in str(problem.value)


URLS = [
    ("127.0.0.1:9000", "begins with one of"),
    ("http://x:1", "begins with one of"),
    ("tcp://", "no host"),
    ("tcp://host", "no port"),
    ("tcp://host:99999", "out of range"),
    ("tcp://host:x", "could not be cast"),
    ("tcp://host:1/path", "has no path"),
    ("unix://", "path of the socket"),
    ("exec:", "command to start"),
    ("exec:a 'b", "no closing quotation"),
    ("tcp://[::1:9", "Invalid IPv6"),
]


@pytest.mark.parametrize(("url", "text"), URLS)
def test_a_bad_url_is_refused_before_anything_happens(url: str, text: str) -> None:
    with pytest.raises(polymux.PolymuxError) as problem:
        polymux.connect(url, protocol="mplex")
    assert text.lower() in str(problem.value).lower()
    assert "\n" not in str(problem.value)


PROTOCOL_STRINGS = [
    ("", "no protocol ''"),
    ("ssh", "choose one of"),
    ("mplex:ids=odd", "parity or counting"),
    ("mplex:color=red", "is no option of mplex"),
    ("nerdbank:version=4", "version is 1, 2 or 3"),
    ("nerdbank:version=2,seeded=5", "version 3 only"),
    ("nerdbank:window=0", "window"),
]


@pytest.mark.parametrize(("text", "said"), PROTOCOL_STRINGS)
def test_a_bad_protocol_string_is_refused_before_anything_happens(text: str, said: str) -> None:
    with pytest.raises(polymux.PolymuxError) as problem:
        polymux.connect("tcp://127.0.0.1:1", protocol=text)
    assert said in str(problem.value)


def test_the_error_for_a_protocol_without_live_sessions_names_those_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(making.SESSION_CLASSES, "mplex")
    with pytest.raises(polymux.Unsupported, match="no live sessions of mplex: choose one of nerd"):
        polymux.connect("tcp://127.0.0.1:1", protocol="mplex")


async def test_a_port_in_use_is_one_clear_message() -> None:
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        with pytest.raises(polymux.Unreachable, match="cannot listen there"):
            await polymux.serve(echo, server.url, protocol="mplex")
    with pytest.raises(polymux.PolymuxError, match="cannot be listened on"):
        await polymux.serve(echo, "exec:cat", protocol="mplex")


CHILD = """
import asyncio, sys, polymux
async def main():
    session = await polymux.connect(sys.argv[1], protocol=sys.argv[2])
    stream = await (session.offer("x") if "nerdbank" in sys.argv[2] else session.open("x"))
    await asyncio.sleep(1000)
asyncio.run(main())
"""


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_peer_that_is_killed_ends_its_session_only(protocol: str) -> None:
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handle(session: Session) -> None:
        stream = await session.accept()
        if stream.name != "x":
            await stream.send(await stream.receive())
            await session.wait_closed()
            return
        os.kill(child.pid, signal.SIGKILL)
        try:
            await stream.receive()
        except polymux.PolymuxError as problem:
            ended.set_result(str(problem))

    async with (
        await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=protocol) as server,
        polymux.connect(server.url, protocol=protocol) as good,
    ):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CHILD, server.url, protocol
        )
        text = await asyncio.wait_for(ended, 50)
        assert text.startswith(("the peer closed the connection", "the connection was lost"))
        assert "\n" not in text
        stream = await good.open("good")
        await stream.send(b"alive")
        assert await stream.receive() == b"alive"
        await child.wait()


# TLS


def server_context(
    authority: trustme.CA, *names: str, **options: datetime.datetime
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names, **options).configure_cert(context)  # type: ignore[arg-type]
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


AUTHORITY = trustme.CA()
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def refused(case: str) -> tuple[ssl.SSLContext, ssl.SSLContext, str]:
    """Return the server's context, the client's, and the client's error message."""
    server, client = server_context(AUTHORITY, "127.0.0.1"), client_context(AUTHORITY)
    if case == "unknown authority":
        return server, client_context(trustme.CA()), "its authority is unknown"
    if case == "wrong host":
        return server_context(AUTHORITY, "other.example"), client, "is for another name"
    if case == "expired":
        server = server_context(AUTHORITY, "127.0.0.1", not_after=LONG_AGO, not_before=LONG_AGO)
        return server, client, "certificate has expired"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        server.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        server.maximum_version = ssl.TLSVersion.TLSv1_1
    server.set_ciphers("ALL:@SECLEVEL=0")
    return server, client, "the peer ended the connection during the TLS handshake"


@pytest.mark.parametrize("case", ["unknown authority", "wrong host", "expired", "TLS 1.1"])
async def test_tls_that_cannot_be_trusted_is_refused_with_the_reason(case: str) -> None:
    server_tls, client_tls, text = refused(case)
    async with await polymux.serve(
        echo, "tls://127.0.0.1:0", protocol="mplex", tls=server_tls
    ) as server:
        with pytest.raises(polymux.Unreachable) as problem:
            await polymux.connect(server.url, protocol="mplex", tls=client_tls)
        assert text in str(problem.value)
        assert "_ssl.c" not in str(problem.value)
        assert not server.sessions


async def test_client_certificates_are_asked_for_and_checked_both_ways() -> None:
    clients = trustme.CA()
    server_tls = server_context(AUTHORITY, "127.0.0.1")
    clients.configure_trust(server_tls)
    server_tls.verify_mode = ssl.CERT_REQUIRED
    known, unknown, none = (client_context(AUTHORITY) for _ in range(3))
    clients.issue_cert("client@example.org").configure_cert(known)
    trustme.CA().issue_cert("client@example.org").configure_cert(unknown)
    data = bytes(300_000)
    async with await polymux.serve(
        echo, "tls://127.0.0.1:0", protocol="mplex", tls=server_tls
    ) as server:
        async with polymux.connect(server.url, protocol="mplex", tls=known) as session:
            assert await exchange(session, "x", data) == data
        for context in (unknown, none):
            session = await polymux.connect(server.url, protocol="mplex", tls=context)
            stream = await session.open("x")
            with pytest.raises(
                polymux.SessionClosed
            ) as problem:  # with TLS 1.3 the error comes after the handshake
                await stream.receive()
            assert "may require a client certificate" in str(problem.value)
            assert "_ssl.c" not in str(problem.value)
            assert "\n" not in str(problem.value)
            await session.wait_closed()


async def test_a_plain_client_at_a_tls_server_and_the_other_way_round() -> None:
    tls = server_context(AUTHORITY, "127.0.0.1")
    timeouts = polymux.Timeouts(handshake=0.3)
    async with await polymux.serve(
        echo, "tls://127.0.0.1:0", protocol="mplex", tls=tls, timeouts=timeouts
    ) as server:
        plain = server.url.replace("tls:", "tcp:")
        session = await polymux.connect(plain, protocol="mplex")
        await session.open("x")
        await asyncio.wait_for(session.wait_closed(), 30)
    async with await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        secure = server.url.replace("tcp:", "tls:")
        with pytest.raises(polymux.Unreachable):
            await polymux.connect(
                secure, protocol="mplex", tls=client_context(AUTHORITY), timeout=1
            )
    with pytest.raises(polymux.PolymuxError, match="needs a context with a certificate"):
        await polymux.serve(echo, "tls://127.0.0.1:0", protocol="mplex")


async def test_a_peer_that_answers_a_tls_handshake_in_plain_text_is_called_plain() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 welcome\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"tls://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(polymux.Unreachable, match="the peer does not speak TLS"):
            await polymux.connect(url, protocol="mplex", tls=client_context(AUTHORITY))


@pytest.mark.parametrize("record", ["16 03 01 00 c8 01 00 00 c4", "15 03 03 00 02 02 46"])
async def test_a_peer_that_begins_with_tls_is_told_apart_from_other_garbage(record: str) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes.fromhex(record))
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        session = await polymux.connect(url, protocol="nerdbank:version=3")
        with pytest.raises(polymux.PolymuxError, match="the peer speaks TLS: use tls:// or wss://"):
            await session.accept()


async def test_a_context_for_a_url_without_tls_is_refused() -> None:
    tls = server_context(AUTHORITY, "127.0.0.1")
    with pytest.raises(polymux.PolymuxError, match="has no effect without TLS"):
        await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex", tls=tls)
