"""The terminal as a whole screen: lines drawn where they changed, and keys."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

ESCAPE_SECONDS: Final = 0.05  # in which the rest of a key's sequence follows its first byte
KEYS: Final = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[F": "end",
    "\x1b[1~": "home", "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end",
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x1b": "escape",
}  # fmt: skip


class NoTerminal(Exception):
    """There is no terminal that a screen can be drawn on; the text says what is missing."""


class Screen:
    """The whole terminal, from `__enter__` to `__exit__`, which restores it.

    Keys are read from standard input or, if that is a capture, from the controlling terminal.

    Raises:
        NoTerminal: Standard output is no terminal, or one that cannot position its cursor.
    """

    def __init__(self) -> None:
        if not sys.stdout.isatty():
            raise NoTerminal("standard output is no terminal")
        self._console = Console(highlight=False, emoji=False, markup=False)
        if self._console.is_dumb_terminal:
            raise NoTerminal(f"TERM={os.environ.get('TERM', '')} cannot position the cursor")
        self._keys = -1
        self._own_keys = False
        self._saved: list[Any] = []
        self._drawn: list[Text] = []
        self._size = (0, 0)
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._handlers: dict[int, Any] = {}
        self.stopped = False
        """A signal asked to stop."""

    def __enter__(self) -> Screen:
        if sys.stdin.isatty():
            self._keys = sys.stdin.fileno()
        else:
            try:
                self._keys = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
            except OSError:
                raise NoTerminal("there is no terminal to read keys from") from None
            self._own_keys = True
        self._saved = termios.tcgetattr(self._keys)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_stop)
        self._handlers[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._on_continue)
        self._take()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._saved)
        with contextlib.suppress(OSError):
            self._console.show_cursor(True)
            self._console.set_alt_screen(False)
        if self._own_keys:
            os.close(self._keys)

    def _take(self) -> None:
        tty.setcbreak(self._keys)
        self._console.set_alt_screen(True)
        self._console.show_cursor(False)
        self._drawn = []

    def _on_stop(self, number: int, frame: object) -> None:
        self.stopped = True

    def _on_continue(self, number: int, frame: object) -> None:
        """The process was suspended, and the shell has used the terminal."""
        self._take()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            size = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return 80, 24
        return max(1, size.columns), max(1, size.lines)

    def draw(self, lines: list[Text]) -> None:
        """Show these lines, the first at the top; only those that changed are written."""
        size = self.size
        if size != self._size:
            self._size = size
            self._drawn = []
        console = self._console
        console.width, console.height = size
        with console:  # one write for all of it
            if not self._drawn:
                console.control(Control.clear(), Control.home())
            for number, line in enumerate(lines[: size[1]]):
                if number < len(self._drawn) and same_text(self._drawn[number], line):
                    continue
                console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
                console.print(line, end="", no_wrap=True, overflow="crop", crop=True)
            for number in range(len(lines), len(self._drawn)):
                console.control(Control.move_to(0, number), Control((ControlType.ERASE_IN_LINE, 2)))
        self._drawn = lines[: size[1]]

    def keys(self, seconds: float) -> Iterator[str]:
        """The keys pressed within `seconds`: characters, or names such as `up` and `enter`.

        Returns as soon as there was one.
        """
        with contextlib.suppress(InterruptedError):
            if self._readable(seconds):
                self._read()
                while self._pending.endswith("\x1b") and self._readable(ESCAPE_SECONDS):
                    self._read()
        while self._pending:
            key, self._pending = split_key(self._pending)
            yield key

    def _readable(self, seconds: float) -> bool:
        return bool(select.select([self._keys], [], [], max(0.0, seconds))[0])

    def _read(self) -> None:
        try:
            data = os.read(self._keys, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self.stopped = True
        self._pending += self._decoder.decode(data)


def same_text(one: Text, other: Text) -> bool:
    """Whether two lines look the same; `Text` compares its styles only by their place."""
    return one.plain == other.plain and one.spans == other.spans and one.style == other.style


def split_key(text: str) -> tuple[str, str]:
    """The first key of what was typed, and the rest. An unknown sequence is the key ""."""
    if text[0] != "\x1b" or len(text) == 1:
        return KEYS.get(text[0], text[0]), text[1:]
    for size in (3, 4):
        if text[:size] in KEYS:
            return KEYS[text[:size]], text[size:]
    if text[1] not in "[O":
        return "escape", text[1:]
    end = 2
    while end < len(text) and not text[end].isalpha() and text[end] != "~":
        end += 1
    return "", text[end + 1 :]
