"""TLS of other implementations is opened: OpenSSL's tools, curl and Node, byte for byte.

Each peer writes a key log; what it sent is known. Suites, resumption, HelloRetryRequest, KeyUpdate,
padding and early data are each tried with both ends of OpenSSL.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from tests.analysis.tls.test_layer import Opened, open_conversation
from tests.interop.tls_tap import Tap
from tests.ports import free_port

LINES = ["hello", "a longer line of text " * 40, "last"]
TLS13_SUITES = (
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_AES_128_CCM_SHA256",
    "TLS_AES_128_CCM_8_SHA256",
)
TLS12_SUITES = (
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES256-CCM",
    "DHE-RSA-AES128-GCM-SHA256",
    "AES128-GCM-SHA256",
)


def need(tool: str) -> str:
    """The path of a tool; without it the test is skipped, or fails with POLYMUX_NO_SKIP=1."""
    path = shutil.which(tool)
    if path is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail(f"{tool} is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip(f"{tool} is not installed")
    return path


class Certificates:
    """PEM files of a server: an ECDSA and an RSA certificate, each with its key."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        authority.cert_pem.write_to_path(self.ca)
        self.paths = {}
        for kind in (trustme.KeyType.ECDSA, trustme.KeyType.RSA):
            path = folder / f"{kind.name}.pem"
            leaf = authority.issue_cert("localhost", "127.0.0.1", key_type=kind)
            leaf.private_key_and_cert_chain_pem.write_to_path(path)
            self.paths[kind.name] = str(path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class OpensslServer:
    """`openssl s_server`, which answers each line reversed, behind a tap."""

    def __init__(self, certificates: Certificates, suite: str, *options: str) -> None:
        kind = "RSA" if "RSA" in suite or suite == "AES128-GCM-SHA256" else "ECDSA"
        cert = certificates.paths[kind]
        port = free_port()
        self.process = subprocess.Popen(
            [need("openssl"), "s_server", "-accept", f"127.0.0.1:{port}", "-cert", cert, "-key",
             cert, "-rev", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.tap = Tap(port)

    def __enter__(self) -> OpensslServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.tap.close()
        self.process.kill()
        self.process.wait()


class OpensslClient:
    """`openssl s_client`, whose commands are single letters at the start of a line."""

    def __init__(self, tap: Tap, folder: Path, *options: str) -> None:
        self.key_log = folder / f"keys-{len(tap.connections)}.log"
        self._out = folder / f"out-{len(tap.connections)}"
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [need("openssl"), "s_client", "-connect", f"127.0.0.1:{tap.port}", "-servername",
                 "localhost", "-keylogfile", str(self.key_log), *options],
                stdin=subprocess.PIPE, stdout=out, stderr=out,
            )  # fmt: skip
        self.sent = b""
        self._answers = 0

    def say(self, line: str) -> None:
        """Send a line and wait for the answer."""
        assert self.process.stdin is not None
        data = line.encode() + b"\n"
        self.process.stdin.write(data)
        self.process.stdin.flush()
        self.sent += data
        answer = line[::-1].encode()
        wait_until(lambda: answer in self._out.read_bytes())

    def command(self, letter: str) -> None:
        """Give one of its commands."""
        assert self.process.stdin is not None
        self.process.stdin.write(letter.encode() + b"\n")
        self.process.stdin.flush()
        expected = {"K": b"KEYUPDATE", "k": b"KEYUPDATE"}.get(letter)
        if expected:
            before = self._answers
            wait_until(lambda: self._out.read_bytes().count(expected) > before)
            self._answers += 1

    def finish(self) -> None:
        self.command("Q")
        self.process.wait(60)

    def answered(self) -> bytes:
        """What the server sent: every line reversed."""
        return b"".join(line[::-1] + b"\n" for line in self.sent.splitlines())


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the peer did not answer"
        time.sleep(0.01)


def opened(tap: Tap, number: int, key_log: Path) -> Opened:
    """A connection of the tap, whole, opened."""
    return open_conversation(tap.whole(number), key_log.read_bytes())


def talk(server: OpensslServer, folder: Path, *options: str) -> tuple[OpensslClient, Opened]:
    number = len(server.tap.connections)
    client = OpensslClient(server.tap, folder, *options)
    for line in LINES:
        client.say(line)
    client.finish()
    wait_until(lambda: len(server.tap.connections) > number)
    return client, opened(server.tap, number, client.key_log)


@pytest.mark.parametrize("suite", TLS13_SUITES + TLS12_SUITES)
def test_every_suite_of_openssl_is_opened(
    suite: str, certificates: Certificates, tmp_path: Path
) -> None:
    option = "-ciphersuites" if suite in TLS13_SUITES else "-cipher"
    version = "-tls1_3" if suite in TLS13_SUITES else "-tls1_2"
    with OpensslServer(certificates, suite, option, suite) as server:
        client, found = talk(server, tmp_path, option, suite, version)
    assert not found.layer.failure
    assert found.content == (client.sent, client.answered())
    assert found.layer.facts.unopened == 0
    assert found.layer.facts.server_name == "localhost"


def test_key_updates_retry_padding_and_resumption_are_followed(
    certificates: Certificates, tmp_path: Path
) -> None:
    session = str(tmp_path / "session")
    with OpensslServer(
        certificates, "", "-groups", "P-384", "-record_padding", "512", "-tls1_3"
    ) as server:
        client = OpensslClient(
            server.tap, tmp_path, "-groups", "X25519:P-384", "-record_padding", "300",
            "-sess_out", session,
        )  # fmt: skip
        client.say(LINES[0])
        for letter in ("K", "k", "K"):
            client.command(letter)
            client.say(LINES[1] + letter)
        client.say(LINES[2])
        client.finish()
        found = opened(server.tap, 0, client.key_log)
        assert found.content == (client.sent, client.answered())
        assert found.layer.facts.unopened == 0
        hellos = [data for side, data in server.tap.connections[0] if data[:1] == b"\x16"]
        assert len(hellos) > 2  # the HelloRetryRequest
        resumed, found = talk(server, tmp_path, "-sess_in", session)
        assert found.content == (resumed.sent, resumed.answered())


def test_a_resumed_session_of_tls_1_2_is_opened(certificates: Certificates, tmp_path: Path) -> None:
    session = str(tmp_path / "session")
    with OpensslServer(certificates, "", "-tls1_2") as server:
        talk(server, tmp_path, "-sess_out", session)
        client, found = talk(server, tmp_path, "-sess_in", session)
    assert found.content == (client.sent, client.answered())


@pytest.mark.parametrize("knows_secret", [True, False])
def test_early_data_is_opened_with_its_secret_and_counted_without(
    knows_secret: bool, certificates: Certificates, tmp_path: Path
) -> None:
    session, early = str(tmp_path / "session"), tmp_path / "early"
    early.write_bytes(b"early words\n")
    cert = certificates.paths["ECDSA"]
    port = free_port()
    heard = tmp_path / "heard"
    with heard.open("wb") as out:
        server = subprocess.Popen(
            [need("openssl"), "s_server", "-accept", f"127.0.0.1:{port}", "-cert", cert, "-key",
             cert, "-early_data", "-max_early_data", "10000", "-tls1_3", "-no_anti_replay"],
            stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    tap = Tap(port)
    try:
        first = OpensslClient(tap, tmp_path, "-sess_out", session)
        wait_until(lambda: Path(session).exists() and Path(session).stat().st_size > 0)
        first.finish()
        second = OpensslClient(tap, tmp_path, "-sess_in", session, "-early_data", str(early))
        wait_until(lambda: b"early words" in heard.read_bytes())
        assert second.process.stdin is not None
        second.process.stdin.write(b"late words\n")
        second.process.stdin.flush()
        wait_until(lambda: b"late words" in heard.read_bytes())
        second.finish()
        flights = tap.whole(1)
    finally:
        tap.close()
        server.kill()
        server.wait()
    log = second.key_log.read_bytes()
    assert b"CLIENT_EARLY_TRAFFIC_SECRET" in log
    if knows_secret:
        found = open_conversation(flights, log)
        assert found.received[0] == b"early words\nlate words\n"
    else:
        lines = [line for line in log.splitlines() if b"EARLY" not in line]
        found = open_conversation(flights, b"\n".join(lines))
        assert found.stopped == [0]
        assert any("0-RTT" in note for note in found.layer.notes)


def test_curl_is_opened(certificates: Certificates, tmp_path: Path) -> None:
    cert = certificates.paths["RSA"]
    port = free_port()
    server = subprocess.Popen(
        [need("openssl"), "s_server", "-accept", f"127.0.0.1:{port}", "-cert", cert, "-key", cert,
         "-www"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    tap = Tap(port)
    try:
        for number, version in enumerate(("--tlsv1.3", "--tls-max=1.2")):
            log = tmp_path / f"curl-{number}.log"
            done = subprocess.run(
                [need("curl"), "-s", "--cacert", certificates.ca, "--http1.1",
                 *(version.split("=")), f"https://localhost:{tap.port}/"],
                env={**os.environ, "SSLKEYLOGFILE": str(log)}, capture_output=True, timeout=100,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            found = opened(tap, number, log)
            assert found.received[0].startswith(b"GET / HTTP/1.1\r\n")
            assert found.received[1].endswith(done.stdout)
            assert done.stdout
    finally:
        tap.close()
        server.kill()
        server.wait()


NODE = """
const tls = require("tls"), fs = require("fs");
const [certFile, serverPort, tapPort, out, cases] = process.argv.slice(1);
const pem = fs.readFileSync(certFile);
const results = [];
async function run([version, ciphers]) {
  const keys = [];
  let heard = "";
  await new Promise((resolve, reject) => {
    const server = tls.createServer({ key: pem, cert: pem, ciphers, minVersion: version,
      maxVersion: version }, (socket) => socket.on("error", () => {}).pipe(socket));
    server.listen(Number(serverPort), "127.0.0.1", () => {
      const client = tls.connect({ port: Number(tapPort), host: "127.0.0.1", ciphers,
        minVersion: version, maxVersion: version, rejectUnauthorized: false,
        servername: "localhost" }, () => { client.write("x".repeat(40000)); client.end("end"); });
      client.on("keylog", (line) => keys.push(line.toString()));
      client.on("data", (data) => { heard += data; });
      client.on("error", reject);
      client.on("close", () => server.close(resolve));
    });
  });
  results.push({ keys: keys.join(""), heard: heard.length });
}
(async () => {
  for (const each of JSON.parse(cases)) await run(each);
  fs.writeFileSync(out, JSON.stringify(results));
})();
"""


@pytest.fixture
def node_tap() -> Iterator[tuple[Tap, int]]:
    port = free_port()
    tap = Tap(port)
    yield tap, port
    tap.close()


def test_node_is_opened(
    certificates: Certificates, node_tap: tuple[Tap, int], tmp_path: Path
) -> None:
    tap, port = node_tap
    cases = [("TLSv1.3", suite) for suite in TLS13_SUITES[:3]]
    cases += [("TLSv1.2", suite) for suite in TLS12_SUITES[1:3]]
    out = tmp_path / "results.json"
    subprocess.run(
        [need("node"), "-e", NODE, certificates.paths["ECDSA"], str(port), str(tap.port), str(out),
         json.dumps(cases)],
        check=True, timeout=100,
    )  # fmt: skip
    for number, result in enumerate(json.loads(out.read_text())):
        found = open_conversation(tap.whole(number), result["keys"].encode())
        said = b"x" * 40000 + b"end"
        assert (found.content, result["heard"]) == ((said, said), len(said)), cases[number]
