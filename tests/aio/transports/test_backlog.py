"""The queue of connections that a server has not accepted yet."""

from __future__ import annotations

import socket
import struct

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
