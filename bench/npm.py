"""The npm packages at both ends, each a Node process, doing the same work as polymux."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from bench import harness
from bench.alternating_runs import Act
from tests.interop import node_peer as peers
from tests.interop.node_peer import Peer, PeerFailed

TRIAL_SECONDS = 5.0


def missing() -> str | None:
    """Why they are not available, or None."""
    if not harness.EFFORT.third_party:
        return "left out by wish"
    return peers.missing()


class NpmPair:
    """A package connected to itself in another process."""

    def __init__(self, dialer: Peer, acceptor: Peer) -> None:
        self.dialer = dialer
        self.acceptor = acceptor
        self.name = f"npm {dialer.script}"
        self.timeout = 60.0  # seconds for one run
        self.pids: Sequence[int] = (dialer.process.pid, acceptor.process.pid)

    def bulk(self, byte_count: int, size: int, streams: int) -> Act:
        """Duplex packages: from the first write until the peer has ended too."""

        async def act() -> float:
            reply = await self.dialer.call(
                "blast", bytes=byte_count, size=size, streams=streams, timeout=self.timeout
            )
            return float(reply["seconds"])

        return act

    def one_way_bulk(self, byte_count: int, size: int, **more: object) -> Act:
        """WebSocket packages, one way: from the first received byte to the last."""

        async def act() -> float:
            await self.acceptor.call("mode", incoming="sink", quiet=True)
            last = self.acceptor.begin("sink", bytes=byte_count)
            await self.dialer.call("blast", bytes=byte_count, size=size, timeout=60, **more)
            return float((await self.acceptor.result(last, timeout=60))["seconds"])

        return act

    def openings(self, count: int, flight: int) -> Act:
        async def act() -> float:
            reply = await self.dialer.call(
                "openclose", count=count, in_flight=flight, timeout=self.timeout
            )
            return float(reply["seconds"])

        return act

    async def pings(self, count: int, load: int) -> list[float]:
        """Round trips of 16 bytes, beside `load` bytes of bulk data (0: none)."""
        dialer = self.dialer
        if dialer.script == "omnistreams":
            busy = dialer.begin("blast", bytes=load, size=65536) if load else None
            found: list[float] = []
            while len(found) < count and not (found and busy is not None and busy.done()):
                some = 5 if busy is not None else count
                reply = await dialer.call("pings", count=some, size=16, timeout=60)
                found += [float(each) for each in reply["seconds"]]
            if busy is not None:
                await dialer.result(busy, timeout=60)
            return found
        if dialer.script == "libp2p-yamux":  # the protocol's own pings
            busy = dialer.begin("blast", bytes=load, size=65536) if load else None
            found = []
            while len(found) < count and not (found and busy is not None and busy.done()):
                found.append(float((await dialer.call("rtt", timeout=30))["ms"]) / 1000)
            if busy is not None:
                await dialer.result(busy, timeout=60)
            return found
        opened = await dialer.call("open", names=["echo"])
        number = opened["streams"][0]["stream"]
        busy = dialer.begin("blast", bytes=load, size=65536) if load else None
        found = []
        for _ in range(count):
            reply = await dialer.call("ping", stream=number, size=16, timeout=30)
            found.append(float(reply["seconds"]))
            if busy is not None and busy.done():
                break
        if busy is not None:
            await dialer.result(busy, timeout=60)
        await dialer.call("end", stream=number)
        return found


async def failed_trial(pair: NpmPair) -> str | None:
    """Why a package cannot do the work that is measured, or None."""
    pair.timeout = TRIAL_SECONDS
    trials = {"bulk data": pair.bulk(2_000_000, 65536, 1), "open and close": pair.openings(10, 1)}
    try:
        for what, act in trials.items():
            try:
                await act()
            except PeerFailed as problem:
                return f"{what} fails: {str(problem).split(';')[0]}"
        return None
    finally:
        pair.timeout = 60.0


@contextlib.asynccontextmanager
async def npm_pair(script: str) -> AsyncIterator[NpmPair]:
    async with Peer.listen(script) as acceptor, Peer.connect(script, acceptor.port) as dialer:
        await acceptor.event("session")
        await dialer.event("session")
        await acceptor.call("mode", incoming="sink", quiet=True)
        if script != "ws":
            await acceptor.call("mode", incoming="echo", name="echo", quiet=True)
        if script not in ("ws", "omnistreams"):
            await acceptor.call("mode", incoming="echo", name="stream", quiet=True)
        yield NpmPair(dialer, acceptor)
