"""The chaos proxy beside the recording proxy, what its faults do, and the pace of replays."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import harness
from bench.fairness import percentile
from bench.harness import Bound, Figure, Floor, Line, Result
from tests.relay.chaos_peers import rows_in

import polymux
from polymux.capture import PcapngWriter
from polymux.record import Recorder
from polymux.relay.replay import load_recordings, replay

LOCAL = "tcp://127.0.0.1:0"
PROTOCOLS = ("mplex", "nerdbank", "yamux")
TRANSFER_BYTES = 128 << 20
BLOCK = bytes(1 << 18)
MIN_SHARE = 0.6  # of the recording proxy's throughput
PINGS = 2000
PING_ROUNDS = 5
MAX_ADDED_US = 150.0
STREAMS = 100
STREAM_PINGS = 40
PING_GAP_SECONDS = 0.03
DELAYED = 50  # which of the streams
MAX_P99_CHANGE_US = 2000.0
MIN_BLAMED_US = 100_000  # half of the delay; a busy machine holds up all streams for less
WITHHELD_SECONDS = 0.4
MAX_STALL_ERROR = 0.05
REPLAYED_SENDS = 10_000
REPLAY_GAP_SECONDS = 0.001
MAX_LATE_US = 2000.0
SINK, ECHO = b"S", b"P"  # as the first byte of a stream


async def serve_peer(protocol: str) -> None:
    """Serve until killed: a stream that begins with `S` is read and answered at its end, another
    one is echoed. Prints the URL."""

    async def answer(stream: polymux.Stream) -> None:
        first = await stream.receive()
        if first.startswith(SINK):
            while await stream.receive_parts():
                pass
            await stream.send(b"!")
            await stream.end()
            return
        await stream.send(first)
        async for chunk in stream:
            await stream.send(chunk)

    async def handle(session: polymux.Session) -> None:
        await session.serve_streams(answer)

    async with polymux.serve(handle, LOCAL, protocol=protocol) as server:
        print(f"listening at {server.url}", file=sys.stderr, flush=True)
        await asyncio.Event().wait()


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[str]:
    """A process of Python; yields the URL that it listens at, and ends it by SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        found = None
        for line in process.stderr:
            if found := re.search(r"listening at (\S+?),?(\s|$)", line):
                break
        if found is None:
            raise RuntimeError(f"{' '.join(arguments)} did not start")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextlib.contextmanager
def peer(protocol: str) -> Iterator[str]:
    with started("bench.chaos", protocol) as url:
        yield url


def chaos(upstream: str, protocol: str, *options: str) -> contextlib.AbstractContextManager[str]:
    return started("polymux", "chaos", LOCAL, upstream, "--protocol", protocol, *options)


async def opened(session: polymux.Session) -> polymux.Stream:
    return await session.open()


async def transfer(session: polymux.Session, size: int) -> None:
    """Send `size` bytes on a new stream, and wait until the peer has read them."""
    stream = await opened(session)
    await stream.send(SINK)
    for _ in range(size // len(BLOCK)):
        await stream.send(BLOCK)
    await stream.end()
    assert await stream.receive_all() == b"!"


async def ping_times(session: polymux.Session, count: int) -> list[float]:
    """Seconds of each of `count` pings on one stream."""
    stream = await opened(session)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await stream.send(ECHO)
        await stream.receive()
        times.append(time.perf_counter() - began)
    stream.abort()
    return times


def measure() -> list[Result]:
    lines: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as name:
        folder = Path(name)
        lines += delay_lines(folder)
        lines.append(withhold_line(folder))
        lines.append(asyncio.run(replay_line(folder)))
        for protocol in harness.chosen(PROTOCOLS):
            lines += transparent_lines(protocol, folder)
    return lines


# Without rules


def transparent_lines(protocol: str, folder: Path) -> list[Result]:
    """Throughput beside the recording proxy, and what a ping takes longer than without a proxy."""
    size = harness.EFFORT.scaled(TRANSFER_BYTES, len(BLOCK))
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(peer(protocol))
        urls = {
            "direct": direct,
            "record": stack.enter_context(
                started("polymux", "record", LOCAL, direct, "-o", str(folder / protocol))
            ),
            "chaos": stack.enter_context(chaos(direct, protocol)),
        }  # fmt: skip
        runner = stack.enter_context(asyncio.Runner())
        sessions = {name: runner.run(connected(url, protocol)) for name, url in urls.items()}

        def sender(session: polymux.Session) -> Callable[[], object]:
            return lambda: runner.run(transfer(session, size))

        times = harness.measure_alternating(
            {name: sender(session) for name, session in sessions.items()}
        )
        pings = harness.EFFORT.scaled(PINGS)
        added = []
        for _ in range(PING_ROUNDS):
            medians = {
                name: statistics.median(runner.run(ping_times(sessions[name], pings)))
                for name in ("direct", "chaos")
            }
            added.append((medians["chaos"] - medians["direct"]) * 1e6)
        for session in sessions.values():
            runner.run(session.close())
    floors = [
        Floor("the recording proxy", times["record"], MIN_SHARE),
        Floor("without a proxy", times["direct"]),
    ]
    return [
        Line(f"{protocol}, transparent", times["chaos"], size, "MB/s", floors, "wall", 1e6),
        Figure(
            f"{protocol}, added to the median ping", added, "us", [Bound("the bound", MAX_ADDED_US)]
        ),
    ]


async def connected(url: str, protocol: str) -> polymux.Session:
    return await polymux.connect(url, protocol=protocol)


# Faults


def delay_lines(folder: Path) -> list[Result]:
    """One of many streams is delayed: the p99 of the others, and whom the analysis blames."""
    out = folder / "delay.pcapng"
    with peer("mplex") as direct:
        with chaos(direct, "mplex", "-o", str(folder / "control.pcapng")) as url:
            control = asyncio.run(others_p99(url))
        rule = f"nth={DELAYED} : delay 200ms"
        with chaos(direct, "mplex", "--rule", rule, "-o", str(out)) as url:
            found = asyncio.run(others_p99(url))
    blamed = {
        row["stream"] for row in rows_in(out, "stalls") if row["duration_us"] >= MIN_BLAMED_US
    }
    delayed = f"d{2 * DELAYED - 1}"
    wrong = len(blamed - {delayed}) + (delayed not in blamed)
    change = abs(found - control) * 1e6
    note = f"control {control * 1e6:.0f} us"
    return [
        Figure(f"one of {STREAMS} streams delayed by 200 ms: change of the others' p99", [change],
               "us", [Bound("the bound", MAX_P99_CHANGE_US)], note=note),
        Figure("streams that the analysis blames and that were not delayed", [float(wrong)],
               "streams", [Bound("none", 0.5)]),
    ]  # fmt: skip


async def others_p99(url: str) -> float:
    """Ping on many streams at the same time; the 99th percentile of all but the delayed one."""
    pings = harness.EFFORT.scaled(STREAM_PINGS)
    times: list[float] = []

    async def run(number: int, stream: polymux.Stream) -> None:
        await asyncio.sleep(number * PING_GAP_SECONDS / STREAMS)
        for _ in range(pings if number != DELAYED else max(2, pings // 10)):
            began = time.perf_counter()
            await stream.send(ECHO)
            await stream.receive()
            if number != DELAYED:
                times.append(time.perf_counter() - began)
            await asyncio.sleep(PING_GAP_SECONDS)

    async with polymux.connect(url, protocol="mplex") as session:
        streams = [await opened(session) for _ in range(STREAMS)]
        await asyncio.gather(*(run(n, stream) for n, stream in enumerate(streams, 1)))
    return percentile(times)


def withhold_line(folder: Path) -> Result:
    """By how much the stall of withheld credit differs from the time that was set."""
    errors = []
    for run in range(PING_ROUNDS):
        out = folder / f"withhold-{run}.pcapng"
        rule = f"* : withhold-credit {WITHHELD_SECONDS}s toward=upstream"
        with (
            peer("nerdbank") as direct,
            chaos(direct, "nerdbank", "--rule", rule, "-o", str(out)) as url,
        ):
            asyncio.run(transfer_to(url, "nerdbank", 8 << 20))
        stalls = [row for row in rows_in(out, "stalls") if row["cause"] == "no-credit"]
        assert len(stalls) == 1, stalls
        errors.append(abs(stalls[0]["duration_us"] / 1e6 / WITHHELD_SECONDS - 1))
    return Figure("withheld credit: error of the one stall's length", errors, "share",
                  [Bound("the bound", MAX_STALL_ERROR)])  # fmt: skip


async def transfer_to(url: str, protocol: str, size: int) -> None:
    async with polymux.connect(url, protocol=protocol) as session:
        await transfer(session, size)


# Replay


async def replay_line(folder: Path) -> Result:
    """By how much the sends of a replay come after their time, at a thousand a second."""
    count = harness.EFFORT.scaled(REPLAYED_SENDS)
    out = folder / "pings.pcapng"
    with peer("mplex") as direct:
        with PcapngWriter(str(out)) as sink:
            async with polymux.connect(direct, protocol="mplex", recorder=Recorder(sink)) as client:
                stream = await opened(client)
                began = client.loop.time()
                for number in range(count):
                    left = began + number * REPLAY_GAP_SECONDS - client.loop.time()
                    await asyncio.sleep(max(0.0, left))
                    await stream.send(ECHO)
                    client.flush()
                await stream.end()
                await stream.receive_all()
        (recording,) = load_recordings([str(out)])
        found = await replay(recording, direct, pace="recorded")
    assert found.is_equal, found.differences
    late = found.lateness_quantile(0.99) * 1e6
    name = f"replay of {found.sends:,} sends, 1,000 a second: p99 late"
    return Figure(name, [late], "us", [Bound("the bound", MAX_LATE_US)])


if __name__ == "__main__":
    asyncio.run(serve_peer(sys.argv[1]))
