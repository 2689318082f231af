"""TLS of other implementations is opened, byte for byte: OpenSSL's tools, curl, Node and Python.

Each peer writes a key log; what it sent is known. Suites, resumption, HelloRetryRequest and
KeyUpdate are tried with every program that can be told to; padding and early data with OpenSSL.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.analysis.tls.test_layer import Opened, open_conversation
from tests.interop.tls_programs import (
    ECDSA_SUITES,
    TLS12_SUITES,
    TLS13_SUITES,
    Certificates,
    OpensslClient,
    PythonServer,
    need,
    openssl_server,
    tapped,
    wait_until,
)
from tests.interop.tls_tap import PATIENCE_SECONDS, Tap

LINES = ["hello to the server", "a longer line of text " * 40, "the last line of all"]
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def private() -> Iterator[Path]:
    """A folder that is not searched for secrets.

    OpenSSL's client prints the secret of TLS 1.2, and keeps it in the files of its sessions.
    """
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        yield Path(folder)


def opened(tap: Tap, number: int, key_log: Path) -> Opened:
    """A connection of the tap, whole, opened."""
    return open_conversation(tap.whole(number), key_log.read_bytes())


def talk(tap: Tap, folder: Path, *options: str) -> tuple[OpensslClient, Opened]:
    """Say the lines with OpenSSL's client to its server, as the tap's next connection."""
    number = len(tap.connections)
    client = OpensslClient(tap, folder, *options)
    for line in LINES:
        client.say(line)
    client.finish()
    return client, opened(tap, number, client.key_log)


def is_retried(tap: Tap, number: int = 0) -> bool:
    """Whether the client said hello twice, after a HelloRetryRequest."""
    sent = b"".join(data for side, data in tap.whole(number) if side == 0)
    hellos = position = 0
    while position < len(sent):
        size = int.from_bytes(sent[position + 3 : position + 5], "big")
        # Of an encrypted message any byte may be that of a hello; its length fits as well.
        hello = bytes([1]) + (size - 4).to_bytes(3, "big") if size > 4 else b""
        hellos += sent[position] == 22 and sent[position + 5 : position + 9] == hello
        position += 5 + size
    return hellos == 2


@pytest.mark.parametrize("suite", TLS13_SUITES + TLS12_SUITES)
def test_every_suite_of_openssl_is_opened(
    suite: str, certificates: Certificates, private: Path
) -> None:
    option = "-ciphersuites" if suite in TLS13_SUITES else "-cipher"
    version = "-tls1_3" if suite in TLS13_SUITES else "-tls1_2"
    cert = certificates.for_suite(suite)
    with openssl_server("-cert", cert, "-key", cert, "-rev", option, suite) as (tap, _):
        client, found = talk(tap, private, option, suite, version)
    assert not found.layer.failure
    assert found.content == (client.sent, client.answered)
    assert found.layer.facts.unopened == 0
    assert found.layer.facts.server_name == "localhost"


def test_key_updates_retry_padding_and_resumption_are_followed(
    certificates: Certificates, private: Path
) -> None:
    session, cert = str(private / "session"), certificates.paths["ECDSA"]
    with openssl_server(
        "-cert", cert, "-key", cert, "-rev", "-groups", "P-384", "-record_padding", "512", "-tls1_3"
    ) as (tap, _):
        client = OpensslClient(
            tap, private, "-groups", "X25519:P-384", "-record_padding", "300", "-sess_out", session
        )
        client.say(LINES[0])
        for number, letter in enumerate(("K", "k", "K")):
            client.update_keys(letter)
            client.say(f"{LINES[1]}{number}")
        client.say(LINES[2])
        client.finish()
        found = opened(tap, 0, client.key_log)
        assert found.content == (client.sent, client.answered)
        assert found.layer.facts.unopened == 0
        assert is_retried(tap)
        resumed, found = talk(tap, private, "-sess_in", session)
        assert b"Reused, TLSv1.3" in resumed.printed()
        assert found.content == (resumed.sent, resumed.answered)


def test_a_resumed_session_of_tls_1_2_is_opened(certificates: Certificates, private: Path) -> None:
    session, cert = str(private / "session"), certificates.paths["ECDSA"]
    with openssl_server("-cert", cert, "-key", cert, "-rev", "-tls1_2") as (tap, _):
        talk(tap, private, "-sess_out", session)
        client, found = talk(tap, private, "-sess_in", session)
    assert b"Reused, TLSv1.2" in client.printed()
    assert found.content == (client.sent, client.answered)


@pytest.mark.parametrize("knows_secret", [True, False])
def test_early_data_is_opened_with_its_secret_and_counted_without(
    knows_secret: bool, certificates: Certificates, private: Path
) -> None:
    session, early = private / "session", private / "early"
    early.write_bytes(b"early words\n")
    cert = certificates.paths["ECDSA"]
    with openssl_server(
        "-cert", cert, "-key", cert, "-early_data", "-max_early_data", "10000", "-tls1_3",
        "-no_anti_replay",
    ) as (tap, printed):  # fmt: skip
        first = OpensslClient(tap, private, "-sess_out", str(session))
        wait_until(lambda: session.exists() and session.stat().st_size > 0)
        first.finish()
        tap.whole(0)
        second = OpensslClient(tap, private, "-sess_in", str(session), "-early_data", str(early))
        wait_until(lambda: b"early words" in printed.read_bytes())
        second.type(b"late words\n")
        wait_until(lambda: b"late words" in printed.read_bytes())
        second.finish()
        flights = tap.whole(1)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_curl_is_opened_with_every_suite_a_retry_and_a_resumed_session(
    version: str, certificates: Certificates, private: Path
) -> None:
    cert = certificates.paths["ECDSA"]
    curl = [need("curl"), "-s", "-S", "-i", "--raw", "--cacert", certificates.ca, "--http1.1",
            "--tls-max", version, "--curves", "X25519:P-384:P-256"]  # fmt: skip
    suites = [["--tls13-ciphers", suite] for suite in TLS13_SUITES[:4]]
    options = ["-ciphersuites", ":".join(TLS13_SUITES), "-groups", "P-384"]
    if version == "1.2":
        suites = [["--ciphers", suite] for suite in ECDSA_SUITES]
        options = ["-cipher", "ALL"]
    with openssl_server("-cert", cert, "-key", cert, "-www", *options) as (tap, _):
        for number, chosen in enumerate((*suites, [])):
            log = private / f"curl-{number}.log"
            count = 1 if chosen else 2  # the second resumes the session of the first
            page = private / "page"  # it shows the secret of TLS 1.2
            with page.open("wb") as out:
                subprocess.run(
                    [*curl, *chosen, *[f"https://localhost:{tap.port}/"] * count],
                    env={**os.environ, "SSLKEYLOGFILE": str(log)}, stdout=out, check=True,
                    timeout=PATIENCE_SECONDS,
                )  # fmt: skip
            connections = range(number, number + count)
            found = [opened(tap, connection, log) for connection in connections]
            assert b"".join(each.content[1] for each in found) == page.read_bytes()
            for each, connection in zip(found, connections, strict=True):
                assert each.layer.facts.unopened == 0
                assert each.layer.facts.version == version
                assert each.content[0].startswith(b"GET / HTTP/1.1\r\n")
                assert each.content[0].endswith(b"\r\n\r\n")
                reused = connection > len(suites)
                assert (b"Reused, TLS" in each.content[1]) == reused
                assert is_retried(tap, connection) == (version == "1.3")


NODE = """
const tls = require("tls"), fs = require("fs");
const [certFile, path, tapPort, folder, cases] = process.argv.slice(1);
const pem = fs.readFileSync(certFile);
const said = "x".repeat(40000) + "end";
const results = [];
function connect(options, session) {
  return new Promise((resolve, reject) => {
    let heard = "", kept = null, reused = false;
    const log = folder + "/node-" + results.length + ".log";
    const client = tls.connect({ ...options, port: Number(tapPort), host: "127.0.0.1", session,
      rejectUnauthorized: false, servername: "localhost" }, () => {
        reused = client.isSessionReused(); client.write(said); });
    client.on("keylog", (line) => fs.appendFileSync(log, line));
    client.on("session", (each) => { kept = each; });
    client.on("data", (data) => { heard += data; if (heard.length >= said.length) client.end(); });
    client.on("error", reject);
    client.on("close", () => { results.push([heard === said, reused]); resolve(kept); });
  });
}
async function run([version, ciphers, curve]) {
  const options = { ciphers, minVersion: version, maxVersion: version };
  const server = tls.createServer({ ...options, key: pem, cert: pem, ecdhCurve: curve || "auto" },
    (socket) => socket.on("error", () => {}).pipe(socket));
  await new Promise((resolve) => server.listen(path, resolve));
  const session = await connect(options);
  if (curve) await connect(options, session);
  await new Promise((resolve) => server.close(resolve));
}
(async () => {
  for (const each of JSON.parse(cases)) await run(each);
  fs.writeFileSync(folder + "/results.json", JSON.stringify(results));
})();
"""


def test_node_is_opened_with_every_suite_a_retry_and_a_resumed_session(
    certificates: Certificates, tmp_path: Path
) -> None:
    suites = [("TLSv1.3", suite, "") for suite in TLS13_SUITES]
    suites += [("TLSv1.2", suite, "") for suite in ECDSA_SUITES]
    # The curve asks for a HelloRetryRequest in TLS 1.3; a second connection resumes the first.
    cases = [*suites, ("TLSv1.3", TLS13_SUITES[1], "P-384"), ("TLSv1.2", ECDSA_SUITES[0], "P-384")]
    said = b"x" * 40000 + b"end"
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        path = os.path.join(folder, "socket")
        tap = Tap(path)
        done = subprocess.run(
            [need("node"), "-e", NODE, certificates.paths["ECDSA"], path, str(tap.port),
             str(tmp_path), json.dumps(cases)],
            capture_output=True, text=True, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        tap.close()
    assert done.returncode == 0, done.stderr
    new, reused = [True, False], [True, True]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results == [*[new] * len(suites), new, reused, new, reused]
    for number in range(len(results)):
        found = opened(tap, number, tmp_path / f"node-{number}.log")
        assert found.content == (said, said), number
        assert found.layer.facts.unopened == 0
        assert is_retried(tap, number) == (number in (len(suites), len(suites) + 1))


NODE_ECHO = """
const tls = require("tls"), fs = require("fs");
const [certFile, path] = process.argv.slice(1);
const pem = fs.readFileSync(certFile);
tls.createServer({ key: pem, cert: pem }, (socket) => socket.on("error", () => {}).pipe(socket))
  .listen(path);
"""


def test_key_updates_with_node_are_followed(certificates: Certificates, private: Path) -> None:
    with tapped(need("node"), "-e", NODE_ECHO, certificates.paths["ECDSA"], "SOCKET") as (tap, _):
        say_with_key_updates(tap, private)


def test_key_updates_with_python_are_followed(certificates: Certificates, private: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.paths["ECDSA"])
    with PythonServer(context) as tap:
        say_with_key_updates(tap, private)


def say_with_key_updates(tap: Tap, folder: Path) -> None:
    """Lines to an echo server, whose TLS answers updates with updates of its own."""
    client = OpensslClient(tap, folder, answer=lambda line: line)
    client.say(LINES[0])
    for number, letter in enumerate(("K", "k", "K")):
        client.update_keys(letter)
        client.say(f"{number} {LINES[1]}")
    client.finish()
    found = opened(tap, 0, client.key_log)
    assert found.content == (client.sent, client.sent)
    assert found.layer.facts.unopened == 0


@pytest.mark.parametrize("suite", [*TLS13_SUITES[:3], *ECDSA_SUITES])
def test_python_is_opened_with_openssl_as_the_server(
    suite: str, certificates: Certificates, tmp_path: Path
) -> None:
    """Python's client cannot choose a suite of TLS 1.3; the server does."""
    cert = certificates.paths["ECDSA"]
    option = "-ciphersuites" if suite in TLS13_SUITES else "-cipher"
    version = "1.3" if suite in TLS13_SUITES else "1.2"
    context = certificates.client_context(tmp_path / "keys.log")
    context.maximum_version = VERSIONS[version]
    if version == "1.2":
        context.set_ciphers(suite)
    session: ssl.SSLSession | None = None
    with openssl_server("-cert", cert, "-key", cert, "-rev", option, suite) as (tap, _):
        for number in range(2):  # the second resumes the session of the first
            answer = b""
            with (
                socket.create_connection(("127.0.0.1", tap.port), PATIENCE_SECONDS) as plain,
                context.wrap_socket(plain, server_hostname="localhost", session=session) as channel,
            ):
                said = "".join(line + "\n" for line in LINES).encode()
                channel.sendall(said)
                while len(answer) < len(said):
                    answer += channel.recv(65536)
                assert channel.session_reused == (number == 1)
                session = channel.session
            found = opened(tap, number, tmp_path / "keys.log")
            assert found.content == (said, answer)
            assert found.layer.facts.unopened == 0
