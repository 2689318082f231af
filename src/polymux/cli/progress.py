"""A progress bar on a terminal for whatever takes more than a second."""

from __future__ import annotations

import threading
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

PATIENCE = 1.0


class Waiting:
    """Use as a context; `total` and `done` are octets. Nothing is shown where nobody looks."""

    def __init__(self, text: str, quiet: bool = False) -> None:
        self.total = 0
        self.done = 0
        self._bar: Progress | None = None
        self._timer: threading.Timer | None = None
        console = Console(stderr=True)
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
                TimeElapsedColumn(), console=console, transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(text, total=None)
            self._timer = threading.Timer(PATIENCE, self._bar.start)
            self._timer.daemon = True

    def advance(self, octets: int) -> None:
        self.done += octets
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, total=max(self.total, self.done))

    def __enter__(self) -> Waiting:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()
        if self._bar is not None:
            self._bar.stop()
