"""TLS that nginx terminates is opened: suites, resumption, HelloRetryRequest and KeyUpdate.

nginx writes no key log; its clients do: curl, Python's `ssl` and OpenSSL's client.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.analysis.recorded_conversation import Found, analyse
from tests.analysis.tls.test_layer import Opened, open_conversation
from tests.analysis.tls.test_tables import without_times
from tests.e2e.test_tls_recordings import converse, echo
from tests.interop.test_tls_tools import VERSIONS, is_retried
from tests.interop.tls_programs import (
    ECDSA_SUITES,
    TLS13_SUITES,
    Certificates,
    Nginx,
    OpensslClient,
    need,
)
from tests.interop.tls_tap import PATIENCE_SECONDS, Tap

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.capture import PcapngWriter
from polymux.record import Recorder, RecordingProxy

SUITES = (*TLS13_SUITES[:4], *ECDSA_SUITES)
# Each server but that of CCM in TLS 1.3, which Python's client does not offer.
PYTHON_PLACES = [
    place
    for place in range(len(SUITES) + 1)
    if place == len(SUITES) or "CCM" not in SUITES[place] or SUITES[place] not in TLS13_SUITES
]
PAGE = os.urandom(100_000)


class Site:
    """nginx with a server for each suite, the last one with a curve that clients do not guess."""

    def __init__(self, folder: Path) -> None:
        self.certificates = Certificates(folder)
        cert = self.certificates.paths["ECDSA"]
        common = f"ssl_certificate {cert}; ssl_certificate_key {cert}; ssl_session_tickets on;"
        servers = [
            f"{common} ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites {suite};"
            if suite in TLS13_SUITES
            else f"{common} ssl_protocols TLSv1.2; ssl_ciphers {suite};"
            for suite in SUITES
        ]
        servers.append(f"{common} ssl_protocols TLSv1.3; ssl_ecdh_curve secp384r1;")
        self.nginx = Nginx(folder, servers)
        (self.nginx.files / "page").write_bytes(PAGE)
        self.taps = [Tap(path) for path in self.nginx.paths]

    def close(self) -> None:
        for tap in self.taps:
            tap.close()
        self.nginx.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("nginx"))
    yield made
    made.close()


def opened(tap: Tap, number: int, key_log: Path) -> Opened:
    found = open_conversation(tap.whole(number), key_log.read_bytes())
    assert not found.layer.failure
    assert found.layer.facts.unopened == 0
    return found


@pytest.mark.parametrize("suite", SUITES)
def test_curl_with_nginx_is_opened(suite: str, site: Site, tmp_path: Path) -> None:
    tap, log = site.taps[SUITES.index(suite)], tmp_path / "keys.log"
    number = len(tap.connections)
    option = "--tls13-ciphers" if suite in TLS13_SUITES else "--ciphers"
    done = subprocess.run(
        [need("curl"), "-s", "-S", "-i", "--raw", "--http1.1", "--cacert", site.certificates.ca,
         option, suite, f"https://localhost:{tap.port}/page"],
        env={**os.environ, "SSLKEYLOGFILE": str(log)}, capture_output=True,
        timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    found = opened(tap, number, log)
    assert found.content[0].startswith(b"GET /page HTTP/1.1\r\n")
    assert found.content[1] == done.stdout
    assert done.stdout.endswith(PAGE)


@pytest.mark.parametrize("place", PYTHON_PLACES)
def test_python_with_nginx_is_opened_and_resumed(place: int, site: Site, tmp_path: Path) -> None:
    tap = site.taps[place]
    context = site.certificates.client_context(tmp_path / "keys.log")
    if place < len(SUITES) and SUITES[place] in ECDSA_SUITES:
        context.maximum_version = VERSIONS["1.2"]
        context.set_ciphers(SUITES[place])
    session: ssl.SSLSession | None = None
    said = b"GET /page HTTP/1.1\r\nHost: a\r\n\r\nGET /page HTTP/1.1\r\nHost: a\r\n\r\n"
    for turn in range(2):
        number, heard = len(tap.connections), b""
        with (
            socket.create_connection(("127.0.0.1", tap.port), PATIENCE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as channel,
        ):
            channel.sendall(said)
            while heard.count(PAGE) < 2:
                heard += channel.recv(65536)
            assert channel.session_reused == (turn == 1)
            session = channel.session
        found = opened(tap, number, tmp_path / "keys.log")
        assert found.content == (said, heard)
        assert is_retried(tap, number) == (place == len(SUITES))


def test_key_updates_with_nginx_are_followed(site: Site) -> None:
    tap = site.taps[1]
    number = len(tap.connections)
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        client = OpensslClient(tap, Path(folder), "-crlf")
        for turn, letter in enumerate(("K", "k", "K")):
            # The redirection to a folder names it.
            (site.nginx.files / f"folder{turn}").mkdir(exist_ok=True)
            client.type(f"GET /folder{turn} HTTP/1.1\nHost: a\n\n".encode())
            client.wait_for(f"/folder{turn}/".encode())
            client.update_keys(letter)
        client.finish()
        found = opened(tap, number, client.key_log)
    asked = [f"GET /folder{turn} HTTP/1.1\r\nHost: a\r\n\r\n" for turn in range(3)]
    assert found.content[0] == "".join(asked).encode()
    assert found.content[1].count(b"HTTP/1.1 301 Moved Permanently\r\n") == 3


@pytest.mark.parametrize("version", VERSIONS)
def test_omnistreams_behind_nginx_gives_the_tables_of_the_recorder(
    version: str, tmp_path: Path
) -> None:
    certificates = Certificates(tmp_path)
    asyncio.run(recorded_behind_nginx(version, certificates, tmp_path))
    inside: Found = analyse(str(tmp_path / "inside.pcapng"), plan=AnalysisOptions().with_content())
    plan = AnalysisOptions().with_secrets([(tmp_path / "keys.log").read_bytes()])
    wire: Found = analyse(str(tmp_path / "wire.pcapng"), plan=plan.with_content())
    assert (wire.session.tls or "").startswith(f"{version} ")
    assert wire.session.balanced
    assert wire.session.tls_unopened == 0
    assert wire.session.protocol == inside.session.protocol == "omnistreams"
    assert wire.session.violations == inside.session.violations == 0
    for table in ("streams", "content", "frames"):
        for side in ("dialer", "acceptor"):
            rows = [
                [row for row in without_times(found.rows(table)) if row.get("sender", side) == side]
                for found in (inside, wire)
            ]
            assert rows[0] == rows[1], table
            assert rows[0] or (table, side) != ("frames", "dialer")


async def recorded_behind_nginx(version: str, certificates: Certificates, folder: Path) -> None:
    """Write `inside.pcapng` at the server behind nginx, `wire.pcapng` before it, and `keys.log`."""
    cert = certificates.paths["ECDSA"]
    context = certificates.client_context(folder / "keys.log")
    with (
        PcapngWriter(folder / "inside.pcapng") as inside,
        PcapngWriter(folder / "wire.pcapng") as wire,
    ):
        async with await polymux.serve(
            echo, "ws://127.0.0.1:0/omnistreams", protocol="omnistreams", recorder=Recorder(inside)
        ) as server:
            nginx = Nginx(folder, [
                f"ssl_certificate {cert}; ssl_certificate_key {cert}; ssl_protocols TLSv{version};"
                f"location / {{ proxy_pass http://127.0.0.1:{server.port}; proxy_http_version 1.1;"
                "proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; }",
            ])  # fmt: skip
            try:
                upstream = f"unix://{nginx.paths[0]}"
                async with RecordingProxy("tcp://127.0.0.1:0", upstream, wire) as tap:
                    url = f"wss://localhost:{tap.address.port}/omnistreams"
                    await converse(url, "omnistreams", context)
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        while tap.stats.open:
                            await asyncio.sleep(0.01)
            finally:
                nginx.close()
