"""Commands that run until they are told to stop."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


def when_told() -> asyncio.Event:
    """Set when the process is interrupted or terminated."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # a loop that cannot: the signal then ends the process
            loop.add_signal_handler(number, stop.set)
    return stop
