"""py-libp2p's Mplex over loopback TCP: its own class on its own raw connection, under trio.

No multistream negotiation and no noise: the muxer is given the TCP connection where it expects a
secured one, and uses only its reading and writing. This measures only the muxer and trio.
"""

# mypy: disable-error-code="import-not-found"
# The packages are installed where this runs, and nowhere else.

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import trio
from bench.third_party_peers.link import Command, exit_on_eof, print_json, run_commands
from libp2p.io.trio import TrioTCPStream
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.stream_muxer.exceptions import MuxedStreamEOF, MuxedStreamReset
from libp2p.stream_muxer.mplex.mplex import Mplex

Muxed = Callable[[Any, bool], Any]  # a TCP stream, and whether this side has dialed

ECHO = b"e"  # first byte of a stream that is echoed


def mplex(stream: trio.SocketStream, dials: bool) -> Any:
    return Mplex(RawConnection(TrioTCPStream(stream), dials), ID(b"nobody"))


async def read(stream: Any) -> bytes:
    try:
        return bytes(await stream.read(65536))
    except (MuxedStreamEOF, MuxedStreamReset):
        return b""


async def serve_stream(stream: Any) -> None:
    data = await read(stream)
    echoes = data[:1] == ECHO
    while data:
        if echoes:
            await stream.write(data)
        data = await read(stream)
    await stream.close()


async def listen(muxed: Muxed) -> None:
    threading.Thread(target=exit_on_eof, daemon=True).start()
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    print_json({"port": listener.socket.getsockname()[1]})
    async with listener, trio.open_nursery() as nursery:
        session = muxed(await listener.accept(), False)
        nursery.start_soon(session.start)
        while True:
            nursery.start_soon(serve_stream, await session.accept_stream())


async def connect(muxed: Muxed, port: int) -> None:
    session = muxed(await trio.open_tcp_stream("127.0.0.1", port), True)

    async def push(byte_count: int, size: int) -> None:
        stream = await session.open_stream()
        payload = bytes(size)
        for _ in range(max(1, byte_count // size)):
            await stream.write(payload)
        await stream.close()
        while await read(stream):
            pass

    async def bulk(byte_count: int, size: int, streams: int) -> float:
        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(streams):
                nursery.start_soon(push, byte_count // streams, size)
        return time.perf_counter() - start

    async def openings(count: int, flight: int) -> float:
        async def some() -> None:
            for _ in range(count // flight):
                stream = await session.open_stream()
                await stream.close()
                while await read(stream):
                    pass

        start = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(flight):
                nursery.start_soon(some)
        return time.perf_counter() - start

    async def pings(count: int, load: int) -> list[float]:
        stream = await session.open_stream()
        found = []
        quiet = not load  # stop when the load has ended

        async def busy() -> None:
            nonlocal quiet
            await push(load, 65536)
            quiet = True

        async with trio.open_nursery() as nursery:
            if load:
                nursery.start_soon(busy)
            for _ in range(count):
                start = time.perf_counter()
                await stream.write(ECHO * 16)
                got = 0
                while got < 16:
                    got += len(await read(stream))
                found.append(time.perf_counter() - start)
                if load and quiet:
                    break
        await stream.close()
        return found

    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.start)
        commands: dict[str, Command] = {"bulk": bulk, "openings": openings, "pings": pings}
        await run_commands(commands, lambda: trio.to_thread.run_sync(sys.stdin.readline))


def main(muxed: Muxed) -> None:
    """Listen or connect, as the command line says."""
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "listen":
        trio.run(listen, muxed)
    else:
        trio.run(connect, muxed, int(sys.argv[2]))


if __name__ == "__main__":
    main(mplex)
