"""A client, a chaos proxy and a server over real connections, and what their capture shows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import polymux
from polymux.analysis.options import AnalysisOptions
from polymux.analysis.session.analyzer import analyze_session
from polymux.capture import PcapngWriter, read_sessions
from polymux.relay import ChaosProxy

LOCAL = "tcp://127.0.0.1:0"
TIMEOUT = 30

Handler = Callable[[Any], Awaitable[None]]


async def echo(session: polymux.Session) -> None:
    """Send everything back; a stream whose content begins with `reset` is aborted instead."""

    async def answer(stream: polymux.Stream) -> None:
        async for chunk in stream:
            if chunk.startswith(b"reset"):
                stream.abort()
                return
            await stream.send(chunk)

    await session.serve_streams(answer)


@contextlib.asynccontextmanager
async def faulty(
    protocol: str,
    rules: Sequence[str] = (),
    handler: Handler = echo,
    out: Path | None = None,
    control: str | None = None,
    timeouts: polymux.Timeouts | None = None,
) -> AsyncIterator[tuple[Any, ChaosProxy]]:
    """A client's session through a chaos proxy to a server, and the proxy."""
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(PcapngWriter(str(out))) if out is not None else None
        async with (
            asyncio.timeout(TIMEOUT),
            polymux.serve(handler, LOCAL, protocol=protocol) as server,
            ChaosProxy(
                LOCAL, server.url, protocol=protocol, rules=rules, sink=sink, control=control,
                timeouts=timeouts,
            ) as proxy,
            polymux.connect(proxy.url, protocol=protocol, timeouts=timeouts) as client,
        ):  # fmt: skip
            yield client, proxy


async def ask(session: Any, data: bytes = b"hello", name: str = "work") -> bytes:
    """Send data on a new stream, and return what comes back up to the end."""
    stream = await open_named(session, name)
    await stream.send(data)
    await stream.end()
    answer: bytes = await stream.receive_all()
    return answer


async def fill(stream: polymux.Stream, seconds: float) -> None:
    """Send until nothing more is taken for so long: TimeoutError is what is expected."""
    while True:
        async with asyncio.timeout(seconds):
            await stream.send(bytes(100_000))


async def open_named(session: Any, name: str = "work") -> polymux.Stream:
    """Open a stream, with the name where the protocol has names."""
    opened: polymux.Stream = await session.open(
        b"" if session.endpoint.protocol.name == "yamux" else name
    )
    return opened


def rows_in(capture: Path, table: str) -> list[dict[str, Any]]:
    """The rows of one table that the analysis of a capture gives."""
    found: list[dict[str, Any]] = []

    def emit(name: str, batch: Any) -> None:
        if name == table:
            found.extend(batch.to_pylist())

    options = AnalysisOptions("auto", tables=frozenset({table}))
    with read_sessions([str(capture)]) as reader:
        for session in reader:
            analyze_session(session, options, emit)
    return found
