"""The other process of the live benchmark. Prints the ports it listens on, then obeys lines.

Started as `python -m bench.partner`. Listens for polymux peers (mplex, nerdbank: streams named
`echo` are echoed, others are read to their end and closed) and for raw octets (a sink). Told
`{"port": N, "octets": N, "opening": hex, "frame": hex}` on stdin it dials that port and sends the
opening once and the frame over and over, as fast as a blocking socket takes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from typing import Any

import polymux

PIECE = 256 * 1024


async def serve_stream(stream: Any) -> None:
    try:
        if stream.name == "echo":
            async for data in stream:
                await stream.send(data)
        else:
            async for _ in stream:
                pass
        await stream.end()
    except polymux.PolymuxError:
        pass  # the benchmark is done with it


async def handle(session: Any) -> None:
    tasks = set()
    async for stream in session.incoming:
        task = asyncio.create_task(serve_stream(stream))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


class Drain(asyncio.Protocol):
    """Reads what comes, to nobody."""


def blast(port: int, octets: int, opening: bytes, frame: bytes) -> None:
    """Runs in a thread: `octets` of whole frames after the opening, then the end."""
    block = frame * max(1, PIECE // len(frame))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(opening)
        for _ in range(octets // len(block)):
            sock.sendall(block)
        sock.sendall(frame * (octets % len(block) // len(frame)))
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(65536):
                pass
        except OSError:
            pass  # it closed first


async def main() -> None:
    loop = asyncio.get_running_loop()
    ports = {}
    servers: list[Any] = []
    for name in ("mplex", "nerdbank"):
        server = await polymux.serve(handle, "tcp://127.0.0.1:0", protocol=name)
        servers.append(server)
        ports[name] = server.port
    sink = await loop.create_server(Drain, "127.0.0.1", 0)
    ports["sink"] = sink.sockets[0].getsockname()[1]
    print(json.dumps(ports), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        opening, frame = bytes.fromhex(order["opening"]), bytes.fromhex(order["frame"])
        loop.run_in_executor(None, blast, order["port"], order["octets"], opening, frame)
    os._exit(0)  # whatever still runs was for nobody


if __name__ == "__main__":
    asyncio.run(main())
