"""Small requests in flight: Streamux, and a stream for each request, beside HTTP/2 and smux."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from bench import go_peers, harness, nghttp2, third_party
from bench.alternating_runs import Act, Candidate, Workload, compare
from bench.harness import NotMeasured, Result
from bench.pairs import stream_name
from bench.peer_process import start_peer
from bench.streamux import SMALL_REQUEST_BYTES, small_requests

# requests, in flight
REQUESTS = ((600, 1), (12_800, 64))
# title, the peer process's listener, and whether a request has a stream of its own
OWN = (
    ("Streamux", "streamux", False),
    ("mplex, a stream for each", "mplex", True),
    ("yamux, a stream for each", "yamux-echo", True),
)
SLOW = {"h2 (HTTP/2)": 4}  # slow peers do this many times less work

Peer = nghttp2.Nghttp2 | third_party.ThirdPartyPair


def measure() -> list[Result]:
    return asyncio.run(measure_all())


async def measure_all() -> list[Result]:
    lines: list[Result] = []
    async with contextlib.AsyncExitStack() as stack:
        peers = await all_peers(stack, lines)  # first: installing a package blocks the loop
        other = await stack.enter_async_context(start_peer())
        for title, listener, by_stream in OWN:
            if listener.split("-")[0] not in harness.chosen([listener.split("-")[0]]):
                continue
            session = await stack.enter_async_context(other.connect(listener))
            for amount, flight in REQUESTS:
                count = harness.EFFORT.scaled(amount, flight)
                ours = (stream_requests if by_stream else small_requests)(session, count, flight)
                candidates = [Candidate("polymux", ours, other.pids)]
                candidates += [candidate(peer, count, flight) for peer in peers]
                name = f"{title}, {SMALL_REQUEST_BYTES} B requests, {flight} in flight"
                lines.append(await compare(name, candidates, Workload(count, "1/s")))
    return lines


async def all_peers(stack: contextlib.AsyncExitStack, lines: list[Result]) -> list[Peer]:
    """Those that are available; of each other one the reason becomes a line."""
    found: list[Peer] = []

    async def add(title: str, reason: str | None, start: Callable[[], Any]) -> None:
        if reason is None:
            found.append(await stack.enter_async_context(start()))
        else:
            lines.append(NotMeasured(f"requests, {title}", reason))

    await add(nghttp2.NAME, nghttp2.missing(), nghttp2.nghttp2)
    for library, (title, _, _) in go_peers.LIBRARIES.items():
        await add(title, go_peers.missing(library), lambda: go_peers.go_pair(library))  # noqa: B023  # called at once
    reason = third_party.missing("http2")
    await add("h2 (HTTP/2)", reason, lambda: third_party.third_party_pair("http2"))
    return found


def candidate(peer: Peer, count: int, flight: int) -> Candidate:
    some = max(1, count // SLOW.get(peer.name, 1) // flight) * flight
    act = peer.requests(some, SMALL_REQUEST_BYTES, flight)
    if isinstance(peer, nghttp2.Nghttp2):
        return Candidate(peer.name, act, (), 1.0, some, peer.cpu_seconds)
    return Candidate(peer.name, act, peer.pids, 1.0, some)


def stream_requests(session: Any, count: int, flight: int) -> Act:
    """`flight` tasks, each with one request at a time, on a new stream that is echoed."""
    request = bytes(SMALL_REQUEST_BYTES)

    async def some(share: int) -> None:
        for _ in range(share):
            stream = await session.open(stream_name(session, "echo"))
            await stream.send(request)
            await stream.end()
            assert len(await stream.receive_all()) == SMALL_REQUEST_BYTES

    async def act() -> float:
        start = time.perf_counter()
        await asyncio.gather(*(some(count // flight) for _ in range(flight)))
        return time.perf_counter() - start

    return act
