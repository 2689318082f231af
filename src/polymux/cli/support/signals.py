"""Stopping a command with SIGINT, SIGTERM or SIGHUP.

SIGHUP, which is also sent when the terminal is closed, ends a command in good order like the other
two. Where it is ignored, as under `nohup`, it stays ignored.

A command installs the handlers before it prints that it is running: whatever started it may send a
signal as soon as it has read that.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


def stop_signals() -> list[signal.Signals]:
    """Return the signals that stop a command."""
    signals = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signals.append(signal.SIGHUP)
    return signals


def stop_event() -> asyncio.Event:
    """Return an event that these signals set. Call it inside a running event loop."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        with suppress(NotImplementedError):  # without support, the signal ends the process
            loop.add_signal_handler(number, stop.set)
    return stop


async def first_of(*tasks: asyncio.Future[Any]) -> None:
    """Wait for the first of these, and cancel the others."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """The same without an event loop: yield a function that returns whether a signal has arrived.

    Only the first signal is intercepted; a second one has its former effect.
    """
    former = {number: signal.getsignal(number) for number in stop_signals()}
    received: list[int] = []

    def restore() -> None:
        for number, handler in former.items():
            signal.signal(number, handler)

    def on_signal(number: int, frame: FrameType | None) -> None:
        received.append(number)
        restore()

    for number in former:
        signal.signal(number, on_signal)
    try:
        yield lambda: bool(received)
    finally:
        restore()
