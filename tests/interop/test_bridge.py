"""A bridge between npm `multiplex` or `@libp2p/mplex` and npm `nerdbank-streams`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.interop.node_peer import Peer
from tests.interop.npm_session import same

from polymux.relay import Bridge, bridge

pytestmark = pytest.mark.usefixtures("node_peers")

SIZE = 300_000  # more than a window of the package


@contextlib.asynccontextmanager
async def bridged(
    dialer: tuple[str, str, tuple[str, ...]], acceptor: tuple[str, str, tuple[str, ...]]
) -> AsyncIterator[tuple[Peer, Peer, Bridge]]:
    """Two npm peers (script, protocol, arguments), one on each side of a bridge."""
    async with (
        Peer.listen(acceptor[0], *acceptor[2]) as far,
        bridge(
            "tcp://127.0.0.1:0",
            f"tcp://127.0.0.1:{far.port}",
            protocol_a=dialer[1],
            protocol_b=acceptor[1],
        ) as between,
        Peer.connect(dialer[0], int(between.url.rpartition(":")[2]), *dialer[2]) as near,
    ):
        await near.event("session")
        await far.event("session")
        yield near, far, between


@pytest.mark.parametrize("script", ["multiplex", "libp2p-mplex"])
@pytest.mark.parametrize("version", [1, 3])
async def test_mplex_and_nerdbank_exchange_over_a_bridge_in_both_directions(
    script: str, version: int
) -> None:
    mplex = (script, "mplex", ())
    nerdbank = ("nerdbank", f"nerdbank:version={version}", ("--version", str(version)))
    for ends in ((mplex, nerdbank), (nerdbank, mplex)):
        async with bridged(*ends) as (near, far, between):
            for peer, seed in ((near, 3), (far, 5)):
                reply = await peer.call("exchange", count=5, size=SIZE, seed=seed, timeout=60)
                assert same(reply["results"], SIZE, seed)
                assert not any(result["error"] for result in reply["results"])
            assert not near.seen("fault")
            assert not far.seen("fault")
            assert between.stats.streams == 10
            assert between.stats.aborted == 0


async def test_a_reset_at_one_package_is_a_reset_at_the_other_with_its_reason_lost() -> None:
    mplex, nerdbank = ("multiplex", "mplex", ()), ("nerdbank", "nerdbank:version=3", ())
    async with bridged(mplex, nerdbank) as (near, far, between):
        await far.call("mode", incoming="hold")
        stream = (await near.call("open", names=["doomed"]))["streams"][0]
        await near.call("send", stream=stream["stream"], text="last words")
        theirs = await far.event("stream", name="doomed")
        await far.call("wait", stream=theirs["stream"], bytes=10)
        await far.call("reset", stream=theirs["stream"], text="no more")
        close = await near.event("close", stream=stream["stream"])
        assert not close["ended"]
        while not between.stats.aborted:
            await asyncio.sleep(0)
        assert between.stats.lost["reset_reason"] == 1
        stream = (await near.call("open", names=["second"]))["streams"][0]
        await near.call("send", stream=stream["stream"], text="last words")
        theirs = await far.event("stream", name="second")
        await near.call("reset", stream=stream["stream"])
        close = await far.event("close", stream=theirs["stream"])
        assert not close["finished"]
