"""py-libp2p's Yamux over loopback TCP; see `libp2p_mplex`."""

# mypy: disable-error-code="import-not-found"
# The packages are installed where this runs, and nowhere else.

from __future__ import annotations

from typing import Any

from bench.third_party_peers.libp2p_mplex import main
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.stream_muxer.yamux.yamux import Yamux


def yamux(stream: Any, dials: bool) -> Any:
    return Yamux(RawConnection(TrioTCPStream(stream), dials), ID(b"nobody"), dials)


if __name__ == "__main__":
    main(yamux)
