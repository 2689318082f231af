"""Programs that speak TLS, as peers: OpenSSL's tools, Node, nginx, and Python's `ssl`.

Every server listens on a Unix socket, behind a `Tap`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from tests.interop.tls_tap import PATIENCE_SECONDS, Tap

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
ECDSA_SUITES = tuple(suite for suite in TLS12_SUITES if "ECDSA" in suite)


def need(tool: str) -> str:
    """The path of a tool; without it the test is skipped, or fails with POLYMUX_NO_SKIP=1."""
    path = shutil.which(tool) or shutil.which(tool, path="/usr/sbin:/usr/local/sbin")
    if path is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail(f"{tool} is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip(f"{tool} is not installed")
    return path


def wait_until(condition: Callable[[], bool], what: str = "the peer's answer") -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


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

    def for_suite(self, suite: str) -> str:
        """The certificate that a suite needs."""
        return self.paths["RSA" if "RSA" in suite or suite == "AES128-GCM-SHA256" else "ECDSA"]

    def client_context(self, key_log: Path) -> ssl.SSLContext:
        """A context of Python's `ssl` that trusts them."""
        context = ssl.create_default_context(cafile=self.ca)
        context.keylog_filename = str(key_log)
        return context


@contextlib.contextmanager
def tapped(*command: str) -> Iterator[tuple[Tap, Path]]:
    """A server program behind a tap, and the file it prints to; SOCKET in its command is replaced.

    The path of the socket is short: the system allows a hundred bytes.
    """
    with tempfile.TemporaryDirectory(prefix="tls-") as folder:
        path, printed = os.path.join(folder, "socket"), Path(folder, "printed")
        with printed.open("wb") as out:
            process = subprocess.Popen(
                [word.replace("SOCKET", path) for word in command],
                stdin=subprocess.PIPE, stdout=out, stderr=out,
            )  # fmt: skip
        tap = Tap(path)
        try:
            yield tap, printed
        finally:
            tap.close()
            process.kill()
            process.communicate()


def openssl_server(*options: str) -> contextlib.AbstractContextManager[tuple[Tap, Path]]:
    """`openssl s_server` with a certificate and more options, behind a tap."""
    return tapped(need("openssl"), "s_server", "-unix", "SOCKET", *options)


class OpensslClient:
    """`openssl s_client`, whose commands are single letters at the start of a line.

    `answer` is what the server answers to a line.
    """

    def __init__(
        self, tap: Tap, folder: Path, *options: str, answer: Callable[[bytes], bytes] | None = None
    ) -> None:
        number = len(list(folder.glob("out-*")))
        self.key_log = folder / f"keys-{number}.log"
        self._out = folder / f"out-{number}"
        self._answer = answer or (lambda line: line[::-1])
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [need("openssl"), "s_client", "-connect", f"127.0.0.1:{tap.port}", "-servername",
                 "localhost", "-keylogfile", str(self.key_log), *options],
                stdin=subprocess.PIPE, stdout=out, stderr=out,
            )  # fmt: skip
        self.sent = b""
        self.answered = b""  # what the server sent
        self._updates = 0

    def printed(self) -> bytes:
        return self._out.read_bytes()

    def type(self, data: bytes) -> None:
        """Type something on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def say(self, line: str) -> None:
        """Send a line that was not sent before and wait for the answer."""
        answer = self._answer(line.encode())
        assert answer not in self.printed()
        self.type(line.encode() + b"\n")
        self.sent += line.encode() + b"\n"
        self.answered += answer + b"\n"
        self.wait_for(answer)

    def wait_for(self, text: bytes) -> None:
        """Wait until it has printed this."""
        wait_until(lambda: text in self.printed())

    def update_keys(self, letter: str) -> None:
        """Update its keys, with K the server's too."""
        self.type(letter.encode() + b"\n")
        self._updates += 1
        wait_until(lambda: self.printed().count(b"KEYUPDATE") >= self._updates)

    def finish(self) -> None:
        """Quit, as a command: what was typed before has been sent."""
        self.type(b"Q\n")
        self.process.wait(PATIENCE_SECONDS)


class PythonServer:
    """An echo server of Python's `ssl` behind a tap, one connection after another."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tls-")
        path = os.path.join(self._folder.name, "socket")
        self._context = context
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self.tap = Tap(path)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), plain:
                with self._context.wrap_socket(plain, server_side=True) as channel:
                    while data := channel.recv(65536):
                        channel.sendall(data)
                    channel.unwrap()

    def __enter__(self) -> Tap:
        return self.tap

    def __exit__(self, *_: object) -> None:
        self.tap.close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._folder.cleanup()


class Nginx:
    """nginx, terminating TLS on a Unix socket for each server; its files are in `folder`.

    Args:
        folder: For its configuration and logs; `files` in it is served at `/`.
        servers: Directives of each server beyond its socket.
    """

    def __init__(self, folder: Path, servers: list[str]) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="tls-")
        self.paths = [os.path.join(self._sockets.name, str(n)) for n in range(len(servers))]
        self.files = folder / "files"
        self.files.mkdir(exist_ok=True)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        blocks = "\n".join(
            f"server {{ listen unix:{path} ssl; root {folder}/files; {directives} }}"
            for path, directives in zip(self.paths, servers, strict=True)
        )
        config = folder / "nginx.conf"
        config.write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/errors;\n"
            f"events {{}}\nhttp {{ access_log off; keepalive_timeout 600;\n{temporary}\n{blocks} }}"
        )
        self._errors = folder / "errors"
        self._process = subprocess.Popen(
            [need("nginx"), "-p", str(folder), "-e", str(self._errors), "-c", str(config)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        wait_until(
            lambda: self._process.poll() is not None or all(map(os.path.exists, self.paths)),
            "nginx",
        )
        if self._process.poll() is not None:
            pytest.fail(f"nginx ended: {self._process.communicate()[1].decode()}")

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._sockets.cleanup()
