"""What a live command waits for, said on standard error; and how long it does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress

from polymux.aio import Session, Unreachable
from polymux.cli.support.output import warn
from polymux.protocols.registry import create

MOMENT = 1.0  # seconds of silence before it is said what is waited for
LOOK = 0.05  # seconds between looks


class Watch:
    """Watches a session that stands: says what is waited for, and gives up after `timeout`.

    `timeout` counts only until the peer has sent anything behind its handshake; None for ever.
    """

    def __init__(self, session: Session, url: str, protocol: str, timeout: float | None) -> None:
        self._session = session
        self._connected = f"connected to {url}, speaking {protocol}"
        self._timeout = timeout
        self._handshake = 0 if create(protocol).handshaken else 1  # frames
        self._awaited = ""
        self._since = 0.0
        self._said = ""
        self._loop = asyncio.get_running_loop()
        if sys.stderr.isatty():
            warn(self._connected)
            self._connected = ""

    def awaits(self, what: str) -> None:
        """From now on, nothing is left to do until the peer does this."""
        self._awaited, self._since = what, self._loop.time()

    def reads_input(self) -> None:
        """Standard input is read: what happens next is up to it."""
        self._awaited = ""
        if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
            warn("type what to send; Ctrl-D ends it")

    async def during(self, work: Coroutine[object, object, None]) -> None:
        """Do the work, watched. Raises Unreachable if the peer stays silent for too long."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._look())
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await watching  # which raises
            await working
        finally:
            for task in (working, watching):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            if not self._awaited:
                continue
            silent = self._frames() <= self._handshake
            waited = self._loop.time() - self._since
            if waited >= MOMENT and self._said != self._awaited:
                self._said = self._awaited
                head = f"{self._connected}; " if self._connected else ""
                self._connected = ""
                tail = "; nothing has come from it yet" if silent else ""
                warn(f"{head}waiting for {self._awaited}{tail}")
            if silent and self._timeout is not None and waited >= self._timeout:
                raise Unreachable(
                    f"connected, but nothing came from the peer within {self._timeout:g} s: does "
                    f"it speak {self._session.endpoint.protocol.name}? allow more with --timeout"
                )

    def _frames(self) -> int:
        """Frames of the peer so far."""
        endpoint = self._session.endpoint
        return int(endpoint.conversation.direction(1 - endpoint.side).frames)
