"""HTTP/2 by the PyPI package h2, sans-IO, under asyncio, doing the same work as streams.

A stream is a request with a body; the answer is its end. Windows are 1 MiB, as in polymux's
Nerdbank, and the connection's window 16 MiB; all else is the package's default.
"""

# mypy: disable-error-code="import-not-found"
# The package is installed where this runs, and nowhere else.

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from bench.third_party_peers.link import Command, exit_on_eof, print_json, run_commands

WINDOW = 1024 * 1024
REQUEST = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/bulk")]
ECHO = [*REQUEST[:3], (":path", "/echo")]
HIGH_WATER_BYTES = 256 * 1024


class Http2Endpoint(asyncio.Protocol):
    """One end. Writes are joined, once per loop iteration."""

    def __init__(self, dials: bool) -> None:
        config = h2.config.H2Configuration(client_side=dials, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.local_settings = h2.settings.Settings(
            client=dials, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: WINDOW,
                                          h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 10000}
        )  # fmt: skip
        self.changed: dict[int, asyncio.Future[None]] = {}
        self.arrived: dict[int, int] = {}
        self.ended: set[int] = set()
        self.echoes: set[int] = set()
        self.unflushed_bytes = 0  # bytes since the last flush
        self.can_write = True
        self.flushing = False
        self.writable: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(16 * WINDOW - 65535)
        self.flush()

    def pause_writing(self) -> None:
        self.can_write = False
        self.writable = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        self.can_write = True
        if self.writable is not None and not self.writable.done():
            self.writable.set_result(None)

    def flush_soon(self) -> None:
        if not self.flushing:
            self.flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        self.flushing = False
        self.unflushed_bytes = 0
        data = self.h2.data_to_send()
        if data:
            self.transport.write(data)

    def wake(self, number: int) -> None:
        waiter = self.changed.pop(number, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait_for_change(self, number: int) -> None:
        self.flush_soon()
        self.changed[number] = asyncio.get_running_loop().create_future()
        await self.changed[number]

    def data_received(self, data: bytes) -> None:
        for event in self.h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                if dict(event.headers)[b":path"] == b"/echo":
                    self.echoes.add(event.stream_id)
                    self.h2.send_headers(event.stream_id, [(":status", "200")])
            elif isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if event.stream_id in self.echoes:
                    self.h2.send_data(event.stream_id, event.data)
                elif event.stream_id in self.arrived:
                    self.arrived[event.stream_id] += len(event.data)
                    self.wake(event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                self.end(event.stream_id)
            elif isinstance(event, h2.events.WindowUpdated):
                for number in [event.stream_id] if event.stream_id else list(self.changed):
                    self.wake(number)
        self.flush_soon()

    def end(self, number: int) -> None:
        if self.h2.config.client_side:
            self.ended.add(number)
            self.wake(number)
        elif number in self.echoes:
            self.h2.end_stream(number)
        else:
            self.h2.send_headers(number, [(":status", "200")], end_stream=True)

    # Commands of the dialing side

    async def send(self, number: int, data: bytes) -> None:
        while data:
            room = min(self.h2.local_flow_control_window(number), self.h2.max_outbound_frame_size)
            if room == 0:
                await self.wait_for_change(number)
                continue
            self.h2.send_data(number, data[:room])
            data = data[room:]
            self.unflushed_bytes += room
            if self.unflushed_bytes < HIGH_WATER_BYTES:
                self.flush_soon()
                continue
            self.flush()  # h2 itself does not bound its output
            if not self.can_write and self.writable is not None:
                await self.writable

    async def push(self, byte_count: int, size: int) -> None:
        number = self.h2.get_next_available_stream_id()
        self.h2.send_headers(number, REQUEST)
        payload = bytes(size)
        for _ in range(byte_count // size):
            await self.send(number, payload)
        self.h2.end_stream(number)
        while number not in self.ended:
            await self.wait_for_change(number)
        self.ended.discard(number)

    async def bulk(self, byte_count: int, size: int, streams: int) -> float:
        start = time.perf_counter()
        await asyncio.gather(*(self.push(byte_count // streams, size) for _ in range(streams)))
        return time.perf_counter() - start

    async def openings(self, count: int, flight: int) -> float:
        async def some() -> None:
            for _ in range(count // flight):
                await self.push(0, 1)

        start = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(flight)))
        return time.perf_counter() - start

    async def requests(self, count: int, size: int, flight: int) -> float:
        """Each is echoed by its own stream."""
        payload = bytes(size)

        async def some() -> None:
            for _ in range(count // flight):
                number = self.h2.get_next_available_stream_id()
                self.arrived[number] = 0
                self.h2.send_headers(number, ECHO)
                await self.send(number, payload)
                self.h2.end_stream(number)
                while number not in self.ended:
                    await self.wait_for_change(number)
                assert self.arrived.pop(number) == size
                self.ended.discard(number)

        start = time.perf_counter()
        await asyncio.gather(*(some() for _ in range(flight)))
        return time.perf_counter() - start

    async def pings(self, count: int, load: int) -> list[float]:
        number = self.h2.get_next_available_stream_id()
        self.arrived[number] = 0
        self.h2.send_headers(number, ECHO)
        busy = asyncio.create_task(self.push(load, 65536)) if load else None
        found = []
        for turn in range(count):
            start = time.perf_counter()
            await self.send(number, bytes(16))
            while self.arrived[number] < 16 * (turn + 1):
                await self.wait_for_change(number)
            found.append(time.perf_counter() - start)
            if busy is not None and busy.done():
                break
        if busy is not None:
            await busy
        self.h2.end_stream(number)
        self.flush()
        return found


async def listen() -> None:
    threading.Thread(target=exit_on_eof, daemon=True).start()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Http2Endpoint(False), "127.0.0.1", 0)
    print_json({"port": server.sockets[0].getsockname()[1]})
    await server.serve_forever()


async def connect(port: int) -> None:
    loop = asyncio.get_running_loop()
    _, side = await loop.create_connection(lambda: Http2Endpoint(True), "127.0.0.1", port)
    commands: dict[str, Command] = {
        "bulk": side.bulk,
        "openings": side.openings,
        "requests": side.requests,
        "pings": side.pings,
    }
    await run_commands(commands, lambda: loop.run_in_executor(None, sys.stdin.readline))


if __name__ == "__main__":
    asyncio.run(listen() if sys.argv[1] == "listen" else connect(int(sys.argv[2])))
