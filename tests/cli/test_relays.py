"""`polymux bridge` and `polymux tunnel`, run as commands."""

from __future__ import annotations

import contextlib
import http.server
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Ran

Run = Callable[..., Ran]
HERE = "tcp://127.0.0.1:0"


@contextlib.contextmanager
def command(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running command, and the first line that says where it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "polymux", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("listening at "):
                yield process, line.split()[2]
                return
        raise AssertionError(f"polymux {arguments[0]} did not listen: {said}")
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Interrupt a command; return its exit code and what else it said."""
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


class Page(http.server.BaseHTTPRequestHandler):
    """Answers every request with its path."""

    def do_GET(self) -> None:
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def web_server() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_bridge_relays_and_says_at_the_end_what_was_lost() -> None:
    with (
        command("serve", HERE, "--protocol", "yamux", "--action", "echo") as (_, server),
        command("bridge", HERE, server, "--protocol-a", "mplex", "--protocol-b", "yamux") as (
            bridge,
            url,
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "polymux", "connect", url, "--protocol", "mplex",
             "--name", "jobs", "--send", "hello"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "hello")
        code, said = ended(bridge)
        assert code == 0
        assert "1 session, 1 stream, 5 bytes from A, 5 from B, 0 aborted" in said
        assert "not passed on, because the other protocol has no place for it: 1 name" in said


def test_curl_goes_through_the_socks_port_of_a_tunnel_and_a_denied_target_is_audited(
    tmp_path: Path,
) -> None:
    audit = tmp_path / "audit.jsonl"
    with (
        web_server() as port,
        command("tunnel", "serve", HERE, "--allow", f"localhost:{port}", "--audit", str(audit)) as (
            _,
            server,
        ),
        command("tunnel", "connect", server, "-D", "0") as (client, socks),
    ):

        def curl(url: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["curl", "-sS", "--noproxy", "", "--socks5-hostname", socks, url],
                capture_output=True,
                text=True,
                timeout=60,
            )

        assert curl(f"http://localhost:{port}/page").stdout == "/page"
        denied = curl(f"http://127.0.0.1:{port}/page")
        assert denied.returncode == 97
        assert "(2)" in denied.stderr  # not allowed, by the rules of the server
        code, said = ended(client)
        assert code == 0
        assert "1 connection forwarded, 1 refused" in said
    events = [json.loads(line) for line in audit.read_text().splitlines()]
    (forwarded,) = [event for event in events if event["event"] == "forwarded"]
    assert forwarded["target"] == f"localhost:{port}"
    (refused,) = [event for event in events if event["event"] == "refused"]
    assert refused["reason"] == f"127.0.0.1:{port} is not allowed"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tunnel", "serve", "tls://0.0.0.0:9443", "--allow", "db:1"], 2, "needs a certificate"),
        (["tunnel", "serve", "tcp://0.0.0.0:9443", "--allow", "db:1"], 2, "with --token-file"),
        (["tunnel", "serve", HERE, "--allow", "db"], 2, "write HOST:PORT"),
        (["tunnel", "connect", HERE], 2, "nothing to forward"),
        (["tunnel", "connect", HERE, "-L", "8080"], 2, "write [BIND:]PORT:HOST:HOSTPORT"),
        (["tunnel", "connect", "tls://192.0.2.1:9443", "-D", "0"], 2, "with --token-file"),
        (["tunnel", "connect", "tcp://127.0.0.1:1", "-D", "0", "--give-up-after", "0.1"], 4,
         "nothing listens there; tried for"),
        (["tunnel", "serve", HERE, "--protocol", "streamux"], 2, "needs two-way streams"),
        (["bridge", HERE, HERE, "--protocol-a", "streamux", "--protocol-b", "mplex"], 2,
         "streamux only to streamux"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said_in_one_line(
    arguments: list[str], code: int, said: str, run: Run
) -> None:
    ran = run(*arguments)
    assert ran.code == code
    assert said in ran.err
    assert "Traceback" not in ran.err
