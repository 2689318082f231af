"""The collector against a plain server that writes the same bytes, and the delay to table rows."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench import harness
from bench.byte_traffic import mplex_frame
from bench.harness import Bound, Figure, Floor, Line, Result, Times

import polymux
from polymux.analysis.output.manifest import read_manifest
from polymux.record import Collector

FRAME_BYTES = 64 * 1024  # bytes of payload
FRAME_COUNT = 3072  # 192 MiB
FRAMES_PER_WRITE = 16
MIN_SPEED_RATIO = 0.5  # of the plain server's speed
DELAY_SAMPLES = 6

Act = Callable[[], Awaitable[None]]


class PlainServer(asyncio.Protocol):
    """A server without polymux: writes bytes to a file and syncs it before it answers."""

    folder = ""
    sync = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._path = os.path.join(self.folder, f"plain-{time.monotonic_ns()}")
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)

    def data_received(self, data: bytes) -> None:
        os.write(self._file, data)

    def eof_received(self) -> bool:
        if self.sync:
            os.fsync(self._file)
        os.close(self._file)
        self._transport.write(b"!")
        os.unlink(self._path)
        return False


class PlainUnsynced(PlainServer):
    """The same without a sync: acknowledged data may be lost."""

    sync = False


class SenderProcess:
    """The sending process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def send(self, port: int, times: int, half: bool) -> None:
        """Send one mplex stream: its opening, its frames, its end."""
        body = b"".join(mplex_frame(0, 2, bytes(FRAME_BYTES)) for _ in range(FRAMES_PER_WRITE))
        order = {
            "port": port, "open": "000161", "body": body.hex(), "times": times, "end": "0400",
            "half": half,
        }  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        assert (await self._process.stdout.readline()).strip() == b"done"

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


def measure() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="polymux-bench-") as folder:
        lines: list[Result] = list(asyncio.run(speeds(Path(folder))))
        lines.append(delay(Path(folder)))
        return lines


async def speeds(folder: Path) -> list[Line]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.byte_sender", stdin=pipe, stdout=pipe,
        cwd=Path(__file__).parent.parent, limit=1 << 26,
    )  # fmt: skip
    assert process.stdout is not None
    await process.stdout.readline()
    blaster = SenderProcess(process)
    times = harness.EFFORT.scaled(FRAME_COUNT, FRAMES_PER_WRITE) // FRAMES_PER_WRITE
    PlainServer.folder = str(folder)
    loop = asyncio.get_running_loop()
    plain = await loop.create_server(PlainServer, "127.0.0.1", 0)
    unsynced = await loop.create_server(PlainUnsynced, "127.0.0.1", 0)
    collectors = {}
    for sync in ("always", "none"):
        collectors[sync] = Collector(str(folder / sync), sync=sync)
        await collectors[sync].start()
        await collectors[sync].listen("tcp://127.0.0.1:0", "mplex")

    def collected(sync: str) -> Act:
        async def act() -> None:
            port = int(collectors[sync].urls[0].rpartition(":")[2])
            await blaster.send(port, times, half=False)

        return act

    async def plainly() -> None:
        await blaster.send(plain.sockets[0].getsockname()[1], times, half=True)

    async def without_sync() -> None:
        await blaster.send(unsynced.sockets[0].getsockname()[1], times, half=True)

    found = await measure_alternating(
        {
            "always": collected("always"), "none": collected("none"), "plain": plainly,
            "unsynced": without_sync,
        },
        folder,
    )  # fmt: skip
    for collector in collectors.values():
        await collector.close(0)
    plain.close()
    unsynced.close()
    await blaster.close()
    size = times * FRAMES_PER_WRITE * FRAME_BYTES
    synced = Floor("plain asyncio server, synced at the end", found["plain"], MIN_SPEED_RATIO)
    loose = Floor("plain asyncio server, never synced", found["unsynced"], MIN_SPEED_RATIO)
    about = f"mplex, one stream, frames of {FRAME_BYTES // 1024} KiB, answered when durable"
    return [
        Line("collect, sync always", found["always"], size, "MB/s", [synced], "wall", 1e6, about),
        Line("collect, sync none", found["none"], size, "MB/s", [loose], "wall", 1e6, about),
    ]


async def measure_alternating(candidates: dict[str, Act], folder: Path) -> dict[str, Times]:
    """Run both alternately, in rotating order; the first round is not counted."""
    names = list(candidates)
    times = {name: Times() for name in names}
    for turn in range(harness.EFFORT.rounds + 1):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            wall, cpu = time.perf_counter(), time.process_time()
            await candidates[name]()
            if turn:
                times[name].add(time.perf_counter() - wall, time.process_time() - cpu)
            for path in folder.glob("*/*.pcapng*"):  # published files are not needed
                if not path.name.endswith(".part"):
                    path.unlink(missing_ok=True)
    return times


def delay(folder: Path) -> Figure:
    """Measure from a sender's last byte to its row in the content table."""
    from polymux.spark import spark_session
    from polymux.spark.streaming.open_sessions import SessionTimeouts
    from polymux.spark.streaming.query import start_following

    captures, tables = folder / "live", folder / "tables"
    captures.mkdir()
    with spark_session("local[2]") as spark:
        query = start_following(
            spark, str(captures), str(tables), content=True, interval=0.1,
            timeouts=SessionTimeouts(session_grace=0.1, session_timeout=5),
        )  # fmt: skip
        samples = asyncio.run(delays(captures, tables))
        query.stop()
    bound = Bound("rotation 0.5 s, session grace 0.1 s, scan every 0.1 s", 0.7, None)
    return Figure("delay from send to table row", samples, "s", [bound])


async def delays(captures: Path, tables: Path) -> list[float]:
    async with Collector(str(captures), rotate_seconds=0.5) as collector:
        url = await collector.listen("tcp://127.0.0.1:0", "nerdbank")
        samples = []
        for number in range(harness.EFFORT.scaled(DELAY_SAMPLES) + 1):
            rows = content_rows(tables)
            async with polymux.connect(url, protocol="nerdbank") as session:
                stream = await session.open(f"row {number}")
                await stream.send(b"a row")
                begun = time.perf_counter()
                await stream.end()
                await stream.receive()
            while content_rows(tables) == rows:
                await asyncio.sleep(0.01)
            if number:  # the first batch of a new session is slower
                samples.append(time.perf_counter() - begun)
    return samples


def content_rows(tables: Path) -> int:
    manifest = read_manifest(tables)
    return sum(file.rows for file in manifest.tables.get("content", ())) if manifest else 0
