"""What the peer process does in each protocol: echo some streams, read the rest."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import polymux

# Benchmarks open more streams and sessions, and ping more often, than the default limits allow.
MANY = 1 << 17
LIMITS = polymux.Limits(
    max_streams=MANY, accept_backlog=MANY, max_own_streams=MANY, max_sessions=MANY,
    max_sessions_per_address=MANY, empty_frame_burst=1_000_000, closed_streams_remembered=MANY,
)  # fmt: skip
ORDER_STRUCT = struct.Struct(">cII")  # Minmux: action, first id, number of the dialer's streams
ORDER_STREAM_ID = 1  # the Minmux stream with such orders
SINK_MARKER = b"s"  # first byte of a Streamux request that is read, not echoed
DONE = b"done"  # an omnistreams control message: a stream named `bulk` was read to its end


def spawn(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


# mplex, Nerdbank, yamux: streams named `echo` are echoed, others are read to their end and closed


async def echo_stream(stream: Any) -> None:
    async for data in stream:
        await stream.send(data)


async def serve_stream(stream: Any) -> None:
    if stream.name == "echo":
        await echo_stream(stream)
    else:
        async for _ in stream:
            pass


async def serve_echo(session: Any) -> None:
    """For a protocol without names."""
    await session.serve_streams(echo_stream, max_concurrent=LIMITS.max_streams)


async def serve_duplex(session: Any) -> None:
    await session.serve_streams(serve_stream, max_concurrent=LIMITS.max_streams)


# omnistreams: a stream back for `echo`; a control message when one named `bulk` has ended


async def serve_receiver(session: Any, receiver: Any) -> None:
    if receiver.name == "echo":
        sender = await session.open("echo")
        async for message in receiver:
            await sender.send(message)
        await sender.end()
    else:
        async for _ in receiver:
            pass
        if receiver.name == "bulk":
            await session.control(DONE)


async def serve_one_way(session: Any) -> None:
    await session.serve_streams(partial(serve_receiver, session), max_concurrent=LIMITS.max_streams)


# Streamux: requests are echoed, or read to their end and answered with nothing


async def echo_call(call: Any) -> None:
    await call.reply(await call.read())


async def sink_call(call: Any) -> None:
    async for _ in call:
        pass
    await call.reply()


async def either_call(call: Any) -> None:
    """Small requests and bulk on one session: a request that begins with SINK_MARKER is bulk."""
    first = await call.receive()
    if first[:1] == SINK_MARKER:
        await sink_call(call)
    else:
        await call.reply(first + await call.read())


def calls_handler(work: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    async def handle(session: Any) -> None:
        await session.serve_calls(work, max_concurrent=LIMITS.max_streams)

    return handle


# Minmux: stream 1 says which streams to read, and which of them to echo on the next id


async def read_items(session: Any, number: int) -> None:
    try:
        async for _ in session.receiver(number):
            pass
    except polymux.PolymuxError:
        pass


async def echo_items(session: Any, number: int) -> None:
    try:
        back = session.sender(number + 1)
        async for items in session.receiver(number):
            await back.send(items)
        await back.end()
    except polymux.PolymuxError:
        pass


async def serve_items(session: Any) -> None:
    tasks: set[asyncio.Task[None]] = set()
    orders = b""
    async for data in session.receiver(ORDER_STREAM_ID):
        orders += data
        while len(orders) >= ORDER_STRUCT.size:
            what, first, count = ORDER_STRUCT.unpack_from(orders)
            orders = orders[ORDER_STRUCT.size :]
            if what == b"h":  # hold: receivers that are not read
                for number in range(first, first + 2 * count, 2):
                    session.receiver(number)
                continue
            work = echo_items if what == b"e" else read_items
            for number in range(first, first + 2 * count, 2):
                spawn(tasks, work(session, number))


TCP = "tcp://127.0.0.1:0"
MANY_IDS = "streamux:length_bits=13,id_bits=17,timeout=0"
HANDLERS: dict[str, tuple[str, str, Callable[[Any], Awaitable[None]]]] = {
    "mplex": (TCP, "mplex", serve_duplex),
    "nerdbank": (TCP, "nerdbank", serve_duplex),
    "yamux": (TCP, "yamux", serve_duplex),
    "yamux-echo": (TCP, "yamux", serve_echo),
    "omnistreams": ("ws://127.0.0.1:0/omnistreams", "omnistreams", serve_one_way),
    "streamux": (TCP, "streamux:timeout=0", calls_handler(echo_call)),
    "streamux-sink": (TCP, "streamux:timeout=0", calls_handler(sink_call)),
    "streamux-many": (TCP, MANY_IDS, calls_handler(sink_call)),
    "streamux-either": (TCP, "streamux:timeout=0", calls_handler(either_call)),
    "minmux": (TCP, "minmux", serve_items),
}
