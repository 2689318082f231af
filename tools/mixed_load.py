"""Mixed load on every protocol at once, and the memory growth it causes.

Each protocol has a server in a process of its own. Its client keeps opening streams: most are small
and answered, some are large, some are aborted half-way by either side. The memory of each server is
measured after each session; after a warm-up it must not grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.attacks.target import Target, Zygote

import polymux
from polymux import MinmuxSession, OmnistreamsSession, Session, StreamuxSession, YamuxSession

MIB = 1024 * 1024
PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
             "omnistreams", "streamux", "minmux", "yamux"]  # fmt: skip
CONCURRENT_EXCHANGES = 4  # per session
WARM_UP_SHARE = 0.4  # part of the time that is not measured
MAX_GROWTH_MIB_PER_HOUR = 1.0
NOISE_MIB = 0.75  # MiB by which a heap varies without growing


@dataclass
class ProtocolRun:
    """The counters of one protocol's run."""

    protocol: str
    streams: int = 0
    total_bytes: int = 0
    problems: list[str] = field(default_factory=list)
    memory_samples: list[tuple[float, float]] = field(default_factory=list)  # seconds, MiB

    def growth(self) -> float:
        """MiB per hour after the warm-up: the median of all slopes (Theil-Sen)."""
        late = self.memory_samples[int(len(self.memory_samples) * WARM_UP_SHARE) :]
        step = max(1, len(late) // 60)
        late = late[::step]
        slopes = [(b - a) / (t - s) for i, (s, a) in enumerate(late) for t, b in late[i + 1 :]]
        return statistics.median(slopes) * 3600 if slopes else 0.0

    def allowed(self) -> float:
        """MiB per hour: the requirement, or the least that a run of this length can detect."""
        late = self.memory_samples[int(len(self.memory_samples) * WARM_UP_SHARE) :]
        duration = late[-1][0] - late[0][0] if late else 0.0
        return max(MAX_GROWTH_MIB_PER_HOUR, NOISE_MIB / max(duration, 1.0) * 3600)

    def passed(self) -> bool:
        return not self.problems and self.growth() <= self.allowed()

    def line(self) -> str:
        verdict = "pass" if self.passed() else "FAIL"
        problem = f"; {self.problems[0]}" if self.problems else ""
        first, last = (
            (self.memory_samples[0][1], self.memory_samples[-1][1])
            if self.memory_samples
            else (0.0, 0.0)
        )
        return (
            f"{verdict}  R21 {self.protocol}: {self.streams} streams, "
            f"{self.total_bytes / MIB:.0f} MiB, memory {first:.1f} to {last:.1f} MiB, slope "
            f"{self.growth():+.2f} MiB/h (at most {self.allowed():.1f} in a run of this length; "
            f"required: {MAX_GROWTH_MIB_PER_HOUR:g} in 4 h and 10^7 streams){problem}"
        )


async def one_exchange(session: Session, chance: Random, protocol_run: ProtocolRun) -> None:
    """Open a stream, exchange data, and end or abort it."""
    size = chance.choice([1, 50, 1000, 1000, 20_000, 300_000])
    data = bytes(size)
    abort = chance.random() < 0.05
    if isinstance(session, StreamuxSession):
        with contextlib.suppress(TimeoutError):
            assert await session.request(data, timeout=0.0005 if abort else 60) == data
    elif isinstance(session, OmnistreamsSession):
        async with await session.open("x") as sender:
            back = await session.accept()
            if abort:
                back.cancel()
                return
            sending = asyncio.create_task(sender.send_all(data))
            got = 0
            while got < size:
                got += len(await back.receive())
            await sending
            await sender.end()
            async for _ in back:
                pass
    else:
        stream = await session.open("" if isinstance(session, YamuxSession) else "x")
        if abort:
            stream.abort("aborted")
            return
        sending = asyncio.create_task(send_and_end(stream, data))
        assert await stream.receive_all() == data
        await sending
    protocol_run.total_bytes += 2 * size


async def send_and_end(stream: polymux.Stream, data: bytes) -> None:
    for start in range(0, len(data), 50_000):
        await stream.send(data[start : start + 50_000])
    await stream.end()


async def items(
    session: MinmuxSession, chance: Random, protocol_run: ProtocolRun, until: float
) -> None:
    """Minmux does not open streams: one pair of ids carries everything."""
    sender, receiver = session.sender(1), session.receiver(2)
    while time.monotonic() < until:
        size = chance.choice([1, 1000, 20_000, 300_000])
        sending = asyncio.create_task(sender.send(bytes(size)))
        got = 0
        while got < size:
            got += len(await receiver.receive())
        await sending
        protocol_run.total_bytes += 2 * size
        protocol_run.streams += 1


async def drive(protocol_run: ProtocolRun, target: Target, until: float) -> None:
    """Run sessions one after another, each with several concurrent exchanges."""
    chance = Random(protocol_run.protocol)
    began = time.monotonic()
    url = f"tcp://127.0.0.1:{target.port}"
    while time.monotonic() < until:
        end = min(until, time.monotonic() + chance.uniform(1, 6))
        async with polymux.connect(url, protocol=protocol_run.protocol) as session:

            async def work(session: Session = session, end: float = end) -> None:
                while time.monotonic() < end:
                    await one_exchange(session, chance, protocol_run)
                    protocol_run.streams += 1

            many = 1 if isinstance(session, OmnistreamsSession) else CONCURRENT_EXCHANGES
            if isinstance(session, MinmuxSession):
                await items(session, chance, protocol_run, end)
            else:
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(many):
                        tasks.create_task(work())
        await target.tell(sweep=False)  # an ended session is freed without the cycle collector
        memory = target.process.memory_info().rss / MIB
        protocol_run.memory_samples.append((time.monotonic() - began, memory))


async def run_protocol(protocol: str, zygote: Zygote, seconds: float) -> ProtocolRun:
    protocol_run = ProtocolRun(protocol)
    order = {"protocol": protocol, "url": "tcp://127.0.0.1:0", "mode": "echo", "limits": {},
             "timeouts": {}, "forget": True}  # fmt: skip
    async with await zygote.fork(order) as target:
        driving = asyncio.create_task(drive(protocol_run, target, time.monotonic() + seconds))
        await asyncio.wait([driving])
        if driving.exception() is not None:
            protocol_run.problems.append(repr(driving.exception()))
        facts = await target.tell()
        protocol_run.problems += facts["loud"][:1]
        protocol_run.problems += [s["failure"] for s in facts["sessions"] if s["failure"]][:1]
    return protocol_run


async def run(seconds: float, folder: Path) -> list[ProtocolRun]:
    """Run every protocol at once."""
    async with Zygote(folder) as zygote:
        runs = await asyncio.gather(*[run_protocol(p, zygote, seconds) for p in PROTOCOLS])
    errors = (folder / "errors").read_text()
    if errors:
        runs[0].problems.append(errors)
    return list(runs)
