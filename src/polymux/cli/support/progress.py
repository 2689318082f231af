"""A progress bar for work that takes more than a second: amount, rate and remaining time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

import click

from polymux.text.units import duration_text, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

SHOW_AFTER_SECONDS = 1.0  # shorter work shows no bar
REFRESH_SECONDS = 0.2

_active_bars: list[ProgressBar] = []  # at most one


class ProgressBar:
    """A progress bar, shown on a terminal only. Use as a context manager.

    Args:
        text: What is being done.
        total: The amount of work in `unit`s; 0 if unknown.
        poll: Returns the amount done; without it, `advance` counts.
        unit: The unit; bytes are shown as KiB, MiB and so on.
        printing: Whether lines are printed meanwhile, above the bar, with `print_line`.
        console: Where to show it; by default standard error, or standard output if `printing`.
    """

    def __init__(
        self,
        text: str,
        total: int = 0,
        poll: Callable[[], int] | None = None,
        *,
        unit: str = "bytes",
        printing: bool = False,
        console: Console | None = None,
    ) -> None:
        self.unit = unit
        self.console = console or _terminal(printing)
        self._bar: Progress | None = None
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self.start_phase(text, total, poll)

    def start_phase(self, text: str, total: int = 0, poll: Callable[[], int] | None = None) -> None:
        """Start another kind of work; counting begins again at 0."""
        self.text = text
        self.total = total
        self.done = 0
        self._poll = poll
        self._phase_start = time.monotonic()

    def advance(self, amount: int) -> None:
        self.done += amount

    def status_text(self) -> str:
        """Such as `120 MiB of 1.1 GiB, 310 MiB/s, 3.2 s left`, as far as it is known."""
        done, total = self.done, max(self.total, self.done) if self.total else 0
        rate = done / max(time.monotonic() - self._phase_start, 1e-3)
        parts = [f"{self._amount(done)} of {self._amount(total)}" if total else self._amount(done)]
        if rate >= 1:
            parts.append(f"{self._amount(int(rate))}/s")
            if total:
                parts.append(f"{duration_text(int((total - done) / rate * 1e9))} left")
        return ", ".join(parts)

    def _amount(self, count: int) -> str:
        return size_text(count) if self.unit == "bytes" else f"{count:,} {self.unit}"

    def _show(self) -> None:
        """Show the bar after `SHOW_AFTER_SECONDS` and keep it up to date. Runs in a thread."""
        if SHOW_AFTER_SECONDS > 0 and self._finished.wait(SHOW_AFTER_SECONDS):
            return
        from rich.progress import BarColumn, Progress, TextColumn

        bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"),
            console=self.console, transient=True, auto_refresh=False,
        )  # fmt: skip
        task = bar.add_task(self.text, total=None, status="")
        bar.start()
        self._bar = bar
        while True:
            if self._poll is not None:
                self.done = self._poll()
            total = max(self.total, self.done) if self.total else None
            bar.update(
                task,
                description=self.text,
                completed=self.done,
                total=total,
                status=self.status_text(),
            )
            bar.refresh()
            if self._finished.wait(REFRESH_SECONDS):
                break
        self._bar = None
        bar.stop()

    def print_line(self, line: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            from rich.text import Text

            self._bar.console.print(Text(line), soft_wrap=True)
        else:
            click.echo(line)

    def __enter__(self) -> ProgressBar:
        if self.console is not None and self.console.is_terminal:
            import rich.progress  # noqa: F401  # here: the thread would show the bar too late

            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()
            _active_bars.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            _active_bars.remove(self)
            self._finished.set()
            self._thread.join()
            self._thread = None


def _terminal(printing: bool) -> Console | None:
    """Where a bar is shown by default; None if that is certainly no terminal."""
    stream = sys.stdout if printing else sys.stderr
    # Variables with which `rich` takes any stream for a terminal:
    forced = "FORCE_COLOR" in os.environ or "TTY_COMPATIBLE" in os.environ
    if not forced and (stream is None or not stream.isatty()):
        return None
    from rich.console import Console  # takes long

    return Console(stderr=not printing, highlight=False)


def print_line(line: str) -> None:
    """Print a line to standard output, above the progress bar if one is shown."""
    if _active_bars:
        _active_bars[-1].print_line(line)
    else:
        click.echo(line)


def bytes_read_counter() -> Callable[[], int]:
    """Return a function for the bytes this process has read since now; 0 without /proc/self/io."""

    def count() -> int:
        try:
            with open("/proc/self/io", "rb") as file:
                return int(file.readline().split()[1])
        except (OSError, ValueError, IndexError):
            return 0

    before = count()
    return lambda: count() - before
