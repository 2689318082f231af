"""Commands that run until they are told to stop: by SIGINT, or by SIGTERM.

Whoever reads that a command is at work may end it at once, so it listens before it says so.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def when_told() -> asyncio.Event:
    """Set when the process is told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        with suppress(NotImplementedError):  # a loop that cannot: the signal then ends the process
            loop.add_signal_handler(number, stop.set)
    return stop


class Told:
    """The same without a loop: as a context, `yet` says whether the process was told to stop.

    The first signal only says so; the next one does what it would have done without us.
    """

    def __init__(self) -> None:
        self.yet = False
        self._former = {number: signal.getsignal(number) for number in SIGNALS}

    def __enter__(self) -> Told:
        for number in SIGNALS:
            signal.signal(number, self._tell)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self.yet = True
        self.__exit__(None, None, None)
