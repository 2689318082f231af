"""Output that is not read: sessions go on, signals work, and what is dropped is counted."""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import polymux
from polymux.cli.support.queued_output import MAX_QUEUED_BYTES, QueuedOutput
from polymux.live.process_lock import unnamed_file

# With less patience than usual, so that the tests take less time.
CODE = (
    "from polymux.cli.support import queued_output; queued_output.STUCK_SECONDS = 0.4; "
    "from polymux.cli import main; main()"
)
POLYMUX = (sys.executable, "-c", CODE)
SMALL_PIPE = 4096


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe that holds little."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL_PIPE)
    try:
        yield reader, writer
    finally:
        for descriptor in (reader, writer):
            os.close(descriptor)


@contextmanager
def stuck(*arguments: str, socket: Path, full: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A command that listens at `socket`; neither of its outputs is read, nor takes anything if
    they are `full`."""
    with pipe() as (_, out), pipe() as (_, err):
        if full:
            for writer in (out, err):
                os.write(writer, bytes(SMALL_PIPE))
        process = subprocess.Popen(
            [*POLYMUX, *arguments], stdout=out, stderr=err,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # not as in nohup
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 90
            while not socket.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process
        finally:
            process.kill()
            process.wait()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await work()

    asyncio.run(limited())


def test_serve_goes_on_and_stops_though_neither_output_is_read(tmp_path: Path) -> None:
    socket = tmp_path / "serve"
    arguments = ("serve", f"unix://{socket}", "--protocol", "streamux", "-v")
    with stuck(*arguments, socket=socket) as process:

        async def ask() -> None:
            async with polymux.connect(f"unix://{socket}", protocol="streamux") as session:
                for _ in range(4):
                    await session.request(bytes(MAX_QUEUED_BYTES // 2), timeout=60)
            async with polymux.connect(f"unix://{socket}", protocol="streamux") as other:
                await other.request(b"after all that", timeout=60)

        run(ask)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 5
    print("R29 serve: 1 command stopped in good order")


def test_record_forwards_and_stops_though_its_messages_are_not_read(tmp_path: Path) -> None:
    socket, upstream = tmp_path / "record", tmp_path / "upstream"
    out = tmp_path / "talk.pcapng"
    arguments = ("record", f"unix://{socket}", f"unix://{upstream}", "-o", str(out))

    async def echo(stream: polymux.Stream) -> None:
        async for chunk in stream:
            await stream.send(chunk)

    async def handle(session: polymux.Session) -> None:
        await session.serve_streams(echo)

    with stuck(*arguments, "--protocol", "mplex", "-v", socket=socket) as process:

        async def exchange() -> None:
            async with polymux.serve(handle, f"unix://{upstream}", protocol="mplex"):
                async with polymux.connect(f"unix://{socket}", protocol="mplex") as session:
                    for number in range(200):  # more lines than the pipe holds
                        stream = await session.open(f"{number}")
                        await stream.send(b"hello")
                        await stream.end()
                        assert await stream.receive_all() == b"hello"

        run(exchange)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert out.stat().st_size > 10_000
    print("R29 record: 1 command stopped in good order")


@pytest.mark.parametrize(
    "command",
    [
        ("bridge", "SOCKET", "UPSTREAM", "--protocol-a", "mplex", "--protocol-b", "yamux"),
        ("chaos", "SOCKET", "UPSTREAM", "--protocol", "yamux"),
        ("tunnel", "serve", "SOCKET", "--allow", "127.0.0.1:*"),
    ],
    ids=lambda command: command[0],
)
def test_a_relay_stops_in_good_order_though_its_messages_are_not_read(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    socket = tmp_path / "relay"
    places = {"SOCKET": f"unix://{socket}", "UPSTREAM": f"unix://{tmp_path / 'upstream'}"}
    arguments = [places.get(word, word) for word in command]
    with stuck(*arguments, socket=socket, full=True) as process:
        time.sleep(0.2)  # for what it prints once it listens
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert not socket.exists()
    print(f"R29 {command[0]}: 1 command stopped in good order")


def test_collect_confirms_and_stops_though_its_messages_are_not_read(tmp_path: Path) -> None:
    socket = tmp_path / "collect"
    arguments = ("collect", "--listen", f"unix://{socket}", "--protocol", "streamux")
    out = tmp_path / "captures"
    with stuck(*arguments, "--out", str(out), "--sync", "none", "-v", socket=socket) as process:

        async def send() -> None:
            async with polymux.connect(f"unix://{socket}", protocol="streamux") as session:
                for _ in range(200):
                    await session.request(b"kept", timeout=60)

        run(send)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0
    assert len(list(out.glob("*.pcapng"))) == 1
    print("R29 collect: 1 command stopped in good order")


def test_connect_waits_for_a_slow_reader_and_drops_nothing() -> None:
    size = 3 * MAX_QUEUED_BYTES

    async def produce(stream: polymux.Stream) -> None:
        await stream.send(bytes(size))
        await stream.end()

    async def handle(session: polymux.Session) -> None:
        await session.serve_streams(produce)

    async def read() -> None:
        async with polymux.serve(handle, "tcp://127.0.0.1:0", protocol="mplex") as server:
            process = await asyncio.create_subprocess_exec(
                *POLYMUX, "connect", server.url, "--protocol", "mplex", "--send", "x",
                stdout=asyncio.subprocess.PIPE, limit=SMALL_PIPE,
            )  # fmt: skip
            assert process.stdout is not None
            received = len(await process.stdout.readexactly(1))
            await asyncio.sleep(0.3)
            while data := await process.stdout.read(65536):
                received += len(data)
            assert await process.wait() == 0
            assert received == size

    run(read)


def test_whole_lines_are_dropped_and_a_notice_counts_them() -> None:
    """Line by line: what arrives is what was written, in order, but for whole lines."""
    with pipe() as (reader, writer):
        output = QueuedOutput(writer, "standard output")
        line = b"%07d " + b"x" * 991 + b"\n"
        count = 2 * MAX_QUEUED_BYTES // len(line % 0)
        for number in range(count):
            output.write((line % number)[:-1])  # as print() does: the text, then the line end
            output.write(b"\n")
        assert 0 < output.dropped_lines < count
        received = b""
        while b"dropped" not in received:
            received += os.read(reader, 65536)
        *lines, notice, rest = received.split(b"\n")
        assert rest == b""
        assert len(lines) == count - output.dropped_lines
        assert all(len(each) == len(line % 0) - 1 for each in lines)
        assert lines == sorted(lines)
        expected = f"polymux: {output.dropped_lines} lines ({output.dropped_bytes} bytes) dropped"
        assert notice.decode().startswith(expected)
        output.finish(1)


def test_what_is_still_queued_at_the_end_counts_as_dropped() -> None:
    with pipe() as (_, writer):
        output = QueuedOutput(writer, "standard output")
        for _ in range(300):
            output.write(b"x" * 999 + b"\n")
        output.finish(0.2)
        assert output.dropped_lines > 100
        assert output.dropped_bytes >= 1000 * output.dropped_lines
        assert "dropped so far" in output.drop_notice()


def test_a_closed_pipe_is_an_error_for_standard_output_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        output = QueuedOutput(writer, "standard output", raises=True)
        output.write(b"is not read\n")
        with pytest.raises(BrokenPipeError):
            output.finish(5)
        messages = QueuedOutput(writer, "standard error")
        messages.write(b"is not read\n")
        messages.finish(5)
        messages.write(b"is not read either\n")
    finally:
        os.close(writer)


BOTH = """
import sys
from polymux.cli.support.queued_output import queued_output
with queued_output():
    for number in range(2000):
        print(number, file=sys.stdout if number % 3 else sys.stderr)
"""


def test_lines_of_both_outputs_of_a_terminal_come_in_the_order_they_were_printed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BOTH], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=100
    )
    assert done.stdout.decode().splitlines() == [str(number) for number in range(2000)]


# Fills one output, and prints to the other one when it is told to.
CROSSED = """
import sys
from polymux.cli.support.queued_output import queued_output
with queued_output(lock=int(sys.argv[1])):
    getattr(sys, sys.argv[2]).write("x" * 200_000 + "\\n")
    sys.stdin.readline()
    getattr(sys, sys.argv[3]).write("a line\\n")
    sys.stdin.readline()
"""


def test_processes_that_wait_for_each_others_outputs_lose_no_line() -> None:
    """Each has one output that is not read, and waits for the other one to write to the other."""
    lock = unnamed_file(0)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", CROSSED, str(lock), *outputs], pass_fds=[lock],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for outputs in (("stdout", "stderr"), ("stderr", "stdout"))
    ]  # fmt: skip
    os.close(lock)
    stuck = [processes[0].stdout, processes[1].stderr]
    for pipe_end in stuck:
        assert pipe_end is not None
        assert select.select([pipe_end], [], [], 60)[0]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"now\n")
        process.stdin.flush()
        time.sleep(0.2)  # the second one would close the circle
    with ThreadPoolExecutor(2) as readers:  # both at once
        done = list(readers.map(lambda process: process.communicate(timeout=60), processes))
    assert [process.returncode for process in processes] == [0, 0]
    long = b"x" * 200_000 + b"\n"
    assert done == [(long, b"a line\n"), (b"a line\n", long)]


# Prints one long line.
LONG = """
import sys
from polymux.cli.support.queued_output import queued_output
with queued_output(lock=int(sys.argv[1])):
    print(sys.argv[2] * 200_000)
    print("printed", file=sys.stderr)
    sys.stdin.read()
"""


def test_each_of_several_processes_writes_its_line_alone_to_an_output_that_is_full() -> None:
    lock = unnamed_file(0)
    reader, writer = os.pipe()
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", LONG, str(lock), letter], pass_fds=[lock],
            stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE,
        )
        for letter in "ab"
    ]  # fmt: skip
    os.close(lock)
    os.close(writer)
    for process in processes:
        assert process.stderr is not None
        assert process.stderr.readline() == b"printed\n"
    time.sleep(0.2)  # until both would write
    received = b""
    while received.count(b"\n") < 2:
        received += os.read(reader, 65536)
    os.close(reader)
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sorted(received.splitlines()) == [b"a" * 200_000, b"b" * 200_000]
