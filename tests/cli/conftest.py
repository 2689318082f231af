"""Captures to run commands on, and a way to run them."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from polymux.capture import PcapngWriter, TcpConnectionWriter
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.cli import main

Line = tuple[int, bytes, int]  # side, bytes, milliseconds

MS = 1_000_000
START = 1_700_000_000_000_000_000
HOSTILE = b"\x1b[31mred\xe2\x80\xae\x00../x"

# A dialer opens d1 and d3, closes d3 and writes to it again; the acceptor answers on d1.
BROKEN = [
    (0, b"\x08\x04good\x18\x10" + HOSTILE, 1),
    (0, b"\x0a\x05hello\x1c\x00", 2),
    (1, b"\x09\x06answer", 3),
    (0, b"\x1a\x04late", 4),
]
CLEAN = [(0, b"\x08\x04good\x0a\x05hello\x0c\x00", 1), (1, b"\x09\x02ok\x0b\x00", 2)]


def give_first_bytes(process: subprocess.Popen[bytes], data: bytes) -> None:
    """Write to the standard input of a process, and wait until it has taken all of it."""
    assert process.stdin is not None
    process.stdin.write(data)
    process.stdin.flush()
    unread = b"\1"
    while any(unread):
        assert process.poll() is None
        time.sleep(0.01)
        unread = fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, bytes(4))


@dataclass
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str
    raw_bytes: bytes


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[..., Ran]:
    """Runs `polymux` with these arguments; its output goes to no terminal."""

    def go(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["polymux", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        code = ended.value.code
        assert isinstance(code, int | None)
        return Ran(code or 0, out.decode("utf-8", "replace"), err.decode(), out)

    return go


def in_terminal(code: str, arguments: tuple[str, ...], columns: int = 160) -> Ran:
    """Run Python code in a terminal of its own; both outputs come together, without colours."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=follower, stdout=follower, stderr=follower, close_fds=True,
        env={**plain, "NO_COLOR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(follower)
    said = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        said += part
    os.close(leader)
    return Ran(process.wait(100), said.decode("utf-8", "replace"), "", said)


@pytest.fixture
def terminal() -> Callable[..., Ran]:
    """Runs `polymux` in a terminal, without progress bars, however slow the machine is."""
    code = (
        "from polymux.cli import main; from polymux.cli.support import progress; "
        "progress.SHOW_AFTER_SECONDS = 3600; main()"
    )

    def go(*arguments: str, columns: int = 160) -> Ran:
        return in_terminal(code, arguments, columns)

    return go


@pytest.fixture
def impatient() -> Callable[..., Ran]:
    """The same, with progress bars shown at once."""
    code = (
        "from polymux.cli import main; from polymux.cli.support import progress; "
        "progress.SHOW_AFTER_SECONDS = 0; progress.REFRESH_SECONDS = 0.001; "
        "main()"
    )
    return lambda *arguments: in_terminal(code, arguments)


@pytest.fixture
def capture(tmp_path: Path) -> Callable[..., str]:
    """Writes a conversation of (side, bytes, milliseconds) as a capture; returns its path."""

    def make(
        lines: list[tuple[int, bytes, int]] = BROKEN, name: str = "talk.pcapng", port: int = 9000
    ) -> str:
        writer = PcapngWriter(str(tmp_path / name), sync="none")
        scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ("198.51.100.2", port), START)
        for side, data, at in lines:
            scribe.data(side, data, START + at * MS)
        scribe.close(START + (lines[-1][2] + 1) * MS if lines else START + MS)
        writer.close()
        return str(tmp_path / name)

    return make


class LossySink:
    """Writes the packets of a connection, except while `losing`."""

    def __init__(self, writer: PcapngWriter) -> None:
        self.writer = writer
        self.losing = False

    @property
    def comment_epoch(self) -> int:
        return self.writer.comment_epoch

    def burst(self, burst: PacketBurst) -> None:
        if not self.losing:
            self.writer.burst(burst)


@pytest.fixture
def lossy(tmp_path: Path) -> Callable[..., str]:
    """Writes a conversation of which the lines `lost` were not captured."""

    def make(
        lines: list[Line],
        lost: Iterable[int] = (),
        *,
        syn: bool = True,
        close: bool = True,
        name: str = "lossy.pcapng",
    ) -> str:
        writer = PcapngWriter(str(tmp_path / name), sync="none")
        sink = LossySink(writer)
        sink.losing = not syn
        scribe = TcpConnectionWriter(sink, ("192.0.2.1", 40000), ("198.51.100.2", 9000), START)
        missing = set(lost)
        for n, (side, data, at) in enumerate(lines):
            sink.losing = n in missing
            scribe.data(side, data, START + at * MS)
        sink.losing = False
        if close:
            scribe.close(START + (lines[-1][2] + 1) * MS)
        writer.close()
        return str(tmp_path / name)

    return make
