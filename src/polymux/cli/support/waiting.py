"""Telling the user of `polymux connect` what the command waits for, and giving up in time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from contextlib import suppress

from polymux.aio import Session, Unreachable
from polymux.cli.support.output import warn
from polymux.protocols.registry import create

NOTICE_DELAY = 1.0  # seconds of waiting before it is reported
POLL_SECONDS = 0.05  # seconds between checks


class WaitReporter:
    """Prints to standard error what a session waits for, and raises after `timeout` seconds.

    The timeout applies only until the peer has sent anything after its handshake; None waits
    forever.
    """

    def __init__(self, session: Session, url: str, protocol: str, timeout: float | None) -> None:
        self._session = session
        self._connected = f"connected to {url}, speaking {protocol}"
        self._timeout = timeout
        self._handshake = 0 if create(protocol).handshake_done else 1  # frames
        self._waiting_for = ""
        self._since = 0.0
        self._last_notice = ""
        self._loop = asyncio.get_running_loop()
        if sys.stderr.isatty():
            warn(self._connected)
            self._connected = ""

    def waiting_for(self, what: str) -> None:
        """From now on the command waits for `what`, such as "the reply"."""
        self._waiting_for, self._since = what, self._loop.time()

    def reading_input(self) -> None:
        """From now on the command waits for standard input, not for the peer."""
        self._waiting_for = ""
        if sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
            warn("type what to send; Ctrl-D ends it")

    async def run(self, work: Coroutine[object, object, None]) -> None:
        """Await `work` while reporting. Raise Unreachable if the peer is silent for too long."""
        working = asyncio.create_task(work)
        watching = asyncio.create_task(self._poll())
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await watching  # raises
            await working
        finally:
            for task in (working, watching):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if not self._waiting_for:
                continue
            silent = self._peer_frames() <= self._handshake
            waited = self._loop.time() - self._since
            if waited >= NOTICE_DELAY and self._last_notice != self._waiting_for:
                self._last_notice = self._waiting_for
                head = f"{self._connected}; " if self._connected else ""
                self._connected = ""
                tail = "; nothing received from it yet" if silent else ""
                warn(f"{head}waiting for {self._waiting_for}{tail}")
            if silent and self._timeout is not None and waited >= self._timeout:
                raise Unreachable(
                    f"connected, but nothing came from the peer within {self._timeout:g} s: does "
                    f"it speak {self._session.endpoint.protocol.name}? allow more with --timeout"
                )

    def _peer_frames(self) -> int:
        """Number of frames received so far."""
        endpoint = self._session.endpoint
        return int(endpoint.connection.direction(1 - endpoint.side).frames)
