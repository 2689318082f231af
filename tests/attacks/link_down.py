"""Run in a network of its own: sessions of every protocol, then the only link goes down.

Prints, as JSON, after how many seconds each side of each session heard of it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import socket
import struct
import sys
import time

import polymux
from polymux import MinmuxSession, Session, Timeouts

PROTOCOLS = ["mplex", "nerdbank:version=1", "nerdbank:version=2", "nerdbank:version=3",
             "omnistreams", "streamux", "minmux"]  # fmt: skip
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def set_link(up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        name = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(sock, SIOCGIFFLAGS, name))[1]
        flags = flags | IFF_UP if up else flags & ~IFF_UP
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


async def wait_for_anything(session: Session) -> None:
    """Wait for the peer, as an application of this protocol does."""
    if isinstance(session, MinmuxSession):
        await session.receiver(1 if session.endpoint.side else 2).receive()
    else:
        await session.accept()


async def main(interval: float) -> dict[str, float]:
    timeouts = Timeouts(keepalive_interval=interval)
    figures: dict[str, float] = {}
    down_at = 0.0
    ready: set[str] = set()
    all_ready = asyncio.Event()

    async def noting(who: str, session: Session) -> None:
        ready.add(who)
        if len(ready) == 2 * len(PROTOCOLS):
            all_ready.set()
        try:
            await wait_for_anything(session)
        except polymux.PolymuxError:
            figures[who] = round(time.monotonic() - down_at, 2) if down_at else -1.0

    async with asyncio.timeout(4 * interval + 20):
        waiting = []
        for protocol in PROTOCOLS:

            async def handle(session: Session, protocol: str = protocol) -> None:
                await noting(f"{protocol} acceptor", session)

            server = await polymux.serve(
                handle, "tcp://127.0.0.1:0", protocol=protocol, timeouts=timeouts
            )
            session = await polymux.connect(server.url, protocol=protocol, timeouts=timeouts)
            waiting.append(asyncio.create_task(noting(f"{protocol} dialer", session)))
        await all_ready.wait()
        down_at = time.monotonic()
        set_link(False)
        await asyncio.gather(*waiting)
        while len(figures) < 2 * len(PROTOCOLS):
            await asyncio.sleep(0.05)
    return figures


if __name__ == "__main__":
    set_link(True)
    said = asyncio.run(main(float(sys.argv[1])))
    set_link(True)
    print(json.dumps(said))
