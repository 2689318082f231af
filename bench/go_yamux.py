"""Go's hashicorp/yamux at both ends, each a process, doing the same work as polymux."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence

from bench import harness
from bench.alternating_runs import Act
from tests.interop import node_peer as peers
from tests.interop.node_peer import GO_YAMUX, Peer


def missing() -> str | None:
    """Why it is not available, or None."""
    if not harness.EFFORT.third_party:
        return "left out by wish"
    return peers.missing_go()


class GoPair:
    """The library connected to itself in another process.

    Debian's version reads nothing after its own close. So the acceptor answers with a byte when all
    has come, and the dialer closes then.
    """

    name = "Go hashicorp/yamux"

    def __init__(self, dialer: Peer, acceptor: Peer) -> None:
        self.dialer = dialer
        self.acceptor = acceptor
        self.pids: Sequence[int] = (dialer.process.pid, acceptor.process.pid)

    def bulk(self, byte_count: int, size: int, streams: int) -> Act:
        async def act() -> float:
            each = byte_count // streams // size * size
            await self.acceptor.call("mode", incoming="count", bytes=each, quiet=True)
            reply = await self.dialer.call(
                "blast", bytes=each * streams, size=size, streams=streams, timeout=60
            )
            return float(reply["seconds"])

        return act

    async def pings(self, count: int, load: int) -> list[float]:
        """Round trips of the protocol's pings, beside `load` bytes of bulk data (0: none)."""
        each = load // 65536 * 65536
        await self.acceptor.call("mode", incoming="count", bytes=each, quiet=True)
        reply = await self.dialer.call("pings", count=count, bytes=each, timeout=60)
        return [float(seconds) for seconds in reply["seconds"]]

    def openings(self, count: int, flight: int) -> Act:
        async def act() -> float:
            await self.acceptor.call("mode", incoming="count", bytes=0, quiet=True)
            reply = await self.dialer.call("openclose", count=count, in_flight=flight, timeout=60)
            return float(reply["seconds"])

        return act


@contextlib.asynccontextmanager
async def go_pair() -> AsyncIterator[GoPair]:
    async with Peer.listen(GO_YAMUX) as acceptor, Peer.connect(GO_YAMUX, acceptor.port) as dialer:
        await acceptor.event("session")
        await dialer.event("session")
        yield GoPair(dialer, acceptor)
