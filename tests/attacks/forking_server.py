"""Servers to attack: one prepared process that forks a fresh server for each attack.

A line of JSON on standard input asks for a server; a line on standard output says its process, its
port and its control port. A fork has everything imported and nothing used, so its memory says what
the attack alone has cost. A server ends when its control connection does.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, cast

import polymux
from polymux import (
    Call,
    ItemReceiver,
    Limits,
    MessageReceiver,
    MinmuxSession,
    OmnistreamsSession,
    Session,
    Stream,
    StreamuxSession,
    Timeouts,
)

Facts = dict[str, Any]


class Loud(logging.Handler):
    """Keeps warnings and errors of the log: an attack must not cause any, apart from a line or two
    about the limit that stopped it, and one about an immediate violation."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.limits = 0
        self.unhandled = 0

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)[:2000]
        told = " ends: " in line or "raise it with Limits(" in line
        if record.levelno == logging.WARNING and told:
            self.limits += 1
            if self.limits <= 2:
                return
        if record.levelno == logging.WARNING and "before it was handled" in line:
            self.unhandled += 1
            if self.unhandled == 1:
                return
        self.lines.append(line)


class Ward:
    """One session of the server and the most memory it ever held."""

    def __init__(self, session: Session) -> None:
        self.session: Session | None = session
        self.handled = 0  # streams that reached the application
        self.texts: list[str] = []  # what the application was told of them
        self.most = {"control": 0, "pending": 0, "unread": 0, "streams": 0, "remembered": 0}
        self.last: Facts = {}  # once it is over: the session itself is not kept
        self.receive: Callable[[bytes], None] | None = session.data_received
        session.data_received = self.data_received  # type: ignore[method-assign]
        session.closed.add_done_callback(self.rest)

    def rest(self, _: object) -> None:
        self.last = self.facts()
        self.receive = None
        self.session = None

    def data_received(self, data: bytes) -> None:
        if self.receive is None or self.session is None:
            return
        self.receive(data)
        endpoint = self.session.endpoint
        table = endpoint.protocol.streams
        now = {
            "control": len(endpoint.scheduler.control_queue),
            "pending": len(self.session.accept_queue),
            "unread": endpoint.receive_queue.unread_bytes,
            "streams": table.used_slots,
            "remembered": len(table.closed) - table.first_closed,
        }
        self.most = {name: max(now[name], most) for name, most in self.most.items()}

    def facts(self) -> Facts:
        session = self.session
        if session is None:
            return self.last
        return {
            "closed": session.closed.done(),
            "failure": str(session.failure) if session.failure is not None else "",
            "hits": session.endpoint.counters.hits,
            "handled": self.handled,
            "texts": self.texts,
            "most": self.most,
            "frames": session.endpoint.connection.direction(0).frames,
            "peer": session.peer,
        }


class Target:
    """One server. Its first session is the witness, which must be served during the attack."""

    def __init__(self, order: Facts) -> None:
        self.order = order
        self.wards: list[Ward] = []
        self.loud = Loud()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        logging.getLogger().addHandler(self.loud)
        order = self.order
        server = await polymux.serve(
            self.handle, order["url"], protocol=order["protocol"],
            limits=Limits(**order["limits"]), timeouts=Timeouts(**order["timeouts"]),
        )  # fmt: skip
        take = server.start_session

        def noting(session: Session) -> None:
            if order.get("forget"):  # a server that runs for hours keeps only what went wrong
                self.wards = [w for w in self.wards if w.session is not None or w.last["failure"]]
            self.wards.append(Ward(session))
            take(session)

        server.start_session = noting  # type: ignore[method-assign]
        control = await asyncio.start_server(self.converse, "127.0.0.1", 0)
        port = control.sockets[0].getsockname()[1]
        say = {"pid": os.getpid(), "port": server.port, "control": port}
        sys.stdout.write(json.dumps(say) + "\n")
        sys.stdout.flush()
        await self.over

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each line of input with the current facts; exit at its end."""
        while line := await reader.readline():
            if line == b"sweep\n":
                gc.collect()
            facts = {"sessions": [w.facts() for w in self.wards], "loud": self.loud.lines}
            writer.write(json.dumps(facts).encode() + b"\n")
        writer.close()
        self.over.set_result(None)

    async def handle(self, session: Session) -> None:
        ward = next(w for w in self.wards if w.session is session)
        if self.order.get("send_buffer") and session.transport is not None:
            sock = session.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.order["send_buffer"])
        mode = "echo" if ward is self.wards[0] else self.order["mode"]
        if mode == "deaf":
            await session.wait_closed()
        elif isinstance(session, MinmuxSession):
            await minmux_mode(session, mode, ward)
        elif isinstance(session, StreamuxSession):
            await streamux_mode(session, mode, ward)
        else:
            async with asyncio.TaskGroup() as tasks:
                async for stream in session.incoming:
                    ward.handled += 1
                    own = "slow" if mode == "hog" and ward.handled == 1 else mode
                    tasks.create_task(stream_mode(session, stream, own, ward))


async def stream_mode(session: Session, stream: Stream, mode: str, ward: Ward) -> None:
    """Handle one stream: `echo` it, `read` and drop it, or accept and never read it (`slow`; `hog`:
    only the first one)."""
    try:
        ward.texts.append(f"{stream!r}")
        del ward.texts[50:]
        if mode == "slow":
            await session.wait_closed()
        elif isinstance(stream, MessageReceiver):
            await receiver_mode(cast(OmnistreamsSession, session), stream, mode)
        else:
            async with stream:
                async for chunk in stream:
                    if mode in ("echo", "hog") or (mode == "read_bulk" and stream.name != "hog"):
                        await stream.send(chunk)
    except polymux.PolymuxError as problem:
        ward.texts.append(str(problem))


async def receiver_mode(session: OmnistreamsSession, stream: MessageReceiver, mode: str) -> None:
    if mode == "read":
        async for _ in stream:
            pass
        return
    async with await session.open(stream.metadata) as back:
        async for message in stream:
            await back.send(message)


async def streamux_mode(session: StreamuxSession, mode: str, ward: Ward) -> None:
    async def work(call: Call) -> None:
        ward.handled += 1
        try:
            if mode == "slow" or (mode == "hog" and ward.handled == 1):
                await session.wait_closed()
            await call.reply(await call.read())
        except polymux.PolymuxError as problem:
            ward.texts.append(str(problem))
            raise

    await session.serve_calls(work, max_concurrent=2000)


async def minmux_mode(session: MinmuxSession, mode: str, ward: Ward) -> None:
    """Echo stream 1 on stream 2."""
    inlet, outlet = session.receiver(1), session.sender(2)
    tasks: list[asyncio.Task[None]] = []  # of streams that only some profiles have
    if mode == "slow":
        await session.wait_closed()
    ward.handled += 1
    if mode == "read" and session.protocol.profile.format_of(3) is not None:
        for number in (3, 5):
            tasks.append(asyncio.create_task(drop_all(session.receiver(number, window=4000))))
    async for items in inlet:
        if mode == "echo":
            await outlet.send(items)


async def drop_all(inlet: ItemReceiver) -> None:
    with contextlib.suppress(polymux.PolymuxError):
        async for _ in inlet:
            pass


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended servers need nobody to wait for them
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(0)
            code = 1
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(serve_one(json.loads(line)))
                code = 0
            os._exit(code)


async def serve_one(order: Facts) -> None:
    await Target(order).run()


if __name__ == "__main__":
    main()
