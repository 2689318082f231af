"""Thousands of live sessions with traffic on one server, first alone, then beside hostile peers.

    python -m tools.many_sessions --minutes 10

The server is a process of its own, and so are its clients: four with honest sessions, and in the
second part one with hostile peers, a tenth of all. Each honest session keeps a stream open on which
it sends a message and waits for its echo, about every ten seconds; one in ten sends 16 KiB. A
hostile peer commits one of the attacks in `HOSTILE`, and another one some seconds after the server
has closed it or it has finished. Hostile peers have machines of their own in reality: here their
process has the lowest priority, so that what is measured is what they do to the server, not that
they take the processors of those who measure.

Printed are the memory for each session, the time of an echo (median and 99th percentile), the
slowest session against the median one, Jain's index of the messages that the sessions got through,
and the growth of memory. With hostile peers, the honest sessions have to keep their 99th percentile
within twice that of the first part. In both parts they have to be served alike, and the memory has
to stay. Runs below a minute, or with few sessions, say nothing about either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from tests.record.certificate_authority import Authority

import polymux
from polymux.record.tls_contexts import server_context

ROOT = Path(__file__).parents[1]
SESSIONS = 5000
CLIENTS = 4  # processes
PING_SECONDS = 10.0  # between two messages of a session, on average
PING, BULK = bytes(64), bytes(16 * 1024)
CONNECTING = 32  # connections that a process opens at a time
REST_SECONDS = 10.0  # of a hostile peer, between two attacks
STARTING_SECONDS = 300.0
WARM_UP_SHARE = 0.25  # part of the time before memory is compared
MAX_GROWTH_KIB_PER_SESSION = 1.0  # after the warm-up
MAX_RATIO = 2.0  # of the 99th percentiles
MIN_FAIRNESS = 0.95  # Jain's index: 1 if all sessions get through as many messages
FIRST_CHUNK = 64 * 1024
RARE_COLLECTIONS = (50_000, 20, 1000)
KIB = 1024


# The server


async def run_server() -> None:
    logging.getLogger("polymux").setLevel(logging.ERROR)  # a line for each hostile peer otherwise
    gc.set_threshold(*RARE_COLLECTIONS)  # as docs/howto/latency.md advises

    async def echo(stream: polymux.Stream) -> None:
        async for piece in stream:
            await stream.send(piece)
        await stream.end()

    async def handle(session: polymux.Session) -> None:
        await session.serve_streams(echo)

    limits = polymux.Limits(max_sessions=4 * SESSIONS, max_sessions_per_address=4 * SESSIONS)
    serve = partial(polymux.serve, handle, protocol="mplex", limits=limits, busy_poll=0)
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority(Path(folder) / "authority")
        tls = server_context(authority.cert, authority.key)
        async with (
            serve("tcp://127.0.0.1:0") as server,
            serve("tls://127.0.0.1:0", tls=tls) as secure,
        ):
            print(server.port, secure.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


# Honest clients


async def run_honest(port: int, count: int, seconds: float) -> None:
    """Open sessions, print `ready`, wait for a line, send messages, print the times as JSON."""
    room = asyncio.Semaphore(CONNECTING)
    sessions: list[polymux.Session] = []

    async def open_one() -> None:
        async with room:
            sessions.append(
                await polymux.connect(
                    f"tcp://127.0.0.1:{port}", protocol="mplex", timeout=60, busy_poll=0
                )
            )

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(open_one())
    streams = [await session.open("ping") for session in sessions]
    for stream in streams:  # the server has them all
        await echoed(stream, PING)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    gc.collect()
    gc.disable()  # a collection here would count as time of the server
    until = time.monotonic() + seconds
    times: list[list[float]] = [[] for _ in streams]
    failures: list[str] = []

    async def talk(number: int) -> None:
        chance = random.Random(number)
        data = BULK if number % 10 == 0 else PING
        await asyncio.sleep(chance.random() * PING_SECONDS)
        try:
            while time.monotonic() < until:
                began = time.perf_counter()
                await echoed(streams[number], data)
                times[number].append(time.perf_counter() - began)
                await asyncio.sleep(PING_SECONDS * chance.uniform(0.5, 1.5))
        except polymux.PolymuxError as problem:
            failures.append(str(problem))

    await asyncio.gather(*(talk(number) for number in range(count)))
    print(json.dumps({"times": times, "failures": failures}), flush=True)
    for session in sessions:
        session.abort("the run is over")


async def echoed(stream: polymux.Stream, data: bytes) -> None:
    """Send a message and wait until it has come back."""
    await stream.send(data)
    left = len(data)
    while left:
        left -= len(await stream.receive())


# Hostile peers: each gets a reader and a writer, and may send until it is closed


def frame(number: int, flag: int, content: bytes = b"") -> bytes:
    """An mplex frame with a small id."""
    return varint(number << 3 | flag) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


HALF_CLIENT_HELLO = bytes.fromhex("16 03 01 02 00 01 00 01 fc 03 03") + bytes(32)

HOSTILE: dict[str, tuple[list[bytes], bool]] = {
    # pieces to send one after another, and whether the server's answers are read
    "open and reset": ([frame(n, 0, b"x") + frame(n, 6) for n in range(4000)], True),
    "open and never use": ([frame(n, 0, b"x") for n in range(4000)], True),
    "answers that are not read": (
        [frame(1, 0, b"x"), *(frame(1, 2, bytes(8000)) for _ in range(200))], False),
    "a length of gigabytes": ([frame(1, 0, b"x"), b"\x0a\xff\xff\xff\xff\x0f"], True),
    "half a frame": ([frame(1, 0, b"x"), b"\x0a\x40half"], True),
    "nothing at all": ([], True),
    "a byte a frame": ([frame(1, 0, b"x"), *(frame(1, 2, b"x") for _ in range(4000))], True),
    "empty frames": ([frame(1, 0, b"x"), *(frame(1, 2) for _ in range(4000))], True),
    "streams that are not there": ([frame(n, 2, b"x") for n in range(2, 4000)], True),
    "another protocol": ([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"], True),
    "names of a megabyte": ([frame(1, 0, bytes(1 << 20))], True),
    "a stream used after its end": (
        [frame(1, 0, b"x"), frame(1, 4), *(frame(1, 2, b"late") for _ in range(500))], True),
    "tiny answers that are not read": (
        [frame(1, 0, b"x"), *(frame(1, 2, b"x") for _ in range(20_000))], False),
    "tiny answers of many streams that are not read": (
        [*(frame(n, 0, b"x") for n in range(500)),
         *(frame(n, 2, b"x") for _ in range(20) for n in range(500))], False),
    "TLS that is silent": ([], True),
    "TLS with half a handshake": ([HALF_CLIENT_HELLO], True),
}  # fmt: skip


async def run_hostile(port: int, secure_port: int, count: int, seconds: float) -> None:
    """Attack until the time is over, and print how often."""
    os.nice(40)  # the lowest priority there is
    until = time.monotonic() + seconds
    attacks: dict[str, int] = dict.fromkeys(HOSTILE, 0)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    async def attack_again(number: int) -> None:
        chance = random.Random(number)
        name = list(HOSTILE)[number % len(HOSTILE)]
        await asyncio.sleep(chance.random() * REST_SECONDS)
        while time.monotonic() < until:
            attacks[name] += 1
            with contextlib.suppress(OSError):
                where = secure_port if name.startswith("TLS") else port
                await attack(where, *HOSTILE[name], REST_SECONDS)
            await asyncio.sleep(REST_SECONDS * chance.uniform(0.5, 1.5))

    await asyncio.gather(*(attack_again(number) for number in range(count)))
    print(json.dumps(attacks), flush=True)


async def attack(port: int, pieces: list[bytes], reads: bool, hold: float) -> None:
    """Send everything, then hold the connection for a while, unless the server closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=FIRST_CHUNK)
    try:
        async with asyncio.timeout(hold):
            batch = bytearray()
            for piece in pieces:
                batch += piece
                if len(batch) >= FIRST_CHUNK:
                    writer.write(bytes(batch))
                    batch.clear()
                    await writer.drain()
            writer.write(bytes(batch))
            if not reads:
                await asyncio.sleep(hold)
            while await reader.read(FIRST_CHUNK):
                pass
    except TimeoutError:
        pass
    finally:
        writer.transport.abort()


# The run


@dataclass
class Part:
    """The figures of one part of the run."""

    title: str
    session_kib: float = 0.0  # memory of the server for each session
    growth_kib: float = 0.0  # for each session, after the warm-up
    times: list[list[float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    attacks: int = 0
    server_cpu: float = 0.0  # share of a processor

    def percentile(self, share: float) -> float:
        """Milliseconds of an echo."""
        found = sorted(value for own in self.times for value in own)
        return found[int(len(found) * share)] * 1000 if found else 0.0

    def slowest(self) -> float:
        """The mean time of the slowest session, against the median of all."""
        means = [statistics.fmean(own) for own in self.times if own]
        return max(means) / statistics.median(means) if means else 0.0

    def fairness(self) -> float:
        """Jain's index of the echoes that the sessions got."""
        counts = [len(own) for own in self.times]
        squares = len(counts) * sum(count * count for count in counts)
        return sum(counts) ** 2 / squares if squares else 0.0

    def unserved(self) -> int:
        """Sessions that got no answer."""
        return sum(not own for own in self.times)

    def line(self) -> str:
        hostile = f", {self.attacks} attacks" if self.attacks else ""
        return (
            f"R30 {self.title}: {len(self.times)} honest sessions, "
            f"{sum(map(len, self.times))} echoes, {len(self.failures)} failed, "
            f"{self.unserved()} without an answer{hostile}; "
            f"{self.session_kib:.1f} KiB a session, growth {self.growth_kib:+.2f} KiB; "
            f"p50 {self.percentile(0.5):.2f} ms, p99 {self.percentile(0.99):.2f} ms, slowest "
            f"session {self.slowest():.1f} times the median, Jain's index {self.fairness():.3f}; "
            f"server at {self.server_cpu:.0%}"
        )


@contextlib.asynccontextmanager
async def role(name: str, *arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run one of the processes; it is killed at the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tools.many_sessions", "--role", name, *map(str, arguments),
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 28,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def line_of(process: asyncio.subprocess.Process, seconds: float) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(seconds):
        line = await process.stdout.readline()
    assert line, "a process has ended early"
    return line.decode().strip()


async def run_part(title: str, honest: int, hostile: int, seconds: float) -> Part:
    part = Part(title)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(role("server"))
        port, secure_port = map(int, (await line_of(server, STARTING_SECONDS)).split())
        process = psutil.Process(server.pid)
        empty = process.memory_info().rss
        clients = [
            await stack.enter_async_context(role("honest", port, honest // CLIENTS, seconds))
            for _ in range(CLIENTS)
        ]
        for client in clients:
            await line_of(client, STARTING_SECONDS)
        part.session_kib = (process.memory_info().rss - empty) / KIB / honest
        foes = []
        if hostile:
            attacker = role("hostile", port, secure_port, hostile, seconds)
            foes.append(await stack.enter_async_context(attacker))
            await line_of(foes[0], STARTING_SECONDS)
        cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
        for each in (*clients, *foes):
            assert each.stdin is not None
            each.stdin.write(b"go\n")
        samples = await sample_memory(process, seconds)
        part.server_cpu = (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began)
        part.growth_kib = growth(samples) / KIB / honest
        for client in clients:
            said: dict[str, Any] = json.loads(await line_of(client, STARTING_SECONDS))
            part.times += said["times"]
            part.failures += said["failures"]
        for foe in foes:
            part.attacks = sum(json.loads(await line_of(foe, STARTING_SECONDS)).values())
    return part


async def sample_memory(process: psutil.Process, seconds: float) -> list[int]:
    """The server's memory, twice a second."""
    samples: list[int] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        samples.append(process.memory_info().rss)
        await asyncio.sleep(0.5)
    return samples


def growth(samples: list[int]) -> float:
    """How much more memory there is in the last quarter of a run than in the second."""
    quarter = max(1, int(len(samples) * WARM_UP_SHARE))
    return statistics.median(samples[-quarter:]) - statistics.median(
        samples[quarter : 2 * quarter] or samples
    )


async def run(seconds: float, sessions: int = SESSIONS) -> tuple[bool, list[str]]:
    """Run both parts. Return whether all bounds hold, and the lines to print."""
    hostile = sessions // 10
    calm = await run_part("alone", sessions, 0, seconds)
    attacked = await run_part("attacked", sessions - hostile, hostile, seconds)
    ratio = attacked.percentile(0.99) / max(1e-9, calm.percentile(0.99))
    fine = ratio <= MAX_RATIO
    for part in (calm, attacked):
        fine &= not part.failures and not part.unserved()
        fine &= part.fairness() >= MIN_FAIRNESS
        fine &= part.growth_kib <= MAX_GROWTH_KIB_PER_SESSION
    lines = [
        calm.line(),
        attacked.line(),
        f"R30: p99 of the honest sessions beside hostile ones is {ratio:.2f} times that without "
        f"(at most {MAX_RATIO:g}), {seconds:.0f} s each",
    ]
    return fine, [*lines, *calm.failures[:3], *attacked.failures[:3]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.many_sessions", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each of the two parts")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--role", choices=("server", "honest", "hostile"), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "server":
        asyncio.run(run_server())
        return 0
    if options.role:
        *numbers, seconds = options.rest
        chosen: Any = run_honest if options.role == "honest" else run_hostile
        asyncio.run(chosen(*map(int, numbers), float(seconds)))
        return 0
    fine, lines = asyncio.run(run(options.minutes * 60, options.sessions))
    print("\n".join(lines))
    print("pass" if fine else "FAIL")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
