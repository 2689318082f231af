"""Memory of an idle stream and of an idle session, measured in a new process.

`python -m bench.footprint PROTOCOL PORTS STREAMS SESSIONS` prints the bytes of each on the dialing
side: the growth of resident memory divided by their number.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
from bench import harness
from bench.harness import Bound, Figure, Result
from bench.peer_process import PeerProcess
from bench.raw_actions import dial
from bench.raw_endpoints import RawClient

MAX_MPLEX_STREAM_BYTES = 2048
# streams, sessions; omnistreams has 256 ids a session
AMOUNTS = {
    "mplex": (20000, 200),
    "nerdbank": (5000, 200),
    "omnistreams": (250, 100),
    "streamux": (8000, 200),
    "minmux": (5000, 200),
    "raw TCP": (0, 200),
}
ROUNDS = 2  # each in a new process


async def footprint_lines(other: PeerProcess) -> list[Result]:
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(min(ROUNDS, harness.EFFORT.rounds)):
        for protocol in AMOUNTS:
            chunks = await measure_in_fresh_process(other, protocol)
            for what, amount in chunks.items():
                found.setdefault(what, {}).setdefault(protocol, []).append(amount)
    lines: list[Result] = []
    for protocol, samples in found["stream"].items():
        bounds = [Bound("demand", MAX_MPLEX_STREAM_BYTES)] if protocol == "mplex" else []
        lines.append(Figure(f"{protocol}, memory of an idle stream", samples, "B", bounds))
    raw = min(found["session"].pop("raw TCP"))
    for protocol, samples in found["session"].items():
        bounds = [Bound("raw asyncio connection", max(1.0, raw), None)]
        lines.append(Figure(f"{protocol}, memory of an idle session", samples, "B", bounds))
    return lines


async def measure_in_fresh_process(other: PeerProcess, protocol: str) -> dict[str, float]:
    """Run the measurement in a new process and parse its output."""
    streams, sessions = AMOUNTS[protocol]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.footprint", protocol, json.dumps(other.ports),
        str(harness.EFFORT.scaled(streams) if streams else 0), str(harness.EFFORT.scaled(sessions)),
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    said, _ = await process.communicate()
    chunks: dict[str, float] = json.loads(said)
    return chunks


# In the new process


def resident() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


async def measure_footprint(
    protocol: str, ports: dict[str, int], streams: int, sessions: int
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        found: dict[str, float] = {}
        other = AttachedPeer(ports)
        first = await enter_session(stack, other, protocol)
        if streams:
            held: list[Any] = await open_idle(protocol, first, streams // 10)  # warm
            before = resident()
            held += await open_idle(protocol, first, streams - streams // 10, streams // 10)
            found["stream"] = (resident() - before) / max(1, streams - streams // 10)
        warm = [await enter_session(stack, other, protocol) for _ in range(max(1, sessions // 10))]
        before = resident()
        more = [await enter_session(stack, other, protocol) for _ in range(sessions)]
        found["session"] = (resident() - before) / len(more)
        print(json.dumps(found), flush=True)
        del warm
        sys.stdout.flush()
        psutil.Process().kill()  # without closing thousands of streams


class AttachedPeer(PeerProcess):
    """The peer process, for a process that did not start it."""

    def __init__(self, ports: dict[str, int]) -> None:
        self.ports = ports
        self.options = {}


async def enter_session(stack: contextlib.AsyncExitStack, other: PeerProcess, protocol: str) -> Any:
    if protocol == "raw TCP":
        return await stack.enter_async_context(dial(other.ports["raw-echo"], RawClient()))
    return await stack.enter_async_context(other.connect(protocol))


async def open_idle(protocol: str, session: Any, count: int, done: int = 0) -> list[Any]:
    """Open idle streams. Streamux: requests of which the first chunk was sent. Minmux: streams for
    which the peer has granted credit."""
    from bench.minmux import request_streams

    if protocol == "minmux":
        numbers = await request_streams(session, b"h", iter(range(3 + 2 * done, 1 << 20, 2)), count)
        senders = [session.sender(number) for number in numbers]
        for sender in senders:
            await sender.drain()
        return senders
    name = b"" if protocol == "streamux" else b"idle"
    held = [await session.open(name) for _ in range(count)]
    if protocol == "streamux":
        for exchange in held:
            await exchange.send(b"x")
            await exchange.send(b"y")  # the last chunk is held back
    await asyncio.sleep(0.2)
    return held


if __name__ == "__main__":
    asyncio.run(
        measure_footprint(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    )
