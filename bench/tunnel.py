"""The tunnel beside `ssh -L`, in clear text and with TLS, and 1,000 connections with one stuck."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import trustme
from bench import harness
from bench.fairness import percentile
from bench.harness import Bound, Figure, Floor, Line, NotMeasured, Result

TRANSFER_BYTES = 512 << 20
BLOCK_BYTES = 1 << 20
CONNECTIONS = 1000
PINGS = 3000
PING_ROUNDS = 5
MAX_P99_FACTOR = 2.0  # of the value while no connection is stuck
TOKEN = "a token of the benchmark"
START_SECONDS = 20.0
STUCK = b"S"  # as the first byte: the target reads nothing more
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin"


class TargetServer:
    """The target of all tunnels, in a process of its own: `python -m bench.tunnel`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.tunnel"], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def serve_target() -> None:
    """Answer the end of what comes with a byte, or echo single bytes; print the port."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listening.getsockname()[1], flush=True)
    threading.stack_size(256 * 1024)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


def answer(connection: socket.socket) -> None:
    """`P`: echo each byte. `S`: read nothing more. Anything else: count, and answer the end."""
    buffer = bytearray(BLOCK_BYTES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError), connection:
        first = connection.recv(1)
        if first == STUCK:
            threading.Event().wait()
        if first == b"P":
            while data := connection.recv(1):
                connection.sendall(data)
            return
        while connection.recv_into(buffer):
            pass
        connection.sendall(b"!")


def transfer(port: int, size: int) -> None:
    """Send `size` bytes through a tunnel, and wait until the target has read them."""
    block = bytes(BLOCK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for _ in range(size // BLOCK_BYTES):
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b"!"


def start(arguments: list[str], pattern: str) -> tuple[subprocess.Popen[str], re.Match[str]]:
    """Start a command of polymux; return it and the line of standard error that has the pattern."""
    process = subprocess.Popen(
        [sys.executable, "-m", "polymux", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = ""
    for line in process.stderr:
        if found := re.search(pattern, line):
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, found
    raise RuntimeError(f"polymux {arguments[0]} did not start: {line.strip()}")


@contextlib.contextmanager
def tunnel(target: int, folder: Path, tls: bool) -> Iterator[int]:
    """A tunnel to the target; yields its local port."""
    serving, dialing = ["tcp://127.0.0.1:0"], []
    if tls:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.pem")
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        (folder / "token").write_text(TOKEN)
        for name in ("key.pem", "token"):
            (folder / name).chmod(0o600)
        token = ["--token-file", str(folder / "token")]
        certificate = ["--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem")]
        serving = ["tls://127.0.0.1:0", *certificate, *token]
        dialing = ["--ca", str(folder / "ca.pem"), *token]
    server, found = start(
        ["tunnel", "serve", *serving, "--allow", f"127.0.0.1:{target}"], r"listening at (\S+)"
    )
    client, bound = start(
        ["tunnel", "connect", found[1], "-L", f"0:127.0.0.1:{target}", *dialing],
        r"listening at 127\.0\.0\.1:(\d+)",
    )
    try:
        yield int(bound[1])
    finally:
        for process in (client, server):
            process.kill()
            process.wait()


@contextlib.contextmanager
def ssh_tunnel(target: int, folder: Path) -> Iterator[int]:
    """`ssh -L` to the target, by an OpenSSH server with its own key; yields its local port."""
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
        )
    shutil.copy(folder / "user.pub", folder / "authorized")
    port, local = free_port(), free_port()
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nPidFile none\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nPasswordAuthentication no\n"
        "AllowTcpForwarding local\nPermitRootLogin prohibit-password\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    sshd = subprocess.Popen(
        [str(shutil.which("sshd", path=SEARCHED)), "-D", "-e", "-f", str(folder / "sshd_config")],
        stderr=subprocess.DEVNULL,
    )
    wait_for(port)
    ssh = subprocess.Popen(
        ["ssh", "-N", "-i", str(folder / "user"), "-p", str(port), "-o", "BatchMode=yes",
         "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-F", "/dev/null",
         "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{local}:127.0.0.1:{target}",
         "127.0.0.1"], stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(local)
        yield local
    finally:
        for process in (ssh, sshd):
            process.terminate()
            process.wait()


def missing_ssh() -> str | None:
    """Why OpenSSH is not available, or None."""
    if not harness.EFFORT.third_party:
        return "left out by wish"
    for name in ("ssh", "ssh-keygen", "sshd"):
        if shutil.which(name, path=SEARCHED) is None:
            return f"{name} is not installed"
    return None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


def wait_for(port: int) -> None:
    """Wait until something listens on a port."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens on port {port} after {START_SECONDS:g} s")


def measure() -> list[Result]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="polymux-bench-")))
        for name in ("clear", "tls", "ssh"):
            (folder / name).mkdir(mode=0o700)
        target = TargetServer()
        stack.callback(target.close)
        ports = {
            "clear": stack.enter_context(tunnel(target.port, folder / "clear", tls=False)),
            "tls": stack.enter_context(tunnel(target.port, folder / "tls", tls=True)),
        }
        reason = missing_ssh()
        if reason is None:
            ports["ssh"] = stack.enter_context(ssh_tunnel(target.port, folder / "ssh"))
        ports["direct"] = target.port
        lines = throughput(ports, harness.EFFORT.scaled(TRANSFER_BYTES, BLOCK_BYTES))
        if reason is not None:
            lines.append(NotMeasured("ssh -L", reason))
        return [*lines, many_connections(ports["clear"])]


def throughput(ports: dict[str, int], size: int) -> list[Result]:
    """One connection through each, alternating."""

    def sender(port: int) -> Callable[[], object]:
        return lambda: transfer(port, size)

    times = harness.measure_alternating({name: sender(port) for name, port in ports.items()})
    floors = [Floor("without a tunnel", times["direct"])]
    if "ssh" in times:
        floors.insert(0, Floor("ssh -L", times["ssh"], 1.0))
    return [
        Line(f"one connection, {text}", times[name], size, "MB/s", floors, "wall", 1e6, "yamux")
        for name, text in (("clear", "clear text"), ("tls", "TLS"))
    ]


def many_connections(port: int) -> Figure:
    """The 99th percentile of pings over many connections, without and with a stuck one."""
    count = harness.EFFORT.scaled(CONNECTIONS)
    sockets = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(b"P")
        sockets.append(sock)
    stuck = socket.create_connection(("127.0.0.1", port))
    pings = harness.EFFORT.scaled(PINGS)
    ping_p99(sockets, pings)  # every connection is in use
    idle, held = [], []
    for _ in range(PING_ROUNDS):
        idle.append(ping_p99(sockets, pings))
    stuck.sendall(STUCK)
    filling = threading.Thread(target=fill, args=(stuck,), daemon=True)
    filling.start()
    time.sleep(1)
    for _ in range(PING_ROUNDS):
        held.append(ping_p99(sockets, pings))
    stuck.close()
    for sock in sockets:
        sock.close()
    bound = Bound("twice the idle value", MAX_P99_FACTOR * sorted(idle)[len(idle) // 2], 1.0)
    return Figure(f"ping p99 of {count:,} connections, another one not read", held, "us", [bound])


def fill(sock: socket.socket) -> None:
    """Send until the connection is closed."""
    with contextlib.suppress(OSError):
        while True:
            sock.sendall(bytes(65536))


def ping_p99(sockets: list[socket.socket], pings: int) -> float:
    """Ping the connections one by one, in a random order; return the 99th percentile in us."""
    chosen = random.Random(1)
    times = []
    for _ in range(pings):
        sock = chosen.choice(sockets)
        began = time.perf_counter()
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
        times.append(time.perf_counter() - began)
    return percentile(times, 99) * 1e6


if __name__ == "__main__":
    serve_target()
