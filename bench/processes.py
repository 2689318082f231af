"""`polymux serve` in one process and in two: requests and sessions, and the CPU time of each.

The load comes from a process of its own, which neither encodes nor decodes: it writes bytes that
were made before, and counts what comes back. Where there are few cores, it takes CPU time from the
servers all the same. So there are two kinds of lines: what is served in a second, which two
processes can double only where there are cores for them and for the load, and the CPU time that the
server takes for it, which does not depend on that.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench import harness
from bench.byte_traffic import mplex_frame
from bench.harness import Floor, Line, Result, Times

COUNTS: Final = (1, 2)  # processes of a server
MIN_CPU_RATIO: Final = 0.9  # of one process: two take at most 1.11 times its CPU time
MIN_SPEED_RATIO: Final = 1.8  # of one process, where each process and the load have a core
START_SECONDS: Final = 60.0
LENGTH_BITS, ID_BITS = 16, 14
IN_FLIGHT: Final = 16  # requests of a connection
CONTENT: Final = bytes(64)  # of a request, and of the stream of a session


def streamux_request(number: int) -> bytes:
    """A request of one chunk, with this id."""
    header = 1 << LENGTH_BITS + ID_BITS + 1 | len(CONTENT) << ID_BITS | number
    return header.to_bytes(4, "little") + CONTENT


@dataclass(frozen=True)
class Load:
    """What the connections of a load do.

    Attributes:
        protocol: Of the server.
        total: How many requests or sessions a round has.
        connections: At a time.
        opening, opened_bytes: What is sent first, and how much comes back.
        body, answer_bytes: What is sent then, and how much comes back: again and again, or, if
            `is_session`, once in each connection.
        units: How many requests or sessions a body is.
        is_session: Whether each body has a connection of its own.
    """

    protocol: str
    total: int
    connections: int
    opening: bytes
    opened_bytes: int
    body: bytes
    answer_bytes: int
    units: int = 1
    is_session: bool = False


LOADS: Final = {
    "requests": Load(
        "streamux", 128_000, 256, bytes([1, LENGTH_BITS, ID_BITS, 0]), 4,
        b"".join(map(streamux_request, range(IN_FLIGHT))), IN_FLIGHT * (4 + len(CONTENT)),
        IN_FLIGHT,
    ),
    "sessions": Load(
        "mplex", 4_000, 64, b"", 0,
        mplex_frame(0, 0, b"a stream") + mplex_frame(0, 2, CONTENT) + mplex_frame(0, 4),
        len(mplex_frame(0, 1, CONTENT) + mplex_frame(0, 3)), is_session=True,
    ),
}  # fmt: skip


# The process of the load


class Connections:
    """Connections to a server, each with one body under way at a time."""

    def __init__(self, load: Load, port: int) -> None:
        self._load = load
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._missing: dict[socket.socket, int] = {}  # bytes to come of the answer under way
        self._idle = [] if load.is_session else [self._connect() for _ in range(load.connections)]

    def _connect(self) -> socket.socket:
        load = self._load
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(load.opening)
        missing = load.opened_bytes
        while missing:
            missing -= len(sock.recv(missing))
        self._selector.register(sock, selectors.EVENT_READ)
        return sock

    def run(self, total: int) -> None:
        """Send so many bodies, and wait for their answers."""
        load = self._load
        left = total
        while left or self._missing:
            while left and len(self._missing) < load.connections:
                left -= 1
                sock = self._connect() if load.is_session else self._idle.pop()
                sock.sendall(load.body)
                self._missing[sock] = load.answer_bytes
            for key, _ in self._selector.select():
                self._take(key.fileobj)  # type: ignore[arg-type]  # only sockets are registered

    def _take(self, sock: socket.socket) -> None:
        data = sock.recv(65536)
        assert data, "the server has closed a connection"
        self._missing[sock] -= len(data)
        if self._missing[sock]:
            return
        del self._missing[sock]
        if self._load.is_session:
            self._selector.unregister(sock)
            sock.close()
        else:
            self._idle.append(sock)


def make_load(name: str, port: int) -> None:
    """Run as many bodies as each line of standard input says, and print a line after them."""
    connections = Connections(LOADS[name], port)
    for line in sys.stdin:
        connections.run(int(line))
        print("done", flush=True)


# The process that starts it and the servers


@dataclass
class Measured:
    """A server and its load.

    `times` has the CPU time of the server's processes; `load_cpu` that of the load.
    """

    server: psutil.Process
    load: subprocess.Popen[str]
    times: Times
    load_cpu: float = 0.0

    def run(self, total: int) -> None:
        processes = [self.server, *self.server.children()]
        load = psutil.Process(self.load.pid)
        assert self.load.stdin is not None
        assert self.load.stdout is not None
        began, cpu, load_cpu = time.perf_counter(), cpu_seconds(processes), cpu_seconds([load])
        self.load.stdin.write(f"{total}\n")
        self.load.stdin.flush()
        assert self.load.stdout.readline() == "done\n"
        wall = time.perf_counter() - began
        self.times.add(wall, cpu_seconds(processes) - cpu)
        self.load_cpu += cpu_seconds([load]) - load_cpu


def cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


@contextlib.contextmanager
def started(name: str, count: int, folder: Path) -> Iterator[Measured]:
    """Start `polymux serve` with so many processes, and a load for it."""
    said = folder / f"{name}-{count}"
    command = [sys.executable, "-m", "polymux", "serve", "tcp://127.0.0.1:0", "--action", "echo"]
    options = ["--protocol", LOADS[name].protocol, "--processes", str(count)]
    with said.open("w") as file:
        server = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stderr=file)
    load = None
    try:
        port = port_of(said)
        load = subprocess.Popen(
            [sys.executable, "-m", "bench.processes", name, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parent.parent,
        )  # fmt: skip
        yield Measured(psutil.Process(server.pid), load, Times())
    finally:
        if load is not None:
            load.kill()
            load.communicate()
        server.terminate()
        server.wait()


def port_of(said: Path) -> int:
    """The port that a server says it listens at."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if found := re.search(r"listening at tcp://127\.0\.0\.1:(\d+)", said.read_text()):
            return int(found[1])
        time.sleep(0.05)
    raise RuntimeError(f"polymux serve did not start: {said.read_text().strip()}")


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder:
        return [line for name in LOADS for line in measure_load(name, Path(folder))]


def measure_load(name: str, folder: Path) -> list[Line]:
    load = LOADS[name]
    bodies = harness.EFFORT.scaled(load.total // load.units)
    with contextlib.ExitStack() as stack:
        servers = {count: stack.enter_context(started(name, count, folder)) for count in COUNTS}
        for server in servers.values():
            server.run(bodies)  # not counted
            server.times, server.load_cpu = Times(), 0.0
        for turn in harness.EFFORT.round_numbers(len(servers)):
            shift = turn % len(COUNTS)
            for count in COUNTS[shift:] + COUNTS[:shift]:
                servers[count].run(bodies)
    one, two = (servers[count] for count in COUNTS)
    amount = bodies * load.units
    cores = os.cpu_count() or 1
    enough = cores > max(COUNTS)
    share = two.load_cpu / sum(two.times.wall)
    served = Floor("1 process", one.times, MIN_SPEED_RATIO if enough else None)
    cost = Floor("1 process", one.times, MIN_CPU_RATIO)
    note = f"{cores} cores, of which the load took {share:.2f}"
    return [
        Line(f"{name}, 2 processes", two.times, amount, "1/s", [served], "wall", 1.0, note),
        Line(f"CPU of {name}, 2 processes", two.times, amount, "ns", [cost], "cpu"),
    ]


if __name__ == "__main__":
    make_load(sys.argv[1], int(sys.argv[2]))
