"""What is typed into `polymux serve`: to which stream it goes, and what cannot hold it up."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from polymux.aio import Session, StreamuxSession, pipe
from polymux.cli.support.serve_session import ServeAction, ServedSession
from polymux.cli.support.typed_lines import MAX_WAITING_LINES, TypedLines

MAIN = "from polymux.cli import main; main()"
DEADLINE_SECONDS = 60.0

Capture = pytest.CaptureFixture[str]


class TypedServer:
    """A `polymux serve` at a terminal, without a terminal."""

    def __init__(self, output: Capture) -> None:
        self.typed = TypedLines()
        self.action = ServeAction("print", False, None, (1,))
        self.action.as_json = False
        self.action.typed = self.typed
        self._output = output
        self._text = ""

    async def session(self, protocol: str) -> tuple[Session, asyncio.Task[None]]:
        """Return the client of a new session, and the task that serves it."""
        client, server = await pipe(protocol)
        return client, asyncio.create_task(ServedSession(self.action, server).run())

    def text(self) -> str:
        """All that was printed so far."""
        captured = self._output.readouterr()
        self._text += captured.out + captured.err
        return self._text

    async def wait_for(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while text not in self.text():
                await asyncio.sleep(0.005)

    async def list(self) -> list[str]:
        self.text()
        self._text = ""
        await self.typed.run_line(b"/list")
        return self.text().splitlines()


def run(work: Callable[[TypedServer], Awaitable[None]], output: Capture) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await work(TypedServer(output))

    asyncio.run(limited())


async def ask(client: Session, question: bytes) -> asyncio.Task[bytes]:
    assert isinstance(client, StreamuxSession)  # the caller's protocol
    return asyncio.create_task(client.request(question))


def test_requests_that_the_peer_cancels_are_forgotten(capsys: Capture) -> None:
    async def work(server: TypedServer) -> None:
        client, _ = await server.session("streamux")
        for number in range(30):
            asking = await ask(client, b"question %d" % number)
            await server.wait_for(f"> question {number}\n")
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
        while await server.list():
            await asyncio.sleep(0.005)
        client.abort()

    run(work, capsys)


def test_a_session_that_ends_while_a_request_waits_is_over(capsys: Capture) -> None:
    async def work(server: TypedServer) -> None:
        client, serving = await server.session("streamux")
        asking = await ask(client, b"a question")
        await server.wait_for("> a question\n")
        client.abort()
        await serving
        assert await server.list() == []
        await asyncio.gather(asking, return_exceptions=True)

    run(work, capsys)


def test_a_request_is_reset_and_the_next_one_answered(capsys: Capture) -> None:
    async def work(server: TypedServer) -> None:
        client, _ = await server.session("streamux")
        lost = await ask(client, b"first")
        await server.wait_for("> first\n")
        await server.typed.run_line(b"/reset")
        await server.wait_for("no stream is chosen")
        answered = await ask(client, b"second")
        await server.wait_for("> second\n")
        (line,) = await server.list()
        await server.typed.run_line(b"/switch " + line.split()[0].encode())
        await server.typed.run_line(b"an answer")
        assert await answered == b"an answer"
        lost.cancel()
        client.abort()

    run(work, capsys)


def test_no_other_stream_is_chosen_when_the_chosen_one_ends(capsys: Capture) -> None:
    async def work(server: TypedServer) -> None:
        first, _ = await server.session("mplex")
        stream = await first.open("one")
        await stream.send(b"from the first\n")
        await server.wait_for("from the first\n")
        assert await server.list() == ["* d1 one"]
        await stream.end()
        await server.wait_for("d1 has ended, and no stream is chosen")
        second, _ = await server.session("mplex")
        other = await second.open("two")
        await other.send(b"from the second\n")
        await server.wait_for("d1/2 two> from the second\n")
        assert await server.list() == ["  d1/2 two"]
        await server.typed.run_line(b"for the first")
        await server.wait_for("no stream is chosen: /list")
        await server.typed.run_line(b"/switch d1/2")
        await server.typed.run_line(b"for the second")
        assert await other.receive() == b"for the second\n"
        first.abort()
        second.abort()

    run(work, capsys)


def test_a_peer_without_credit_holds_up_its_own_lines_only(capsys: Capture) -> None:
    async def work(server: TypedServer) -> None:
        client, _ = await server.session("nerdbank:window=64")
        stuck, free = await client.open("stuck"), await client.open("free")
        for stream in (stuck, free):
            await stream.send(b"hello\n")
            await server.wait_for(f" {stream.name}> hello\n")
        lines = sorted(await server.list())
        free_name, stuck_name = (line.lstrip("* ").split()[0] for line in lines)
        if "stuck" in lines[0]:
            free_name, stuck_name = stuck_name, free_name
        await server.typed.run_line(f"/switch {stuck_name}".encode())
        for _ in range(MAX_WAITING_LINES + 5):
            await server.typed.run_line(b"x" * 100)
            await asyncio.sleep(0)
        await server.wait_for(f"{stuck_name}: not sent")
        await server.typed.run_line(f"/switch {free_name}".encode())
        await server.typed.run_line(b"a line")
        assert await free.receive() == b"a line\n"
        await server.typed.run_line(f"/switch {stuck_name}".encode())
        await server.typed.run_line(b"/reset")
        await server.wait_for(f"{stuck_name} has ended, and no stream is chosen")
        client.abort()

    run(work, capsys)


def test_serve_goes_on_in_the_background_and_reads_in_the_foreground() -> None:
    """A shell that has the terminal's foreground; `serve` in a process group of its own."""
    command = [sys.executable, "-c", MAIN, "serve", "tcp://127.0.0.1:0", "--protocol", "mplex"]
    master, terminal = pty.openpty()
    # `setsid` with the terminal as the controlling one, then a job in the background.
    script = (
        "import fcntl, os, signal, subprocess, sys, termios\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "child = subprocess.Popen(sys.argv[1:], process_group=0)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os.tcsetpgrp(0, child.pid))\n"
        "pid, status = os.waitpid(child.pid, os.WUNTRACED)\n"
        "print('CHILD', 'STOPPED' if os.WIFSTOPPED(status) else 'ENDED', flush=True)\n"
    )
    shell = subprocess.Popen(
        [sys.executable, "-c", script, *command],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    try:
        text = read_until(master, "listening at ", "/switch STREAM")
        url = text.split("listening at ")[1].split()[0]
        sent = subprocess.run(
            [sys.executable, "-c", MAIN, "connect", url, "--protocol", "mplex", "--send", "hello"],
            capture_output=True, timeout=DEADLINE_SECONDS, check=False,
        )  # fmt: skip
        assert sent.returncode == 0, sent.stderr
        assert "CHILD" not in read_until(master, "d1> hello")
        shell.send_signal(signal.SIGUSR1)  # brings it to the foreground
        os.write(master, b"/help me\n")
        assert "CHILD" not in read_until(master, "/switch STREAM")
    finally:
        with suppress(ProcessLookupError):
            os.kill(children_of(shell.pid), signal.SIGKILL)
        shell.kill()
        shell.wait(DEADLINE_SECONDS)
        os.close(master)


def children_of(pid: int) -> int:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int((file.read().split() or ["0"])[0]) or pid


def read_until(master: int, *texts: str) -> str:
    """Read the terminal until it has shown the texts, one after another."""
    shown, deadline = "", time.monotonic() + DEADLINE_SECONDS
    while True:
        position = 0
        for text in texts:
            position = shown.find(text, position)
            if position < 0:
                break
        if position >= 0:
            return shown
        ready, _, _ = select.select([master], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no {texts} in {shown!r}"
        shown += os.read(master, 4096).decode()
