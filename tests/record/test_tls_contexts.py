"""Certificates and keys: verification is strict, and every rejection names its reason."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from tests.record.captured_bytes import talks
from tests.record.certificate_authority import Authority
from tests.record.logging_peers import Room
from tests.record.record_process import Child, polymux

from polymux import Session, SessionClosed, connect, serve
from polymux.capture import PcapngWriter
from polymux.record import BadCertificate, RecordingProxy
from polymux.record.tls_contexts import client_context, server_context

NOT_VERIFIED = b"polymux: the upstream's certificate was not verified"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666, 0o610])
def test_a_private_key_that_others_may_use_is_refused(authority: Authority, mode: int) -> None:
    os.chmod(authority.key, mode)
    try:
        with pytest.raises(BadCertificate, match=f"private key .mode {mode:04o}.: chmod 600"):
            server_context(authority.cert, authority.key)
        with pytest.raises(BadCertificate, match="other users have access"):
            client_context(cert=authority.cert, key=authority.key)
    finally:
        os.chmod(authority.key, 0o600)
    server_context(authority.cert, authority.key)


def test_a_key_in_the_file_of_its_certificate_is_looked_at_too(
    authority: Authority, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Path(authority.cert).read_bytes() + Path(authority.key).read_bytes())
    both.chmod(0o644)
    with pytest.raises(BadCertificate, match="other users have access"):
        server_context(str(both))
    both.chmod(0o600)
    server_context(str(both))


def test_an_encrypted_key_is_refused_without_a_password_prompt(
    authority: Authority, tmp_path: Path
) -> None:
    key = serialization.load_pem_private_key(Path(authority.key).read_bytes(), None)
    locked = tmp_path / "locked.key"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    locked.chmod(0o600)
    with pytest.raises(BadCertificate, match="is encrypted"):
        server_context(authority.cert, str(locked))


def test_files_that_are_no_certificates_are_one_clear_line(
    authority: Authority, tmp_path: Path
) -> None:
    text = tmp_path / "text.pem"
    text.write_text("not a certificate\n")
    other, _ = authority.issue("other.example")
    attempts: list[Callable[[], ssl.SSLContext]] = [
        lambda: server_context(str(text), authority.key),
        lambda: server_context(str(tmp_path / "missing.pem"), authority.key),
        lambda: server_context(authority.cert, str(tmp_path / "missing.key")),
        lambda: server_context(other, authority.key),
        lambda: client_context(str(text)),
        lambda: client_context(str(tmp_path / "missing.pem")),
        lambda: server_context(authority.cert, authority.key, str(text)),
    ]
    for attempt in attempts:
        with pytest.raises(BadCertificate, match=r"\.(pem|key)\b.*: ") as caught:
            attempt()
        assert "\n" not in str(caught.value)
        assert "_ssl.c" not in str(caught.value)


async def refused(tap: RecordingProxy) -> str:
    """Connect through a proxy whose upstream must not be trusted. Return what the proxy logged."""
    async with tap:
        reader, writer = await asyncio.open_connection("127.0.0.1", tap.address.port)
        writer.write(b"secret")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await asyncio.wait_for(reader.readexactly(1), 60)
        writer.close()
    assert tap.stats.refused == 1
    return tap.failure


async def test_an_upstream_that_cannot_be_verified_gets_nothing(
    tmp_path: Path, authority: Authority
) -> None:
    room = Room()
    port = await room.listen(server_context(authority.cert, authority.key))
    stranger = Authority(tmp_path / "stranger")
    cases = [
        (f"tls://localhost:{port}", client_context(stranger.ca), "not trusted"),
        (f"tls://127.0.0.1:{port}", client_context(authority.ca), "not valid for '127.0.0.1'"),
        (f"tls://localhost:{port}", None, "not trusted"),
    ]
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        for url, context, word in cases:
            said = await refused(
                RecordingProxy("tcp://127.0.0.1:0", url, sink, upstream_tls=context)
            )
            assert said.startswith(f"{url}: ")
            assert word in said
    await room.close()
    assert talks(out) == []
    assert b"secret" not in out.read_bytes()


def revocation_list(authority: Authority, path: Path, *revoked: str) -> str:
    """Write a current list of the authority with these certificates, given as files."""
    key = serialization.load_pem_private_key(authority.authority.private_key_pem.bytes(), None)
    own = x509.load_pem_x509_certificate(Path(authority.ca).read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(own.subject)
        .last_update(now - datetime.timedelta(days=1))
        .next_update(now + datetime.timedelta(days=1))
    )
    for file in revoked:
        number = x509.load_pem_x509_certificate(Path(file).read_bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now)
        builder = builder.add_revoked_certificate(entry.build())
    signed = builder.sign(cast(Any, key), hashes.SHA256())  # any kind of private key signs
    path.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    return str(path)


async def test_revoked_clients_are_refused_and_others_are_not(
    tmp_path: Path, authority: Authority
) -> None:
    good, bad = authority.issue("good.example"), authority.issue("bad.example")
    crl = revocation_list(authority, tmp_path / "crl.pem", bad[0])
    own = server_context(authority.cert, authority.key, authority.ca, crl)

    async def handle(session: Session) -> None:
        await session.wait_closed()

    async with serve(handle, "tls://localhost:0", protocol="nerdbank", tls=own) as server:
        for cert, key in (good, bad):
            tls = client_context(authority.ca, cert=cert, key=key)
            session = await connect(server.url, protocol="nerdbank", tls=tls)
            waiting = asyncio.create_task(session.accept())
            done, _ = await asyncio.wait([waiting], timeout=0.3 if cert == good[0] else 60)
            assert bool(done) == (cert == bad[0])
            session.abort()
            with pytest.raises(SessionClosed):
                await waiting
            await session.wait_closed()


def test_a_file_without_a_revocation_list_is_named(authority: Authority) -> None:
    with pytest.raises(BadCertificate, match="no revocation list can be read from it: it has none"):
        server_context(authority.cert, authority.key, authority.ca, authority.ca)


async def ask_without_certificate(port: int, authority: Authority) -> None:
    """In TLS 1.3 the refusal comes with the first read."""
    reader, _ = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(authority.ca), server_hostname="localhost"
    )
    await asyncio.wait_for(reader.readexactly(1), 60)


async def test_client_certificates_are_asked_for_and_shown(
    tmp_path: Path, authority: Authority
) -> None:
    room = Room()
    asks = server_context(authority.cert, authority.key, authority.ca)
    port = await room.listen(asks)
    cert, key = authority.issue("tap.example")
    out = tmp_path / "tap.pcapng"
    with PcapngWriter(str(out)) as sink:
        tap = RecordingProxy(
            "tls://127.0.0.1:0", f"tls://localhost:{port}", sink, tls=asks,
            upstream_tls=client_context(authority.ca, cert=cert, key=key),
        )  # fmt: skip
        async with tap:
            await room.dial_all(
                tap.address.port, 1, client_context(authority.ca, cert=cert, key=key)
            )
            await room.settle()
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await ask_without_certificate(tap.address.port, authority)
            assert tap.stats.connections == 1
    await room.close()


async def test_insecure_warns_and_is_noted_in_the_capture(
    tmp_path: Path, authority: Authority
) -> None:
    room = Room()
    port = await room.listen(server_context(authority.cert, authority.key))
    out = tmp_path / "tap.pcapng"
    arguments = (
        "tls://127.0.0.1:0", f"tls://127.0.0.1:{port}", "-o", str(out), "--protocol", "mplex",
        "--cert", authority.cert, "--key", authority.key,
    )  # fmt: skip
    async with Child(*arguments, "--insecure") as tap:
        assert "warning: the upstream's certificate is not verified" in tap.text
        await room.dial_all(tap.port, 1, client_context(authority.ca))
        await room.settle()
        assert await tap.stop() == 0
    await room.close()
    (talk,) = talks(out)
    assert talk.raw_bytes == (bytes(room.dialers[1].sent), bytes(room.acceptors[1].sent))
    assert (talk.protocol, talk.vantage) == ("mplex", "middle")
    assert out.read_bytes().count(NOT_VERIFIED) == 2  # the file's comment and the connection's
    # Nobody notes it where it is not so.
    other = tmp_path / "other.pcapng"
    secure = ("--ca", authority.ca, "--server-name", "localhost")
    async with Child(*arguments[:3], str(other), *arguments[4:], *secure) as tap:
        assert await tap.stop() == 0
    assert NOT_VERIFIED not in other.read_bytes()


async def test_the_command_refuses_an_open_key_in_one_line(
    tmp_path: Path, authority: Authority
) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(Path(authority.key).read_bytes())
    key.chmod(0o644)
    out = tmp_path / "tap.pcapng"
    code, _, said = await polymux(
        "record", "tls://127.0.0.1:0", "tcp://127.0.0.1:9", "-o", str(out),
        "--cert", authority.cert, "--key", str(key),
    )  # fmt: skip
    assert code == 2
    assert said.startswith(
        f"polymux: {key}: other users have access to this private key (mode 0644)"
    )
    assert said.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["open.key"]
