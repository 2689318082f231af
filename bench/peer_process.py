"""The peer process of the live benchmarks: prints the ports it listens on, then runs commands.

Started as `python -m bench.peer_process LOOP [BUSY_POLL]`. It listens for each protocol of polymux
(`peer_process_work`) and for raw bytes and bare WebSockets (`raw_endpoints`). For a line
`{"port": N, "bytes": N, "opening": hex, "frame": hex}` on standard input it connects to that port
and sends the opening once and the frame repeatedly, as fast as a blocking socket accepts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from bench import loops
from bench.peer_process_work import HANDLERS, LIMITS
from bench.raw_endpoints import LISTENERS

import polymux

SEND_BLOCK_BYTES = 256 * 1024


def send_repeatedly(port: int, total_bytes: int, opening: bytes, frame: bytes) -> None:
    """Runs in a thread: `bytes` of whole frames after the opening, then the end."""
    block = frame * max(1, SEND_BLOCK_BYTES // len(frame))
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(opening)
        for _ in range(total_bytes // len(block)):
            sock.sendall(block)
        sock.sendall(frame * (total_bytes % len(block) // len(frame)))
        sock.shutdown(socket.SHUT_WR)
        try:
            while sock.recv(65536):
                pass
        except OSError:
            pass  # the receiver closed first


async def main(options: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    ports = {}
    servers: list[Any] = []
    for name, (url, protocol, handle) in HANDLERS.items():
        server = await polymux.serve(handle, url, protocol=protocol, limits=LIMITS, **options)
        servers.append(server)
        ports[name] = server.port
    for name, listen in LISTENERS.items():
        listener, ports[name] = await listen()
        servers.append(listener)
    print(json.dumps(ports), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        opening, frame = bytes.fromhex(order["opening"]), bytes.fromhex(order["frame"])
        loop.run_in_executor(None, send_repeatedly, order["port"], order["bytes"], opening, frame)
    os._exit(0)  # without waiting for tasks that still run


def busy_poll_option(arguments: list[str]) -> dict[str, Any]:
    """The keyword arguments that LOOP [BUSY_POLL] ask for."""
    return {"busy_poll": float(arguments[1])} if len(arguments) > 1 else {}


# In the process that starts it


class PeerProcess:
    """A handle of the peer process."""

    def __init__(
        self, process: asyncio.subprocess.Process, ports: dict[str, int], options: dict[str, Any]
    ) -> None:
        self.process = process
        self.ports = ports
        self.options = options  # of its servers and of the sessions with them
        self.pids = (os.getpid(), process.pid)

    def send_repeatedly(self, port: int, total_bytes: int, opening: bytes, frame: bytes) -> None:
        assert self.process.stdin is not None
        order = {
            "port": port,
            "bytes": total_bytes,
            "opening": opening.hex(),
            "frame": frame.hex(),
        }
        self.process.stdin.write(json.dumps(order).encode() + b"\n")

    def connect(self, name: str) -> contextlib.AbstractAsyncContextManager[Any]:
        """Connect to the peer process's listener of this name."""
        url, protocol, _ = HANDLERS[name]
        scheme = url.partition(":")[0]
        path = "/omnistreams" if scheme == "ws" else ""
        there = f"{scheme}://127.0.0.1:{self.ports[name]}{path}"
        return polymux.connect(there, protocol=protocol, limits=LIMITS, **self.options)


@contextlib.asynccontextmanager
async def start_peer(
    loop: str = loops.ASYNCIO, busy_poll: float | None = None
) -> AsyncIterator[PeerProcess]:
    """Start the peer process on this loop; `busy_poll` in seconds, None for the default."""
    pipe = asyncio.subprocess.PIPE
    arguments = [loop] if busy_poll is None else [loop, str(busy_poll)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.peer_process", *arguments, stdin=pipe, stdout=pipe,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        ports = json.loads(await process.stdout.readline())
        yield PeerProcess(process, ports, busy_poll_option(arguments))
    finally:
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    loops.run(sys.argv[1], main(busy_poll_option(sys.argv[1:])))
