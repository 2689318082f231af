"""Connections and streams in numbers, against the commands as users run them."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from tests.attacks import raw_frames as words
from tests.attacks.runner import MIB, SOAK
from tests.record.certificate_authority import Authority
from tests.record.collector.command_process import Command

import polymux

KIB = 1024
# The first record of a TLS handshake, of which all but a few bytes are missing.
PART_OF_HELLO = bytes.fromhex("16 03 01 02 00 01 00 01 fc 03 03")


def port_of(command: Command) -> int:
    found = re.search(r"listening at \w+://[\w.]+:(\d+)", command.text)
    assert found is not None, command.text
    return int(found[1])


def memory_of(command: Command) -> int:
    info = psutil.Process(command.process.pid).memory_info()
    return int(info.rss - info.shared)


@contextlib.asynccontextmanager
async def flooded(port: int, count: int, data: bytes = b"") -> AsyncIterator[list[socket.socket]]:
    """Connections that send this and nothing more."""
    loop = asyncio.get_running_loop()
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            sock = socket.socket()
            sockets.append(sock)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", port))
            if data:
                await loop.sock_sendall(sock, data)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()


async def until(truth: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not truth():
            await asyncio.sleep(0.02)


# Minmux streams that only have credit


async def test_minmux_streams_that_only_have_credit_cost_a_collector_little(tmp_path: Path) -> None:
    sessions, streams = (32 if SOAK else 6), 1000
    data = b"".join(words.promise(2 * number + 1, 1) for number in range(streams))
    arguments = ("collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "minmux")
    async with Command(*arguments, "--out", str(tmp_path / "out"), ready="listening") as command:
        async with flooded(port_of(command), sessions):
            await asyncio.sleep(0.5)
            empty = memory_of(command)
        async with flooded(port_of(command), sessions, data) as sockets:
            for sock in sockets:
                await hear_credit(sock, streams)
            each = (memory_of(command) - empty) / (sessions * streams)
            busy = await idle_share(command, 0.05)
        assert await command.stop() == 0
    print(f"R25 minmux: {sessions * streams} streams with credit, {each:.0f} bytes each, "
          f"{100 * busy:.1f} % of a processor when idle")  # fmt: skip
    assert each <= 1 * KIB
    assert busy <= 0.05


def cpu_of(command: Command) -> float:
    times = psutil.Process(command.process.pid).cpu_times()
    return float(times.user + times.system)


async def idle_share(command: Command, enough: float) -> float:
    """Its share of a processor in the quietest of some seconds, the first of `enough` or less.

    What it does last for the connections may come late on a busy machine.
    """
    least = 1.0
    for _ in range(15):
        cpu, began = cpu_of(command), time.monotonic()
        await asyncio.sleep(1.0)
        least = min(least, (cpu_of(command) - cpu) / (time.monotonic() - began))
        if least <= enough:
            break
    return least


async def hear_credit(sock: socket.socket, streams: int) -> None:
    """Wait until the collector has given credit on all streams: four bytes or more for each."""
    heard = 0
    async with asyncio.timeout(60):
        while heard < 4 * streams:
            data = await asyncio.get_running_loop().sock_recv(sock, 1 << 16)
            assert data, "the collector has ended the session"
            heard += len(data)


@pytest.mark.parametrize("buffer", [("2M",), ("4M", "--processes", "2")])
async def test_the_buffer_of_a_collector_bounds_streams_too(
    buffer: tuple[str, ...], tmp_path: Path
) -> None:
    """Sessions above their share end with the limit's name; the others go on."""
    data = b"".join(words.promise(2 * number + 1, 1) for number in range(1000))
    arguments = ("collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "minmux",
                 "--pause", "0.3", "--buffer", *buffer)  # fmt: skip
    async with Command(*arguments, "--out", str(tmp_path / "out"), ready="listening") as command:
        async with flooded(port_of(command), 6, data):
            await command.said("too many streams at once: limit server_buffer_bytes=2097152")
            url = f"tcp://127.0.0.1:{port_of(command)}"
            async with polymux.connect(url, protocol="minmux") as session:
                assert isinstance(session, polymux.MinmuxSession)
                sender = session.sender(7)
                sender.promise(1)
                await sender.send(b"still served")
                await sender.stop()
                await sender.wait_over()
        assert await command.stop() == 0


# Silent and half-open connections


async def honest_reply(url: str, tls: ssl.SSLContext | None = None) -> float:
    """Seconds until an honest client has its first reply."""
    began = time.monotonic()
    async with polymux.connect(url, protocol="streamux", tls=tls, timeout=30) as session:
        assert isinstance(session, polymux.StreamuxSession)
        await session.request(b"hello", timeout=30)
    return time.monotonic() - began


@pytest.mark.parametrize("name", ["serve", "record", "collect"])
async def test_silent_connections_do_not_lock_out_newcomers(name: str, tmp_path: Path) -> None:
    count = 1000 if SOAK else 300
    server = ("serve", "tcp://127.0.0.1:0", "--protocol", "streamux", "--action", "echo")
    async with contextlib.AsyncExitStack() as stack:
        behind = await stack.enter_async_context(Command(*server, ready="listening"))
        commands = {
            "serve": server,
            "record": ("record", "tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port_of(behind)}",
                       "-o", str(tmp_path / "out.pcapng"), "--clients", "200"),
            "collect": ("collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "streamux",
                        "--out", str(tmp_path / "out"), "--clients", "200"),
        }  # fmt: skip
        command = behind
        if name != "serve":
            command = await stack.enter_async_context(Command(*commands[name], ready="listening"))
        async with flooded(port_of(command), count):
            seconds = await honest_reply(f"tcp://127.0.0.1:{port_of(command)}")
            print(f"R26 {name}: {count} silent connections, reply to a newcomer in {seconds:.2f} s")
            assert seconds <= 5
            await command.said("made room for another: limit")
            said = command.text.count("made room for another")
            assert said <= 2, "once for each limit"
        await command.stop()


async def test_unfinished_tls_handshakes_are_bounded(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    count = 1000 if SOAK else 400
    arguments = ("serve", "tls://localhost:0", "--protocol", "streamux", "--action", "echo",
                 "--cert", authority.cert, "--key", authority.key)  # fmt: skip
    trusting = ssl.create_default_context(cafile=authority.ca)
    async with Command(*arguments, ready="listening") as command:
        url = f"tls://localhost:{port_of(command)}"
        await honest_reply(url, trusting)
        before = most = memory_of(command)
        async with flooded(port_of(command), count, PART_OF_HELLO):
            reply = asyncio.create_task(honest_reply(url, trusting))
            began = time.monotonic()
            while time.monotonic() - began < 1.5 or not reply.done():
                most = max(most, memory_of(command))
                await asyncio.sleep(0.02)
            seconds = await reply
        print(f"R27 tls: {count} unfinished handshakes, memory +{(most - before) / MIB:.1f} MiB, "
              f"reply to a newcomer in {seconds:.1f} s")  # fmt: skip
        assert most - before <= 64 * MIB
        assert await command.stop() == 0


async def test_silent_tls_connections_cost_little(tmp_path: Path) -> None:
    """A handshake, with its buffers, begins with the first byte."""
    authority = Authority(tmp_path / "authority")
    count = 100  # fewer than may be half-open
    arguments = ("serve", "tls://localhost:0", "--protocol", "streamux", "--action", "echo",
                 "--cert", authority.cert, "--key", authority.key)  # fmt: skip
    trusting = ssl.create_default_context(cafile=authority.ca)
    async with Command(*arguments, ready="listening") as command:
        url = f"tls://localhost:{port_of(command)}"
        await honest_reply(url, trusting)
        before, descriptors = memory_of(command), descriptors_of(command)
        async with flooded(port_of(command), count):
            # One may have been that of the reply before.
            await until(lambda: descriptors_of(command) >= descriptors + count - 1)
            await honest_reply(url, trusting)
            each = (memory_of(command) - before) / count
        print(f"R27 tls: {count} silent connections, {each / KIB:.1f} KiB each")
        assert each <= 32 * KIB
        assert await command.stop() == 0


def descriptors_of(command: Command) -> int:
    return int(psutil.Process(command.process.pid).num_fds())


# No descriptors


async def test_at_the_limit_of_descriptors_a_recorder_forwards_what_it_accepts(
    tmp_path: Path,
) -> None:
    """Each connection takes two descriptors."""
    few = ("sh", "-c", 'ulimit -n 128 && exec "$0" "$@"')
    async with (
        polymux.serve(
            lambda session: session.serve_streams(read_to_end), "tcp://127.0.0.1:0",
            protocol="mplex",
        ) as server,
        Command("record", "tcp://127.0.0.1:0", server.url, "-o", str(tmp_path / "talk.pcapng"),
                ready="listening", before=few) as command,
    ):  # fmt: skip
        async with flooded(port_of(command), 200, words.mplex(0, words.NEW)):
            await command.said("no connections are accepted until descriptors are free")
            await until(lambda: len(server.sessions) > 30)
        async with asyncio.timeout(60):
            async with polymux.connect(command_url(command), protocol="mplex") as newcomer:
                await confirmed(newcomer)
        assert await command.stop() == 0, command.text
    assert " 0 not forwarded" in command.text


async def read_to_end(stream: polymux.Stream) -> None:
    await stream.receive_all()
    await stream.end()


def command_url(command: Command) -> str:
    return f"tcp://127.0.0.1:{port_of(command)}"


async def test_at_the_limit_of_descriptors_a_collector_stays_durable(tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "mplex",
                 "--rotate-time", "0.2", "--out", str(out))  # fmt: skip
    few = ("sh", "-c", 'ulimit -n 128 && exec "$0" "$@"')
    async with Command(*arguments, ready="listening", before=few) as command:
        url = f"tcp://127.0.0.1:{port_of(command)}"
        async with polymux.connect(url, protocol="mplex") as session:
            await confirmed(session)
            async with flooded(port_of(command), 200, words.mplex(0, words.NEW)):
                await command.said("no connections are accepted until descriptors are free")
                files = len(list(out.glob("*.pcapng")))
                async with asyncio.timeout(60):
                    while len(list(out.glob("*.pcapng"))) <= files:  # they are published meanwhile
                        await confirmed(session)
                        await asyncio.sleep(0.05)
                busy = await idle_share(command, 0.3)
            async with asyncio.timeout(60), polymux.connect(url, protocol="mplex") as newcomer:
                await confirmed(newcomer)
        assert command.text.count("no connections are accepted") == 1
        assert await command.stop() == 0, command.text
    print(f"R28 collect: 128 descriptors, 200 connections: durable, {100 * busy:.0f} % busy")
    assert busy <= 0.3


async def confirmed(session: polymux.Session) -> None:
    """Send something and wait until the collector has it on disk."""
    stream = await session.open("s")
    await stream.send(b"something")
    await stream.end()
    async with asyncio.timeout(60):
        assert await stream.receive() == b""
