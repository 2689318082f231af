"""What live commands say while they wait, how long they do, and the frames that `-v` shows."""

from __future__ import annotations

import asyncio
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran, in_terminal
from tests.cli.threaded_server import COMMAND, Serving, echo, served

Run = Callable[..., Ran]


@contextmanager
def silent() -> Iterator[str]:
    """A server that takes connections and never says anything, as one of another protocol may."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    taken.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        for each in taken:
            each.close()


@pytest.mark.parametrize(
    ("protocol", "option", "what"),
    [
        ("mplex", ["--send", "x"], "the peer to answer, or to end the stream"),
        ("mplex", ["--accept"], "the peer to open a stream"),
        ("nerdbank:version=3", ["--send", "x"], "the peer to accept the stream"),
        ("minmux", ["--stream", "2"], "the peer to send on stream 2"),
    ],
)
def test_a_peer_that_says_nothing_is_waited_for_aloud_and_not_for_ever(
    protocol: str, option: list[str], what: str
) -> None:
    with silent() as url:
        done = subprocess.run(
            [*COMMAND, "connect", url, "--protocol", protocol, "--timeout", "1.5", *option],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
    first, last = done.stderr.splitlines()
    assert first == (
        f"connected to {url}, speaking {protocol}; waiting for {what}; nothing received from it yet"
    )
    assert "nothing came from the peer within 1.5 s: does it speak" in last
    assert last.endswith("allow more with --timeout")
    assert (done.returncode, done.stdout) == (4, "")


def test_without_the_option_silence_has_no_limit_but_is_said() -> None:
    with silent() as url:
        process = subprocess.Popen(
            [*COMMAND, "connect", url, "--protocol", "mplex", "--send", "x"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert "waiting for the peer to answer" in process.stderr.readline()
        time.sleep(0.3)
        assert process.poll() is None
        process.kill()
        process.communicate()


def test_a_peer_that_has_spoken_may_then_take_its_time(run: Run) -> None:
    async def slow(session: Any) -> None:
        async for stream in session.incoming:
            await stream.send(b"soon")
            await asyncio.sleep(2.5)
            await stream.send(b", now")
            await stream.end()

    with served(slow, "mplex") as url:
        asked = ("connect", url, "--protocol", "mplex", "--send", "x", "--timeout", "2")
        ran = run(*asked)
    assert (ran.code, ran.out) == (0, "soon, now")


def test_a_terminal_is_told_at_once_and_its_last_line_ends() -> None:
    with served(echo, "mplex") as url:
        code = "from polymux.cli import main; main()"
        ran = in_terminal(code, ("connect", url, "--protocol", "mplex", "--send", "no line end"))
    assert ran.out.replace("\r\n", "\n") == (f"connected to {url}, speaking mplex\nno line end\n")


def test_messages_and_replies_are_lines_and_byte_streams_keep_theirs(tmp_path: Path) -> None:
    def said(protocol: str, url: str, *more: str) -> str:
        done = subprocess.run(
            [*COMMAND, "connect", url, "--protocol", protocol, "--lines", *more],
            input="one\ntwo\n", capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
        return done.stdout

    async def push(session: Any) -> None:
        sender = await session.open(b"news")
        for message in (b"one", b"two"):
            await sender.send(message)
        await sender.end()
        await session.wait_closed()

    with served(echo, "mplex") as url:
        assert said("mplex", url) == "one\ntwo\n"
    with served(push, "omnistreams", "ws://127.0.0.1:0/x") as url:
        assert said("omnistreams", url, "--accept") == "one\ntwo\n"


def frames(text: str) -> list[str]:
    """The lines that `-v` made, without their times."""
    return re.findall(r"\d\d:\d\d:\d\d (.*)", text)


def test_v_shows_frames_on_both_sides_and_standard_output_stays_clean(tmp_path: Path) -> None:
    with Serving(
        "tcp://127.0.0.1:0", "--protocol", "mplex", "--action", "echo", "--once", "-v"
    ) as up:
        record = str(tmp_path / "talk.pcapng")
        done = subprocess.run(
            [*COMMAND, "connect", up.url, "--protocol", "mplex", "--send", "hi", "-v",
             "--record", record],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=True,
        )  # fmt: skip
        _, _, err = up.wait()
    assert done.stdout == "hi"
    seen = frames(done.stderr)
    assert seen[:2] == ["> d1 NewStream 0 bytes", "> d1 MessageInitiator 2 bytes"]
    assert "< d1 MessageReceiver 2 bytes" in seen
    assert sorted(seen) == sorted(frames(err))
    assert re.search(r"^127\.0\.0\.1:\d+ \d\d:", err, re.M)
    assert Path(record).stat().st_size > 100


def test_v_shows_what_passes_a_recording_proxy_and_a_collector(tmp_path: Path) -> None:
    def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert process.stderr is not None
        found = re.search(r"listening at (\S+?),? ", process.stderr.readline())
        assert found is not None
        return process, found[1]

    collector, behind = start(
        "collect", "--listen", "tcp://127.0.0.1:0", "--protocol", "mplex",
        "--out", str(tmp_path / "in"), "-v",
    )  # fmt: skip
    proxy, front = start(
        "record", "tcp://127.0.0.1:0", behind, "-o", str(tmp_path / "talk.pcapng"),
        "--protocol", "mplex", "-v",
    )  # fmt: skip
    try:
        subprocess.run(
            [*COMMAND, "connect", front, "--protocol", "mplex", "--send", "hi"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=100, check=True,
        )  # fmt: skip
    finally:
        for process in (proxy, collector):
            process.terminate()
    for process in (proxy, collector):
        _, err = process.communicate(timeout=100)
        assert "> d1 MessageInitiator 2 bytes" in frames(err)
        assert process.returncode == 0


def test_v_of_record_wants_the_protocol(run: Run, tmp_path: Path) -> None:
    ran = run("record", "tcp://127.0.0.1:0", "tcp://127.0.0.1:1", "-o", str(tmp_path / "x"), "-v")
    assert ran.code == 2
    assert "-v: name the protocol with --protocol" in ran.err


@pytest.mark.parametrize(("here", "there"), [(1, 2), (2, 1)])
def test_both_commands_name_the_version_that_the_other_side_speaks(here: int, there: int) -> None:
    with Serving("tcp://127.0.0.1:0", "--protocol", f"nerdbank:version={there}") as up:
        done = subprocess.run(
            [*COMMAND, "connect", up.url, "--protocol", f"nerdbank:version={here}", "--send", "x"],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert up.process.stderr is not None
        heard = up.process.stderr.readline()
    assert done.returncode == 4
    for said, version in ((done.stderr, there), (heard, here)):
        assert f"the peer speaks Nerdbank version {version}: write nerdbank:version=" in said


def test_a_limit_that_ends_the_session_is_told_once() -> None:
    code = "from polymux.cli import main; main()"
    url = "exec:" + shlex.join([sys.executable, "-c", "print('usage: peer')"])
    command = [sys.executable, "-c", code, "connect", url, "--accept", "--protocol=omnistreams"]
    ran = subprocess.run(command, input=b"", capture_output=True, timeout=60, check=False)
    (said,) = ran.stderr.decode().splitlines()
    assert "limit max_frame_bytes=" in said
    assert ran.returncode == 4
