"""Workers of `--processes` that are killed one after another, under load.

What was answered, forwarded or confirmed is there; no counter decreases; the parent does not grow;
no process and no descriptor is left. With POLYMUX_SOAK 100 kills of each command.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.record.collector.logging_senders import Attempt, Sender
from tests.record.collector.test_kill import contents
from tests.running_command import Running, until

import polymux

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
KIB, MIB = 1024, 1024 * 1024
HERE = "tcp://127.0.0.1:0"
COUNT = 2  # workers
CLIENTS = 4
KILLS = 100 if SOAK else 4
WARM_UP = 2 + KILLS // 5  # kills before the memory of the parent is measured
MAX_GROWTH_BYTES = MIB  # of the parent, after that
PAUSE = 0.5  # seconds between two kills, at most
STARTED = "RESTART_SECONDS = 0.05"  # else most of the time one worker only would run
ENDED = (polymux.PolymuxError, OSError, ExceptionGroup)

pytestmark = pytest.mark.timeout(1200 if SOAK else 120)


class Watch:
    """What is to hold of the parent after each kill.

    Attributes:
        kills: So far.
        growth: Bytes by which the parent has grown since the warm-up.
    """

    def __init__(self, running: Running, name: str) -> None:
        self.kills = 0
        self.growth = 0
        self._running = running
        self._chance = Random(None if SOAK else name)
        self._counters = running.counters()
        self._descriptors = running.parent.num_fds()
        self._memory = 0

    def kill(self) -> None:
        """Kill a worker, or stop it, and wait until there is another one."""
        running = self._running
        victim = self._chance.choice(running.workers())
        stopped = self._chance.random() < 0.2
        running.kill_worker(signal.SIGTERM if stopped else signal.SIGKILL, victim)
        self.kills += 1
        counters = running.counters()
        fewer = {key: (value, counters.get(key)) for key, value in self._counters.items()
                 if counters.get(key, -1) < value}  # fmt: skip
        assert not fewer, "a counter decreases"
        self._counters = counters
        memory = private_bytes(running)
        if self.kills <= WARM_UP:
            self._memory = max(self._memory, memory)
        self.growth = max(self.growth, memory - self._memory)

    def settle(self) -> None:
        """After the last kill: all workers run, and nothing is left of the others."""
        running = self._running
        until(lambda: len(running.workers()) == COUNT, running.err)
        until(lambda: running.parent.num_fds() <= self._descriptors, "a descriptor is left")
        assert self.growth <= MAX_GROWTH_BYTES

    def line(self, command: str, what: str) -> str:
        return (
            f"R32 {command}: {self.kills} kills, {what}, parent +{self.growth / MIB:.2f} MiB of "
            f"{self._memory / MIB:.0f}, {self._descriptors} descriptors"
        )


def private_bytes(running: Running) -> int:
    info = running.parent.memory_info()
    return int(info.rss - info.shared)


async def kill_under_load(watch: Watch, load: Callable[[int], Awaitable[None]]) -> None:
    """Run `load` for each client, with its number, while workers are killed, and a little longer.

    It is called again and again, and may fail while it is not cancelled.
    """
    chance = Random(7)
    over = False

    async def client(number: int) -> None:
        while not over:
            with contextlib.suppress(*ENDED):
                await load(number)

    async with asyncio.TaskGroup() as clients:
        for number in range(CLIENTS):
            clients.create_task(client(number))
        try:
            for _ in range(KILLS):
                await asyncio.sleep(chance.random() * PAUSE)
                await asyncio.to_thread(watch.kill)
            await asyncio.sleep(PAUSE)
        finally:
            over = True
    await asyncio.to_thread(watch.settle)


async def ask(url: str, name: str, data: bytes) -> None:
    """Send this in a session of its own; it is to come back."""
    async with polymux.connect(url, protocol="mplex") as session:
        stream = await session.open(name)
        await stream.send(data)
        await stream.end()
        assert await stream.receive_all() == data


def data_of(name: str) -> bytes:
    chance = Random(name)
    return chance.randbytes(chance.randrange(1, 20_000))


async def echo(stream: polymux.Stream) -> None:
    async for chunk in stream:
        await stream.send(chunk)
    await stream.end()


def arguments(*more: str, protocol: str = "mplex") -> tuple[str, ...]:
    return (*more, "--protocol", protocol, "--processes", str(COUNT), "--metrics", "127.0.0.1:0")


async def test_a_server_answers_while_its_processes_are_killed() -> None:
    answered = asked = 0

    async def load(number: int) -> None:
        nonlocal answered, asked
        asked += 1
        name = f"{number}.{asked}"
        await ask(running.url, name, data_of(name))
        answered += 1

    with Running(*arguments("serve", HERE, "--action", "echo"), patched=STARTED) as running:
        watch = Watch(running, "serve")
        await kill_under_load(watch, load)
        assert await asyncio.to_thread(running.stop) == 0, running.err
    print(watch.line("serve", f"{answered} of {asked} sessions answered"))
    assert answered >= asked - (watch.kills + 1) * CLIENTS
    assert answered > watch.kills


async def test_what_a_recorder_has_forwarded_is_in_its_captures(tmp_path: Path) -> None:
    answered: set[str] = set()
    asked = 0

    async def load(number: int) -> None:
        nonlocal asked
        asked += 1
        name = f"{number}.{asked}"
        await ask(running.url, name, data_of(name))
        answered.add(name)

    async with polymux.serve(
        lambda session: session.serve_streams(echo), HERE, protocol="mplex"
    ) as server:
        folder = tmp_path / "captures"
        folder.mkdir()
        with Running(
            *arguments("record", HERE, server.url, "-o", str(folder / "day.pcapng")),
            patched=STARTED,
        ) as running:
            watch = Watch(running, "record")
            await kill_under_load(watch, load)
            assert await asyncio.to_thread(running.stop) == 0, running.err
    print(watch.line("record", f"{len(answered)} of {asked} sessions answered"))
    assert list(folder.glob("day*.part")) == []
    found = contents(folder)
    assert all(found.get(name) == data_of(name) for name in answered)
    assert all(data_of(name).startswith(data) for name, data in found.items() if name)
    assert len(answered) >= asked - (watch.kills + 1) * CLIENTS


async def test_what_a_collector_has_confirmed_is_in_its_captures(tmp_path: Path) -> None:
    log: list[Attempt] = []
    sent = 0

    async def load(number: int) -> None:
        """Streams of four seconds each, which learn all the time how much is durable."""
        nonlocal sent
        sent += 1
        sender = Sender(1000 * sent + number, running.url, "nerdbank", 3, 400_000, rest=0.2)
        try:
            await sender.run()
        finally:
            log.extend(sender.log)

    folder = tmp_path / "captures"
    with Running(
        *arguments("collect", "--listen", HERE, "--out", str(folder), "--rotate-size", "1M",
                   protocol="nerdbank"),
        patched=STARTED,
    ) as running:  # fmt: skip
        watch = Watch(running, "collect")
        await kill_under_load(watch, load)
        assert await asyncio.to_thread(running.stop) == 0, running.err
    done = sum(attempt.done for attempt in log)
    told = sum(attempt.told for attempt in log)
    print(watch.line("collect", f"{done} of {len(log)} streams complete, {told} bytes confirmed"))
    assert [path.name for path in folder.glob("collect*.part")] == []
    found = contents(folder)
    assert done >= CLIENTS
    for attempt in log:
        data = found.get(attempt.name, b"")
        assert attempt.data.startswith(data), f"{attempt.name}: there are bytes nobody sent"
        assert len(data) >= attempt.told, f"{attempt.name}: told of more than is there"
