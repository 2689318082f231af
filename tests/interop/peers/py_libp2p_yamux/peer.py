"""PyPI libp2p's Yamux over TCP, under trio, driven by the JSON lines of ../README.md.

The muxer is loaded from the released package without the rest of it: importing `libp2p` imports
every transport, and with them some seventy packages. What the muxer takes from there are base
classes and names in annotations; they are replaced here, as is the secured connection it runs on.
"""

# mypy: disable-error-code="import-not-found"
# The packages are installed where this runs, and nowhere else.

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import sys
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any

import trio

PERIOD = 65536
BLOCK = 65536


def bare_module(name: str, path: list[str] | None = None, **names: object) -> None:
    """Put a module with these names where an import finds it; with a path, a package."""
    made = types.ModuleType(name)
    made.__dict__.update(names)
    if path is not None:
        made.__path__ = path
    sys.modules[name] = made


def load_muxer() -> None:
    spec = importlib.util.find_spec("libp2p")
    assert spec is not None
    (root,) = spec.submodule_search_locations or []
    base = type("Base", (), {})
    bare_module("multiaddr", Multiaddr=base)
    bare_module("libp2p", [root])
    bare_module("libp2p.network", [f"{root}/network"])
    bare_module("libp2p.peer", [])
    bare_module("libp2p.peer.id", ID=base)
    bare_module(
        "libp2p.abc", ConnectionType=base, IMuxedConn=base, IMuxedStream=base, ISecureConn=base
    )


load_muxer()

from libp2p.network.connection.exceptions import RawConnError  # noqa: E402
from libp2p.stream_muxer.exceptions import (  # noqa: E402
    MuxedConnUnavailable,
    MuxedStreamEOF,
    MuxedStreamError,
)
from libp2p.stream_muxer.yamux.yamux import Yamux  # noqa: E402

Fields = dict[str, Any]


def say(event: str, **fields: object) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def contents(seed: int, size: int) -> bytes:
    table = bytes((seed * 31 + i * 7 + (i >> 8)) & 255 for i in range(min(size, PERIOD)))
    return (table * (size // PERIOD + 1))[:size]


class SocketConnection:
    """A TCP stream as the muxer uses a secured connection."""

    def __init__(self, stream: trio.SocketStream, is_initiator: bool) -> None:
        self.stream = stream
        self.is_initiator = is_initiator

    async def read(self, n: int | None = None) -> bytes:
        try:
            return bytes(await self.stream.receive_some(n))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as problem:
            raise RawConnError("connection closed") from problem

    async def write(self, data: bytes) -> None:
        try:
            await self.stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as problem:
            raise RawConnError("connection closed") from problem

    async def close(self) -> None:
        await self.stream.aclose()


class Lane:
    """A stream with what was read from it."""

    def __init__(self, number: int, stream: Any, origin: str) -> None:
        self.number = number
        self.stream = stream
        self.origin = origin
        self.received = 0
        self.sum = hashlib.sha256()
        self.ended = False
        self.error: str | None = None
        self.changed = trio.Condition()

    def status(self) -> Fields:
        return {
            "stream": self.number,
            "id": self.stream.stream_id,
            "origin": self.origin,
            "received": self.received,
            "sha256": self.sum.hexdigest(),
            "ended": self.ended,
            "error": self.error,
        }

    async def pump(self, echo: bool = False) -> None:
        """Read to the end, and send it back if asked to."""
        while not self.ended and self.error is None:
            data = b""
            try:
                data = bytes(await self.stream.read())
                self.received += len(data)
                self.sum.update(data)
                if echo:
                    await self.stream.write(data)
            except MuxedStreamEOF:
                self.ended = True
            except (MuxedStreamError, RawConnError) as problem:
                self.error = str(problem)
            async with self.changed:
                self.changed.notify_all()

    async def until(self, done: Callable[[], bool]) -> None:
        async with self.changed:
            while not (done() or self.ended or self.error is not None):
                await self.changed.wait()


class Program:
    """The commands of a test, on one session."""

    def __init__(self, session: Any, nursery: trio.Nursery) -> None:
        self.session = session
        self.nursery = nursery
        self.lanes: dict[int, Lane] = {}
        self.mode: Fields = {"incoming": "echo"}

    def add(self, stream: Any, origin: str) -> Lane:
        lane = Lane(len(self.lanes), stream, origin)
        self.lanes[lane.number] = lane
        return lane

    async def accept_streams(self) -> None:
        while True:
            try:
                stream = await self.session.accept_stream()
            except MuxedConnUnavailable as problem:
                say("disconnected", message=str(problem))
                return
            self.nursery.start_soon(self.take, self.add(stream, "remote"), self.mode)

    async def take(self, lane: Lane, mode: Fields) -> None:
        quiet = mode.get("quiet", False)
        if not quiet:
            say("stream", **lane.status())
        way = mode["incoming"]
        if way == "stall":
            return
        await lane.pump(echo=way == "echo")
        if way == "late" and lane.ended:
            await lane.stream.write(contents(mode.get("seed", 0), mode.get("size", 0)))
        if way != "hold" and lane.ended:
            await lane.stream.close()
        if not quiet:
            say("end" if lane.ended else "close", **lane.status())

    # Commands

    async def do_mode(self, command: Fields) -> Fields:
        self.mode = command
        return {}

    async def do_open(self, command: Fields) -> Fields:
        lane = self.add(await self.session.open_stream(), "local")
        self.nursery.start_soon(lane.pump)
        return {"streams": [lane.status()]}

    async def do_exchange(self, command: Fields) -> Fields:
        count, seed, size = command.get("count", 1), command.get("seed", 0), command.get("size", 0)
        lanes: list[Lane] = []
        began = time.monotonic()

        async def one(lane: Lane, data: bytes) -> None:
            async with trio.open_nursery() as both:
                both.start_soon(lane.pump)
                for start in range(0, len(data), BLOCK):
                    await lane.stream.write(data[start : start + BLOCK])
                await lane.stream.close()

        async with trio.open_nursery() as nursery:
            for number in range(count):
                lanes.append(self.add(await self.session.open_stream(), "local"))
                nursery.start_soon(one, lanes[-1], contents(seed + number, size))
        results = [lane.status() for lane in lanes]
        return {"results": results, "seconds": time.monotonic() - began}

    async def do_send(self, command: Fields) -> Fields:
        data = command.get("text", "").encode()
        if "size" in command:
            data = contents(command.get("seed", 0), command["size"])
        await self.lane(command).stream.write(data)
        return {"sent": len(data)}

    async def do_end(self, command: Fields) -> Fields:
        await self.lane(command).stream.close()
        return {}

    async def do_reset(self, command: Fields) -> Fields:
        await self.lane(command).stream.reset()
        return {}

    async def do_wait(self, command: Fields) -> Fields:
        lane = self.lane(command)
        wanted = command.get("bytes")
        await lane.until(lambda: wanted is not None and lane.received >= wanted)
        return lane.status()

    async def do_status(self, command: Fields) -> Fields:
        return self.lane(command).status()

    async def do_rtt(self, command: Fields) -> Fields:
        """The round trip of the package's own pings, which begin half a second after the start."""
        while not self.session.rtt():
            await trio.sleep(0.02)
        return {"ms": self.session.rtt() * 1000}

    async def do_goaway(self, command: Fields) -> Fields:
        await self.session.close()
        return {}

    def lane(self, command: Fields) -> Lane:
        return self.lanes[command["stream"]]

    async def obey(self, command: Fields) -> None:
        heading = {"do": command["do"], "call": command.get("call")}
        act: Callable[[Fields], Awaitable[Fields]] | None
        act = getattr(self, f"do_{command['do']}", None)
        try:
            if act is None:
                raise ValueError(f"no command {command['do']!r}")
            say("reply", **heading, ok=True, **await act(command))
        except Exception as problem:
            say("reply", **heading, ok=False, error=f"{type(problem).__name__}: {problem}")

    async def run(self) -> None:
        """Obey the lines of standard input; exit when it ends."""
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            self.nursery.start_soon(self.obey, json.loads(line))
        os._exit(0)


async def main(listen: int | None, connect: int | None) -> None:
    if listen is not None:
        (listener,) = await trio.open_tcp_listeners(listen, host="127.0.0.1")
        say("listening", listening=listener.socket.getsockname()[1])
        stream = await listener.accept()
    else:
        assert connect is not None
        stream = await trio.open_tcp_stream("127.0.0.1", connect)
        say("connected")
    session = Yamux(SocketConnection(stream, listen is None), "the peer", listen is None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(session.start)
        program = Program(session, nursery)
        nursery.start_soon(program.run)
        await session.event_started.wait()
        say("session")
        await program.accept_streams()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int)
    parser.add_argument("--connect", type=int)
    arguments = parser.parse_args()
    trio.run(main, arguments.listen, arguments.connect)
