"""The prompt of `polymux connect`, typed into a real terminal."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from polymux.aio import Session, YamuxSession, pipe
from polymux.aio import serve as polymux_serve
from polymux.cli.support.stream_prompt import MAX_ENDED_STREAMS, ConnectionLost, StreamPrompt
from polymux.core.errors import SessionClosed

MAIN = "from polymux.cli import main; main()"
DEADLINE_SECONDS = 60.0


class Terminal:
    """A tmux session that runs one command."""

    def __init__(self, folder: Path) -> None:
        self.name = f"polymux-{uuid.uuid4().hex[:8]}"
        self._base = ["tmux", "-S", str(folder / "tmux"), "-f", "/dev/null"]
        self._folder = folder

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-c", MAIN, *arguments]
        script = self._folder / "run.sh"
        quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in command)
        script.write_text(
            f"trap : INT\nexport XDG_STATE_HOME='{self._folder}'\n"
            f"{quoted}\necho ENDED-$?\nsleep 600\n"
        )
        self._run("new-session", "-d", "-s", self.name, "-x", "150", "-y", "50", f"sh {script}")

    def _run(self, *arguments: str) -> str:
        ran = subprocess.run(
            [*self._base, *arguments], capture_output=True, text=True, timeout=60, check=True
        )
        return ran.stdout

    def type(self, line: str) -> None:
        self._run("send-keys", "-t", self.name, "-l", line)
        self._run("send-keys", "-t", self.name, "Enter")

    def key(self, key: str) -> None:
        self._run("send-keys", "-t", self.name, key)

    def screen(self) -> str:
        return self._run("capture-pane", "-p", "-t", self.name).rstrip("\n")

    def wait_for(self, pattern: str) -> str:
        """Wait until the screen matches a regular expression."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            screen = self.screen()
            if re.search(pattern, screen, re.MULTILINE):
                return screen
            assert time.monotonic() < deadline, f"no {pattern!r} on:\n{screen}"
            time.sleep(0.05)

    def close(self) -> None:
        subprocess.run([*self._base, "kill-server"], capture_output=True, timeout=60, check=False)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail("tmux is not installed and POLYMUX_NO_SKIP=1")
        pytest.skip("tmux is not installed")
    found = Terminal(tmp_path)
    yield found
    found.close()


class EchoServer:
    """`polymux serve --action echo` in a process of its own."""

    def __init__(self, protocol: str) -> None:
        command = [sys.executable, "-c", MAIN, "serve", "tcp://127.0.0.1:0", "--action", "echo"]
        if protocol == "minmux":
            command += ["--stream", "1", "--stream", "3", "--stream", "5"]
        command += ["--protocol", protocol]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert "listening at " in line, line
        self.url = line.split("listening at ")[1].strip()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def serve() -> Iterator[list[EchoServer]]:
    servers: list[EchoServer] = []
    yield servers
    for server in servers:
        server.stop()


def start(terminal: Terminal, serve: list[EchoServer], protocol: str, *options: str) -> None:
    serve.append(EchoServer(protocol))
    terminal.start("connect", serve[-1].url, "--protocol", protocol, *options)
    terminal.wait_for(r"^polymux>")


@pytest.mark.parametrize("protocol", ["mplex", "nerdbank", "yamux"])
def test_three_streams_are_used_in_turns(
    protocol: str, terminal: Terminal, serve: list[EchoServer]
) -> None:
    start(terminal, serve, protocol)
    labels = []
    for name in ("one", "two", "three"):
        terminal.type("/open" if protocol == "yamux" else f"/open {name}")
        shown = rf"^(\w+) {'' if protocol == 'yamux' else name + ' '}open$"
        terminal.wait_for(shown)
        pattern = re.compile(shown, re.MULTILINE)
        labels.append(pattern.findall(terminal.screen())[-1])
        terminal.wait_for(rf"^{labels[-1]}>$")
    assert len(set(labels)) == 3
    for turn in range(2):
        for label in labels:
            terminal.type(f"/switch {label}")
            terminal.wait_for(rf"^{label}>$")
            terminal.type(f"turn-{turn}-of-{label}")
            terminal.wait_for(rf"^{label}[a-z ]*: turn-{turn}-of-{label}$")
    terminal.type("/end")
    terminal.wait_for(rf"^{labels[2]}[a-z ]* ended by the peer$")
    terminal.type(f"/switch {labels[0]}")
    terminal.type("/reset")
    terminal.type("/list")
    terminal.wait_for(rf"^\* {labels[0]}[a-z ]*  reset$")
    terminal.wait_for(rf"^  {labels[1]}[a-z ]*  open$")
    terminal.key("C-d")
    terminal.wait_for("^ENDED-0$")


def test_requests_of_streamux_wait_beside_each_other(
    terminal: Terminal, serve: list[EchoServer]
) -> None:
    start(terminal, serve, "streamux")
    for number in (1, 2, 3):
        terminal.type(f"question {number}")
        terminal.wait_for(rf"^r{number}: question {number}$")
    terminal.type("/list")
    terminal.wait_for(r"^\* r3  answered$")
    terminal.type("/quit")
    terminal.wait_for("^ENDED-0$")


def test_messages_of_omnistreams_come_back_on_streams_of_the_peer(
    terminal: Terminal, serve: list[EchoServer]
) -> None:
    start(terminal, serve, "omnistreams")
    for number in (0, 1, 2):
        terminal.type(f"/open s{number}")
        terminal.wait_for(rf"^\w+ s{number} open$")
        terminal.type(f"message {number}")
        terminal.wait_for(rf"^a\d+ s{number}: message {number}$")
    terminal.key("C-d")
    terminal.wait_for("^ENDED-0$")


def test_minmux_streams_are_chosen_by_their_ids(
    terminal: Terminal, serve: list[EchoServer]
) -> None:
    start(terminal, serve, "minmux")
    for number in (1, 3, 5):
        terminal.type(f"/open {number + 1}")
        terminal.wait_for(rf"^\w*{number + 1} open$")
        terminal.type(f"/open {number}")
        terminal.wait_for(rf"^\w*{number} open$")
        terminal.type(f"items {number}")
        terminal.wait_for(rf"^\w*{number + 1}: items {number}$")
    terminal.key("C-d")
    terminal.wait_for("^ENDED-0$")


def test_control_keys_hostile_text_and_a_lost_connection(
    terminal: Terminal, serve: list[EchoServer], tmp_path: Path
) -> None:
    start(terminal, serve, "mplex", "-v")
    terminal.type("/open x")
    terminal.wait_for(r"^d1 x open$")
    terminal.type("nowhere \u202e hidden")
    terminal.wait_for(r"^d1 x: nowhere \\u202e hidden$")
    terminal.wait_for(r"> d1 Message")  # -v
    terminal.key("h")
    terminal.wait_for(r"^d1> h$")  # typed ahead of the prompt, it would be lost with Ctrl-C
    terminal.key("C-c")
    terminal.wait_for(r"h\^C$")
    terminal.type("/sw d9")
    terminal.wait_for(r"^/switch  STREAM")
    terminal.type("/switch d9")
    terminal.wait_for(r"no stream 'd9'")
    serve[0].process.kill()
    terminal.wait_for(r"^ENDED-4$")
    history = (tmp_path / "polymux" / "connect_history").read_text()
    assert "/open x" in history


@pytest.mark.parametrize("protocol", ["mplex", "streamux"])
def test_what_is_typed_into_serve_goes_to_the_stream_chosen_there(
    protocol: str, terminal: Terminal
) -> None:
    terminal.start("serve", "tcp://127.0.0.1:0", "--protocol", protocol)
    screen = terminal.wait_for(r"listening at tcp://127.0.0.1:\d+$")
    url = screen.split("listening at ")[1].split()[0]
    command = [sys.executable, "-c", MAIN, "connect", url, "--protocol", protocol]
    client = subprocess.Popen(
        [*command, "--lines", "--timeout", "100"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdin is not None
    client.stdin.write("a question\n")
    client.stdin.flush()
    terminal.wait_for(r"^d\d+> a question$")
    terminal.type("/list")
    label = re.findall(r"^\* (d\d+)$", terminal.wait_for(r"^\* d\d+$"), re.MULTILINE)[-1]
    terminal.type(f"/switch {label}")
    terminal.type("an answer")
    assert client.stdout is not None
    assert client.stdout.readline().strip() == "an answer"
    client.stdin.close()
    assert client.wait(100) == 0
    client.stdout.close()
    terminal.key("C-c")
    terminal.wait_for("ENDED-0$")  # after the ^C that the terminal shows


def test_control_c_while_it_connects_ends_it_at_once(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        terminal.start("connect", url, "--protocol", "nerdbank:version=2", "--timeout", "100")
        listener.settimeout(DEADLINE_SECONDS)
        connection, _ = listener.accept()  # which never answers
        with connection:
            connection.settimeout(DEADLINE_SECONDS)
            assert connection.recv(1)  # of the handshake
            pressed = time.monotonic()
            terminal.key("C-c")
            terminal.wait_for("ENDED-130$")
            assert time.monotonic() - pressed < 5


def test_control_c_at_the_prompt_leaves_a_child_alone(terminal: Terminal) -> None:
    child = shlex.join([sys.executable, "-c", MAIN, "serve", "stdio:", "--action", "echo"])
    terminal.start("connect", f"exec:{child} --protocol mplex", "--protocol", "mplex")
    terminal.wait_for("^polymux>")
    terminal.type("/open x")
    terminal.wait_for("^d1 x open$")
    terminal.type("before")
    terminal.wait_for("^d1 x: before$")
    terminal.key("C-c")
    terminal.wait_for(r"\^C$")
    terminal.type("after")
    terminal.wait_for("^d1 x: after$")
    terminal.key("C-d")
    terminal.wait_for("^ENDED-0$")


def test_old_streams_that_have_ended_are_forgotten(
    terminal: Terminal, serve: list[EchoServer]
) -> None:
    start(terminal, serve, "streamux")
    last = MAX_ENDED_STREAMS + 3
    for number in range(1, last + 1):
        terminal.type(f"question {number}")
        if number % 10 == 0 or number == last:
            terminal.wait_for(rf"^r{number}: question {number}$")
    terminal.type("/switch r1")
    terminal.wait_for("no stream 'r1'")
    terminal.type("/switch r10")
    terminal.wait_for("^r10>$")
    terminal.key("C-d")
    terminal.wait_for("^ENDED-0$")


def test_a_session_goes_on_while_the_terminal_is_stopped(terminal: Terminal) -> None:
    async def work() -> None:
        sessions: asyncio.Queue[Session] = asyncio.Queue()

        async def handle(session: Session) -> None:
            sessions.put_nowait(session)
            await session.wait_closed()

        async with await polymux_serve(handle, "tcp://127.0.0.1:0", protocol="yamux") as server:
            terminal.start("connect", server.url, "--protocol", "yamux")
            session = await sessions.get()
            assert isinstance(session, YamuxSession)  # the protocol above
            await asyncio.to_thread(terminal.wait_for, "^polymux>")
            stream = await session.open()
            await stream.send(b"first\n")
            await asyncio.to_thread(terminal.wait_for, "first$")
            terminal.key("C-s")
            for number in range(20):
                await stream.send(b"line %d\n" % number)
                await session.ping()
            terminal.key("C-q")
            await asyncio.to_thread(terminal.wait_for, "line 19$")
            terminal.key("C-d")
            await asyncio.to_thread(terminal.wait_for, "^ENDED-0$")

    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await work()

    asyncio.run(limited())


def test_a_line_that_was_read_when_the_connection_was_lost_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    peers: list[Session] = []

    @asynccontextmanager
    async def connect() -> AsyncIterator[Session]:
        client, peer = await pipe("mplex")
        loops.append(asyncio.get_running_loop())
        peers.append(peer)
        async with client:
            yield client

    def read(prompt: str) -> str:
        loops[0].call_soon_threadsafe(peers[0].abort)
        with suppress(ConnectionLost):
            threading.Event().wait(DEADLINE_SECONDS)
        while not loops[0].is_closed():
            time.sleep(0.005)
        return "/open x"

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("builtins.input", read)
    with pytest.raises(SessionClosed):
        StreamPrompt(connect).run()
