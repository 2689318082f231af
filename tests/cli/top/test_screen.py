"""`polymux top` in a real terminal, over captures that grow while it runs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import BROKEN, MS, START, Ran, in_terminal
from tests.cli.top.tmux import Terminal

from polymux.capture import PcapngWriter, TcpConnectionWriter, hint_comment


class Recording:
    """A capture of one mplex session that is being written. Times are milliseconds."""

    def __init__(self, path: Path) -> None:
        self.writer = PcapngWriter(str(path))
        self.talk = TcpConnectionWriter(
            self.writer, ("10.0.0.1", 4000), ("10.0.0.2", 9000), START,
            comment=hint_comment("mplex", "middle"),
        )  # fmt: skip

    def send(self, side: int, data: bytes, at: int) -> None:
        self.talk.data(side, data, START + at * MS)

    def close(self, at: int) -> None:
        self.talk.end(0, START + at * MS)
        self.talk.end(1, START + at * MS)
        self.writer.close()


def totals_of(screen: str) -> str:
    """The line with the totals, as far as `ls` prints it too."""
    found = re.search(r"\d+ sessions?, \d+ streams?, \d+ frames?", screen)
    assert found, screen
    return found[0]


def test_a_growing_capture_is_followed_and_equals_ls_afterwards(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    capture = tmp_path / "talk.pcapng"
    recording = Recording(capture)
    for side, data, at in BROKEN[:3]:
        recording.send(side, data, at)
    with Terminal("top", str(capture)) as terminal:
        screen = terminal.wait("1 session, 2 streams, 5 frames")
        assert "recording" in screen
        assert "d1" in screen
        assert "\\u001b[31mred\\u202e" in screen or "\\u001b" in screen  # escaped, whatever fits
        recording.send(*BROKEN[3][:2], BROKEN[3][2])
        terminal.wait("mplex.write-after-close")
        terminal.press("3")
        assert "dialer broke mplex.write-after-close on d3" in terminal.wait("finding")
        recording.close(10)
        terminal.press("2")
        screen = terminal.wait(lambda text: "ended" in text.splitlines()[0])
        assert "1 violation" in screen
        listed = run("ls", str(capture), "--format", "table").out
        assert totals_of(screen) == totals_of(listed)
        terminal.press("q")
        last = terminal.wait("ended with 0")
        assert totals_of(last) == totals_of(listed)


def many_streams(recording: Recording, count: int) -> None:
    for n in range(count):
        name = f"stream-{n:03}".encode()
        header = varint(n << 3)
        recording.send(0, header + bytes([len(name)]) + name, n)
    for n in range(count):
        recording.send(0, varint(n << 3 | 2) + varint(n) + b"x" * n, count + n)


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes(made) + bytes([value])


def test_streams_are_sorted_filtered_paused_and_opened_by_keys(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    many_streams(recording, 100)
    with Terminal("top", str(tmp_path / "talk.pcapng")) as terminal:
        terminal.wait("1 session, 100 streams, 200 frames; 100 open")
        terminal.press("s", "s")
        terminal.wait(lambda text: "by bytes" in text and "stream-099" in text)
        terminal.press("r")
        terminal.wait(lambda text: "(turned)" in text and "stream-000" in text)
        terminal.type("/stream-04")
        terminal.press("Enter")
        screen = terminal.wait(lambda text: "filter: stream-04" in text and "stream-049" in text)
        assert "stream-050" not in screen
        terminal.press("Down", "Down", "Enter")
        assert "waits for nothing" in terminal.wait("stream d42  stream-042")
        terminal.press("p")
        terminal.wait("PAUSED")
        recording.send(0, varint(42 << 3 | 2) + b"\x04more", 400)
        terminal.press("p")
        terminal.wait("3 frames")
        terminal.press("Escape")
        terminal.wait("filter: stream-04")
        terminal.press("Escape")
        terminal.wait(lambda text: "of 100" in text and "filter:" not in text)
        terminal.press("?")
        assert "head-of-line" in terminal.wait("Why a stream waits")
        terminal.press("x", "End")
        terminal.wait("of 100")
        terminal.press("q")
        terminal.wait("ended with 0")
    recording.close(500)


@pytest.mark.parametrize("size", [(80, 24), (40, 10), (200, 60)])
def test_every_size_is_filled_and_a_resize_is_followed(
    size: tuple[int, int], tmp_path: Path
) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    many_streams(recording, 30)
    with Terminal("top", str(tmp_path / "talk.pcapng"), size=(100, 30)) as terminal:
        terminal.wait("stream-029")
        terminal.resize(*size)
        last = "enter open   s sort"
        terminal.wait(lambda text: last in "".join(text.splitlines()[-1:]))
        screen = terminal.wait(lambda text: len(text.splitlines()) == size[1])
        assert all(len(line) <= size[0] for line in screen.splitlines())
        terminal.press("q")
        terminal.wait("ended with 0")
    recording.close(500)


def test_without_colour_nothing_but_weight_and_inversion_is_used(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    for side, data, at in BROKEN:
        recording.send(side, data, at)
    with Terminal("top", str(tmp_path / "talk.pcapng"), environment="NO_COLOR=1") as terminal:
        terminal.wait("mplex.write-after-close")
        coloured = terminal.screen("-e")
        assert not re.search(r"\x1b\[[0-9;]*\b(3[0-7]|9[0-7]|38)\b", coloured)
        terminal.press("q")
        terminal.wait("ended with 0")
    recording.close(10)


def test_a_terminal_that_cannot_be_drawn_on_is_said(
    tmp_path: Path, run: Callable[..., Ran]
) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    recording.close(10)
    piped = run("top", str(tmp_path / "talk.pcapng"))
    assert piped.code == 2
    assert "top needs a terminal: standard output is no terminal; --once" in piped.err
    with Terminal("top", str(tmp_path / "talk.pcapng"), environment="TERM=dumb") as terminal:
        assert "TERM=dumb cannot position the cursor" in terminal.wait("ended with 2").replace(
            "\n", ""
        )


def test_a_signal_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    recording.send(0, BROKEN[0][1], 1)
    code = f"""
import os, signal, threading
from polymux.cli import main
from polymux.cli.top import view
drawn = view.TopView.lines
def lines(self, width, height):
    os.kill(os.getpid(), signal.SIGTERM)
    return drawn(self, width, height)
view.TopView.lines = lines
import sys; sys.argv[1:] = ["top", {str(tmp_path / "talk.pcapng")!r}]
main()
"""
    ran = in_terminal(code, ())
    assert ran.code == 0
    assert "\x1b[?1049h" in ran.out
    assert ran.out.index("\x1b[?1049l") > ran.out.index("\x1b[?1049h")
    assert "\x1b[?25h" in ran.out
    recording.close(10)


def test_a_capture_on_standard_input_is_shown_and_keys_come_from_the_terminal(
    tmp_path: Path,
) -> None:
    recording = Recording(tmp_path / "talk.pcapng")
    for side, data, at in BROKEN:
        recording.send(side, data, at)
    recording.close(10)
    piped = f"cat {tmp_path / 'talk.pcapng'} |"
    with Terminal("top", "-", environment=piped) as terminal:
        screen = terminal.wait("1 session, 2 streams, 6 frames")
        assert "ended" in screen.splitlines()[0]
        terminal.press("q")
        terminal.wait("ended with 0")
