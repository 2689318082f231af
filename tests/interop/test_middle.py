"""Connections of npm peers, recorded by a proxy, and cut at random packets."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest
from tests.cut_record import Record, Tally, cut_randomly
from tests.interop.node_peer import Peer

from polymux.capture import PcapngWriter, read_sessions
from polymux.protocols.registry import create
from polymux.record import RecordingProxy

pytestmark = pytest.mark.usefixtures("node_peers")

CUTS = 200 if os.environ.get("POLYMUX_SOAK") else 40
RUNS = [
    pytest.param(("multiplex",), "mplex", id="multiplex"),
    pytest.param(("libp2p-mplex",), "mplex", id="libp2p-mplex"),
    pytest.param(("nerdbank", "--version", "1"), "nerdbank:version=1", id="nerdbank-1"),
    pytest.param(("nerdbank", "--version", "2"), "nerdbank:version=2", id="nerdbank-2"),
    pytest.param(("nerdbank", "--version", "3"), "nerdbank:version=3", id="nerdbank-3"),
    pytest.param(("libp2p-yamux",), "yamux:dialect=libp2p", id="libp2p-yamux"),
    pytest.param(("omnistreams",), "omnistreams:numbering=legacy", id="omnistreams"),
]


async def exchange(package: tuple[str, ...], acceptor: Peer, dialer: Peer) -> None:
    """Data on many streams, both ways, in large and in small pieces."""
    if package[0] == "omnistreams":
        for seed in range(3):
            await dialer.call("exchange", streams=10, count=10, size=300, seed=seed)
            await acceptor.call("exchange", streams=10, count=10, size=200, seed=seed)
        return
    await dialer.call("exchange", count=5, size=60_000, seed=5)
    for seed in range(3):
        await asyncio.gather(
            dialer.call("exchange", count=10, size=3_000, seed=seed),
            acceptor.call("exchange", count=10, size=2_000, seed=seed),
        )


async def recorded(package: tuple[str, ...], path: Path) -> Record:
    """The packets of a connection of two npm peers, recorded by a proxy between them."""
    script, *arguments = package
    scheme = "ws" if script == "omnistreams" else "tcp"
    with PcapngWriter(str(path), sync="none") as writer:
        async with (
            Peer.listen(script, *arguments) as acceptor,
            RecordingProxy(
                f"{scheme}://127.0.0.1:0", f"{scheme}://127.0.0.1:{acceptor.port}", writer
            ) as proxy,
            Peer.connect(script, proxy.address.port, *arguments) as dialer,
        ):
            await acceptor.event("session")
            await dialer.event("session")
            await exchange(package, acceptor, dialer)
    (session,) = read_sessions([str(path)])
    return [(piece.side, piece.data, piece.timestamp) for piece in session.pieces() if piece.data]


@pytest.mark.parametrize(("package", "protocol"), RUNS)
async def test_npm_connections_are_read_from_any_packet_on(
    package: tuple[str, ...], protocol: str, tmp_path: Path
) -> None:
    record = await recorded(package, tmp_path / "npm.pcapng")
    tally = Tally()
    cut_randomly(partial(create, protocol), record, CUTS, 1, tally)
    assert tally.certain == []
    assert tally.decoded_share >= 0.95, tally
    assert tally.listed_share >= 0.95, tally
