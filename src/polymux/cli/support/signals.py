"""Commands that run until they are told to stop: by SIGINT, or by SIGTERM.

Whoever reads that a command is at work may end it at once, so it listens before it says so.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_event() -> asyncio.Event:
    """Set when the process is told to stop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        with suppress(NotImplementedError):  # a loop that cannot: the signal then ends the process
            loop.add_signal_handler(number, stop.set)
    return stop


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """The same without a loop: what it gives says whether the process was told to stop by now.

    The first signal only has it say so; the next one does what it would have done without us.
    """
    former = {number: signal.getsignal(number) for number in SIGNALS}
    heard: list[int] = []

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        restore()

    for number in SIGNALS:
        signal.signal(number, hear)
    try:
        yield lambda: bool(heard)
    finally:
        restore()
