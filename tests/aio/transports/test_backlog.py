"""The queue of connections that a server has not accepted yet."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import warnings

import pytest
from tests.aio.session_helpers import echo

import polymux

CONNECTIONS = 600  # more than asyncio's default backlog of 100


def packets_sent_again(peer: socket.socket) -> int:
    """`tcpi_total_retrans` of Linux: a first packet that was dropped is sent again."""
    info = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    return int(struct.unpack_from("I", info, 100)[0])


async def test_a_burst_of_connections_is_not_dropped_by_the_kernel() -> None:
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex") as server:
        peers = [socket.socket() for _ in range(CONNECTIONS)]
        repeated = 0
        for peer in peers:  # while the server, in this thread, accepts none of them
            peer.settimeout(30)
            peer.connect(("127.0.0.1", server.port))
            repeated += packets_sent_again(peer)
        for peer in peers:
            peer.close()
    assert repeated == 0
    print(f"R31 a burst: {len(peers)} connections, none was dropped")


async def test_the_backlog_can_be_set() -> None:
    limits = polymux.Limits(listen_backlog=1)
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex", limits=limits) as server:
        peers = [socket.socket() for _ in range(8)]
        connected = 0
        for peer in peers:
            peer.settimeout(0.2)
            try:
                peer.connect(("127.0.0.1", server.port))
                connected += 1
            except TimeoutError:
                break
        for peer in peers:
            peer.close()
    assert connected < len(peers)


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_was_just_accepted_is_closed_when_the_loop_ends(turns: int) -> None:
    """Its task may be cancelled before it began."""

    async def main() -> None:
        server = await polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex")
        peer.connect(("127.0.0.1", server.port))
        for _ in range(turns):
            await asyncio.sleep(0)

    with socket.socket() as peer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        peer.settimeout(30)
        asyncio.run(main())
        gc.collect()
    left = [str(warning.message) for warning in caught if "raddr" in str(warning.message)]
    assert left == []
