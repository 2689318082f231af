"""Certificates of peers: their names, which clients are accepted, a warning if all are."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme
from tests.aio.session_helpers import exchange

import polymux
from polymux.capture import PcapngWriter, index_file
from polymux.live.peer_identity import AllowedPeers
from polymux.metrics import Meter
from polymux.record import Recorder

AUTHORITY = trustme.CA()
CLIENTS = trustme.CA()


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(context)
    CLIENTS.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(*names: str, common_name: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    CLIENTS.issue_cert(*names, common_name=common_name).configure_cert(context)
    return context


async def test_a_server_knows_its_client_in_the_handler_the_log_metrics_and_the_capture(
    tmp_path: Path,
) -> None:
    met: list[polymux.Session] = []
    meter = Meter()

    async def echo(stream: polymux.Stream) -> None:
        await stream.send(await stream.receive_all())

    async def handle(session: polymux.Session) -> None:
        met.append(session)
        await session.serve_streams(echo)

    path = tmp_path / "talk.pcapng"
    with PcapngWriter(str(path), sync="none") as sink:
        async with polymux.serve(
            handle, "tls://127.0.0.1:0", protocol="mplex", tls=server_context(),
            meter=meter, recorder=Recorder(sink),
        ) as server:  # fmt: skip
            alice = client_context("alice.example", "alice@example.org", common_name="alice")
            async with polymux.connect(server.url, protocol="mplex", tls=alice) as session:
                assert await exchange(session, "x", b"hello") == b"hello"
                assert session.peer_identity is not None
                assert session.peer_identity.names == ("127.0.0.1",)
    (session,) = met
    identity = session.peer_identity
    assert identity is not None
    assert identity.common_name == "alice"
    assert set(identity.names) == {"alice.example", "alice@example.org"}
    assert "CN=alice" in identity.subject
    assert f"({identity})" in str(session)
    families = {family.name: family for family in meter.collect()}
    assert families["identified_sessions"].values == {("mplex", str(identity)): 1}
    assert f"peer certificate: {identity}".encode() in path.read_bytes()


async def test_without_a_verified_certificate_there_is_no_identity() -> None:
    met: list[polymux.Session] = []

    async def handle(session: polymux.Session) -> None:
        met.append(session)

    asks_nothing = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(asks_nothing)
    unverified = client_context("mallory.example")
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    async with polymux.serve(
        handle, "tls://127.0.0.1:0", protocol="mplex", tls=asks_nothing
    ) as server:
        async with polymux.connect(server.url, protocol="mplex", tls=unverified) as session:
            await session.wait_closed()
            assert session.peer_identity is None
    assert met[0].peer_identity is None


@pytest.mark.parametrize(
    ("allow", "accepted"),
    [
        (None, True),
        (["alice.example"], True),
        (["alice"], True),
        (["bob.example", "alice.example"], True),
        (["bob.example"], False),
        (["example"], False),
        (["127.0.0.0/8"], True),
        (["192.0.2.0/24"], False),
        ([], False),
    ],
)
async def test_only_allowed_clients_reach_the_handler(
    allow: list[str] | None, accepted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    met: list[polymux.Session] = []

    async def handle(session: polymux.Session) -> None:
        met.append(session)
        await session.wait_closed()

    alice = client_context("alice.example", common_name="alice")
    async with polymux.serve(
        handle, "tls://127.0.0.1:0", protocol="nerdbank:version=1", tls=server_context(),
        allow=allow,
    ) as server:  # fmt: skip
        if accepted:
            async with polymux.connect(server.url, protocol="nerdbank:version=1", tls=alice):
                pass
        else:
            with pytest.raises(polymux.PolymuxError):
                await polymux.connect(server.url, protocol="nerdbank:version=1", tls=alice)
    assert len(met) == accepted
    refusals = [text for text in caplog.messages if "refused: " in text]
    assert bool(refusals) is not accepted
    assert all("CN=alice, alice.example is not on the list" in text for text in refusals)


async def test_names_need_certificates_and_networks_are_checked() -> None:
    async def handle(session: polymux.Session) -> None: ...

    with pytest.raises(ValueError, match="which only certificates have"):
        await polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex", allow=["alice"])
    with pytest.raises(ValueError, match="is no network"):
        AllowedPeers(["192.0.2.1/24"])
    with pytest.raises(TypeError, match="is a list"):
        AllowedPeers("alice")


@pytest.mark.parametrize(
    ("url", "allow", "warned"),
    [
        ("tcp://0.0.0.0:0", None, True),
        ("tcp://0.0.0.0:0", ["0.0.0.0/0"], False),
        ("tcp://127.0.0.1:0", None, False),
        ("tcp://localhost:0", None, False),
    ],
)
async def test_a_server_that_accepts_everyone_beyond_this_machine_says_so(
    url: str, allow: list[str] | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(session: polymux.Session) -> None: ...

    async with polymux.serve(handle, url, protocol="mplex", allow=allow):
        pass
    assert ("accepts every client that can reach it" in caplog.text) is warned


async def test_nothing_is_recorded_of_a_peer_that_is_refused(tmp_path: Path) -> None:
    async def handle(session: polymux.Session) -> None:
        await session.wait_closed()

    path = tmp_path / "served.pcapng"
    with PcapngWriter(path) as writer:
        async with polymux.serve(
            handle, "tcp://127.0.0.1:0", protocol="mplex", recorder=Recorder(writer),
            allow=["192.0.2.0/24"],
        ) as server:  # fmt: skip
            session = await polymux.connect(server.url, protocol="mplex")
            await session.wait_closed()
    assert index_file(path).summary.packets == 0
