"""A stream that is never read, or never stops, does not block the others (R4, ATK-21)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.attacks.runner import SLACK, SOAK
from tests.attacks.target import Zygote

import polymux
from polymux import Session, StreamuxSession

PAUSE = 5.0 if SOAK else 1.5
LASTING = 60.0 if SOAK else 4.0
OTHERS = 9
PIECE = bytes(60_000)
NO_CREDIT = ["mplex", "nerdbank:version=1", "streamux"]
Ask = Callable[[bytes], Awaitable[None]]


async def visit(
    folder: Path, protocol: str, mode: str, body: Callable[[Session], Awaitable[None]]
) -> None:
    """A session with a new server that handles its first stream by `mode`."""
    order = {"protocol": protocol, "url": "tcp://127.0.0.1:0", "mode": mode, "limits": {},
             "timeouts": {"slow_reader": PAUSE}}  # fmt: skip
    async with Zygote(folder) as zygote, await zygote.fork(order) as target:
        url = f"tcp://127.0.0.1:{target.port}"
        async with polymux.connect(url, protocol=protocol):  # the witness
            session = await polymux.connect(url, protocol=protocol)
            try:
                await body(session)
                told = (await target.tell())["sessions"][1]
                assert not told["closed"]
                assert not told["failure"]
            finally:
                session.abort("the test is over")
                await session.wait_closed()


async def fill(session: Session) -> str:
    """Send on one stream until it ends. Return how it ended."""
    stream = (
        await session.open() if isinstance(session, StreamuxSession) else await session.open("hog")
    )
    try:
        while True:
            await stream.send(PIECE)
    except polymux.PolymuxError as problem:
        return str(problem)


async def asker(session: Session) -> Ask:
    """Return a function that echoes bytes on a stream of its own."""
    if isinstance(session, StreamuxSession):

        async def request(data: bytes) -> None:
            assert await session.request(data, timeout=0) == data

        return request
    stream = await session.open("other")

    async def ask(data: bytes) -> None:
        await stream.send(data)
        got = 0
        while got < len(data):
            got += len(await stream.receive())

    return ask


async def gaps(ask: Ask, until: float) -> list[float]:
    """Request echoes repeatedly. Return the latency of each."""
    taken = []
    while time.monotonic() < until:
        began = time.monotonic()
        await ask(bytes(1000))
        taken.append(time.monotonic() - began)
        await asyncio.sleep(0.002)
    return taken


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", NO_CREDIT)
def test_a_stream_that_nobody_reads_stalls_the_others_once_and_ends_alone(
    protocol: str, tmp_path: Path
) -> None:
    figures: list[str] = []

    async def body(session: Session) -> None:
        hog = asyncio.create_task(fill(session))
        await asyncio.sleep(0.1)
        until = time.monotonic() + LASTING
        asks = [await asyncio.wait_for(asker(session), 10 * PAUSE) for _ in range(OTHERS)]
        taken = await asyncio.gather(*[gaps(ask, until) for ask in asks])
        for each in taken:
            stalls = [gap for gap in each if gap > PAUSE / 2]
            assert len(stalls) <= 1, stalls
            assert max(each) <= PAUSE + 1.0 * SLACK
            assert len(each) > 20
        worst = max(max(each) for each in taken)
        figures.append(f"pause {PAUSE:g} s, the others stalled {worst:.2f} s once, "
                       f"{sum(map(len, taken))} answers in {LASTING:g} s")  # fmt: skip
        if protocol != "streamux":  # there the rest of the request is dropped without a word
            assert "abort" in await asyncio.wait_for(hog, 60)
        hog.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hog

    asyncio.run(visit(tmp_path, protocol, "hog", body))
    print(f"R4 {protocol}: {figures[0]}")


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank:version=1", "nerdbank:version=2",
                                      "nerdbank:version=3", "streamux"])  # fmt: skip
def test_a_stream_that_never_stops_leaves_the_others_their_turn(
    protocol: str, tmp_path: Path
) -> None:
    figures: tuple[float, float] = (0.0, 0.0)
    allowed = 0.1 * SLACK  # on a connection of any speed; the shaped figure is R19

    async def body(session: Session) -> None:
        nonlocal figures
        ask = await asker(session)
        for _ in range(4):  # the quickest of four: what it costs, not what the machine does
            idle = sorted(await gaps(ask, time.monotonic() + 0.3))
            hog = asyncio.create_task(fill(session))
            busy = sorted(await gaps(ask, time.monotonic() + 1.0))
            hog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await hog
            figures = idle[len(idle) * 99 // 100], busy[len(busy) * 99 // 100]
            if len(busy) > 5 and figures[1] <= figures[0] + allowed:
                break
        assert len(busy) > 5

    asyncio.run(visit(tmp_path, protocol, "echo" if protocol == "streamux" else "read_bulk", body))
    idle, busy = figures
    print(
        f"ATK-21 {protocol}: ping p99 {idle * 1000:.1f} ms idle, {busy * 1000:.1f} ms beside bulk"
    )
    assert busy <= idle + allowed
