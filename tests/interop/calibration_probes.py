"""Probes of real peers that no conformance case can be: memory, exact counts, megabytes, log lines.

Each drives one peer and returns what it did, in a few words that do not depend on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from tests.interop.node_peer import GO_YAMUX, Peer

MIB = 1 << 20
SECONDS = 60.0  # for anything that has to happen; nothing that holds uses them up
QUIET_SECONDS = 1.0  # without a byte, after which a peer is taken to be stuck
MOMENT_SECONDS = 0.3  # for more than was expected
DATA, WINDOW_UPDATE, PING = 0, 1, 2
SYN, ACK, FIN, RST = 1, 2, 4, 8
INITIAL_WINDOW = 262_144
HEADER = struct.Struct(">BBHII")
NEW_STREAM, MESSAGE, RESET = 0, 2, 6  # mplex, of the opener
LAST_PING = 99


@contextlib.asynccontextmanager
async def raw_connection(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * MIB)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def uvarint(value: int) -> bytes:
    low = bytearray()
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes([*low, value])


def mplex(flag: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return uvarint(stream << 3 | flag) + uvarint(size) + payload


async def closes(reader: asyncio.StreamReader, seconds: float = SECONDS) -> bool:
    """Whether the peer closes the connection, within so many seconds of its last byte."""
    try:
        while True:
            async with asyncio.timeout(seconds):
                if not await reader.read(MIB):
                    return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: int) -> bool:
    """Whether an mplex peer echoes on a new stream."""
    writer.write(mplex(NEW_STREAM, stream, b"echo") + mplex(MESSAGE, stream, b"still there?"))
    try:
        async with asyncio.timeout(SECONDS):
            await reader.readuntil(b"still there?")
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        return False
    return True


def memory(peer: Peer, name: str) -> int:
    """A line of the process's status in MiB: VmRSS, VmSize, VmHWM."""
    for line in Path(f"/proc/{peer.process.pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) >> 10
    raise ValueError(name)


# mplex


async def multiplex_waits_for_the_end_of_a_varint() -> str:
    async with Peer.listen("multiplex") as peer:
        async with raw_connection(peer.port) as (reader, writer):
            writer.write(b"\xff" * 100)
            if await closes(reader, QUIET_SECONDS):
                return "closed at 100 bytes"
            writer.write(b"\xff")
            return "waits for up to 100 bytes" if await closes(reader) else "waits for more"


async def multiplex_allocates_what_a_header_announces() -> str:
    async with Peer.listen("multiplex") as peer:
        async with raw_connection(peer.port) as (reader, writer):
            assert await answers(reader, writer, 1)
            before = memory(peer, "VmSize")
            writer.write(mplex(NEW_STREAM, 2) + mplex(MESSAGE, 2, b"first", 512 * MIB))
            async with asyncio.timeout(SECONDS):
                while memory(peer, "VmSize") - before < 512:
                    await asyncio.sleep(0.02)
            return "accepted and allocated"


async def multiplex_throws_at_a_length_of_2_40() -> str:
    async with Peer.listen("multiplex") as peer:
        async with raw_connection(peer.port) as (_, writer):
            writer.write(mplex(NEW_STREAM, 2) + mplex(MESSAGE, 2, b"first", 1 << 40))
            crash = await peer.event("crash")
    return f"throws, in {'write' if '_writeMessage' in crash['stack'] else crash['stack']}"


async def multiplex_grows_its_array_to_an_id() -> str:
    async with Peer.listen("multiplex") as peer:
        async with raw_connection(peer.port) as (reader, writer):
            assert await answers(reader, writer, 1)
            before = memory(peer, "VmRSS")
            assert await answers(reader, writer, 50_000_000)
            grown = memory(peer, "VmHWM") - before
            return "an array of 400 MB and more" if grown > 380 else f"{grown} MiB"


async def multiplex_takes_the_body_of_a_reset_for_the_error() -> str:
    async with Peer.listen("multiplex") as peer:
        async with raw_connection(peer.port) as (reader, writer):
            assert await answers(reader, writer, 1)
            writer.write(mplex(RESET, 1, b"went wrong"))
            closed = await peer.event("close")
            return f"becomes the error: {closed['error']}"


async def faults(frames: bytes) -> str:
    """What the mplex of libp2p says when it gives up after these frames; "" if it goes on.

    It has its own default limit here, which the peers of other tests switch off.
    """
    async with Peer.listen("libp2p-mplex", "--options", '{"disconnectThreshold": 5}') as peer:
        await peer.call("mode", incoming="echo", quiet=True)
        async with raw_connection(peer.port) as (reader, writer):
            writer.write(frames)
            fault = asyncio.create_task(peer.event("fault"))
            echo = asyncio.create_task(answers(reader, writer, 9999))
            await asyncio.wait((fault, echo), return_when=asyncio.FIRST_COMPLETED)
            found = str(fault.result()["message"]) if fault.done() else ""
            for task in (fault, echo):
                task.cancel()
            await asyncio.wait((fault, echo))
            return found


async def libp2p_mplex_limits_unknown_streams() -> str:
    frame = mplex(MESSAGE, 77, b"?")
    few, more = await faults(5 * frame), await faults(6 * frame)
    return f"5 at once: {few or 'ignored'}; 6: {more or 'ignored'}"


async def libp2p_mplex_limits_opens() -> str:
    opens = [mplex(NEW_STREAM, number) for number in range(100_000)]
    # The echo that shows that it goes on is one more.
    few, more = await faults(b"".join(opens[:4])), await faults(b"".join(opens))
    return f"5 at once: {few or 'accepted'}; 100,000: {more or 'accepted'}"


# Nerdbank


def offer(number: int, name: bytes) -> bytes:
    """An offer of version 3: code 0, id, source 1, and [name]."""
    body = bytes([0x91, 0xA0 | len(name)]) + name
    return b"\x94\x00\xce" + struct.pack(">I", number) + b"\x01\xc4" + bytes([len(body)]) + body


async def nerdbank_keeps_every_offer() -> str:
    async with Peer.listen("nerdbank") as peer:
        await peer.call("mode", incoming="wait", quiet=True)
        await peer.call("mode", name="echo", incoming="echo", quiet=True)
        async with raw_connection(peer.port) as (reader, writer):
            writer.write(offer(1, b"echo"))
            await reader.read(64)
            before = memory(peer, "VmRSS")
            for first in range(2, 100_002, 1000):
                writer.write(b"".join(offer(first + n, b"x") for n in range(1000)))
                await writer.drain()
            writer.write(offer(200_000, b"echo"))
            accepted = b"\xce" + struct.pack(">I", 200_000)
            async with asyncio.timeout(SECONDS):
                await reader.readuntil(accepted)
            grown = memory(peer, "VmRSS") - before
            return "all kept, over 100 MB" if grown > 100 else f"{grown} MiB"


# yamux


def yamux(kind: int, flags: int, stream: int, length: int) -> bytes:
    return HEADER.pack(0, kind, flags, stream, length)


class RawYamux:
    """A connection on which frames are read and written as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def frame(self) -> tuple[int, int, int, int]:
        """Kind, flags, stream and length of the next frame; its payload is read, pings answered."""
        while True:
            head = HEADER.unpack(await self.reader.readexactly(HEADER.size))
            _, kind, flags, stream, length = head
            if kind == DATA:
                left = length
                while left:
                    left -= len(await self.reader.read(left))
            if kind == PING and flags == SYN:
                self.writer.write(yamux(PING, ACK, 0, length))
                continue
            return kind, flags, stream, length


async def resets_of_5000_opens(port: int, expected: int) -> int:
    """How many of 5,000 streams that are opened at once a peer resets.

    It is waited for `expected` of them, and a moment for one more.
    """
    async with raw_connection(port) as (reader, writer):
        link = RawYamux(reader, writer)
        writer.write(b"".join(yamux(WINDOW_UPDATE, SYN, 2 * n + 1, 0) for n in range(5000)))
        writer.write(yamux(PING, SYN, 0, LAST_PING))
        resets, answered = 0, False
        while True:
            enough = answered and resets >= expected
            try:
                async with asyncio.timeout(MOMENT_SECONDS if enough else SECONDS):
                    kind, flags, _, length = await link.frame()
            except TimeoutError:
                return resets
            answered |= kind == PING and length == LAST_PING
            resets += bool(flags & RST)


async def go_resets_beyond_its_backlog() -> str:
    async with Peer.listen(GO_YAMUX) as peer:
        resets = await resets_of_5000_opens(peer.port, 1)
    return "those beyond the backlog reset" if 1 <= resets <= 5000 - 256 else f"{resets} reset"


async def libp2p_yamux_resets_beyond_its_limit() -> str:
    async with Peer.listen("libp2p-yamux") as peer:
        await peer.call("mode", incoming="echo", quiet=True)
        return f"{await resets_of_5000_opens(peer.port, 4000)} reset"


async def go_echoes_after_half_close() -> str:
    """Whether Go echoes everything to a side that ended before it read: 64 MiB."""
    size, received = 64 * MIB, 0
    async with Peer.listen(GO_YAMUX) as peer, raw_connection(peer.port) as (reader, writer):
        link = RawYamux(reader, writer)
        writer.write(yamux(WINDOW_UPDATE, SYN, 1, 0))
        room, left, piece = INITIAL_WINDOW, size, bytes(65536)
        while True:
            while left and room:
                count = min(left, room, len(piece))
                writer.write(yamux(DATA, 0, 1, count) + piece[:count])
                left, room = left - count, room - count
                if not left:
                    writer.write(yamux(WINDOW_UPDATE, FIN, 1, 0))
            await writer.drain()
            async with asyncio.timeout(SECONDS):
                kind, flags, _, length = await link.frame()
            if kind == DATA:
                received += length
                writer.write(yamux(WINDOW_UPDATE, 0, 1, length))
            elif kind == WINDOW_UPDATE:
                room += length
            if flags & (FIN | RST):
                return f"{size - received} bytes lost"


async def go_reads_after_its_own_close() -> str:
    """What Go misses of 131,072 bytes that are sent once it has closed its own half."""
    size = 131_072
    end_reported = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = RawYamux(reader, writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                _, flags, stream, _ = await link.frame()
                if flags & SYN:
                    writer.write(yamux(WINDOW_UPDATE, ACK, stream, 0))
                if flags & FIN:
                    await end_reported.wait()
                    writer.write((yamux(DATA, 0, stream, size // 4) + bytes(size // 4)) * 4)
                    writer.write(yamux(WINDOW_UPDATE, FIN, stream, 0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Peer.connect(GO_YAMUX, port) as client:
            opened = (await client.call("open"))["streams"][0]["stream"]
            await client.call("end", stream=opened)
            await client.call("wait", stream=opened)  # it reports the end by itself
            end_reported.set()
            await client.call("rtt")  # what was sent before has been received
            read = await client.call("status", stream=opened)
    return f"{size - int(read['received'])} bytes of the tail lost"


async def yamux_js_client_of_go() -> str:
    """How a client of `yamux-js` fares with an echo of Go, for 4 MiB of zeros."""
    size = 4 * MIB
    async with Peer.listen(GO_YAMUX) as server, Peer.connect("yamux-js", server.port) as client:
        opened = (await client.call("open", count=1))["streams"][0]["stream"]
        sending = client.begin("send", stream=opened, hex="00" * size)
        sending.add_done_callback(lambda done: done.exception())
        before, received = -1, 0
        while before < received < size:
            await asyncio.sleep(QUIET_SECONDS)
            before = received
            received = (await client.call("status", stream=opened))["received"]
    return "everything came back" if received >= size else "stuck before the end"
