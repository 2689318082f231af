"""`--explain`: which relayed stream stands still, and why, while it does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from polymux.cli.support.output import json_line, warn
from polymux.relay.engine import Relay
from polymux.relay.pump import Pump
from polymux.relay.stalled import Stall, stalled_streams

INTERVAL_SECONDS = 0.5  # between two looks at what stands still
STALL_SECONDS = 1.0  # after which a stall is reported


class StallReporter:
    """In `async with`: prints a line when a stall begins and when it is over.

    Lines go to standard error on a terminal, and as JSON to standard output in a pipe.

    Args:
        relays: Relays that are running, and the peer of each; it may change.
        explain: Whether to print anything.
    """

    def __init__(self, relays: Mapping[Relay, str], explain: bool) -> None:
        self._relays = relays
        self._explain = explain
        self._task: asyncio.Task[None] | None = None
        self._reported: dict[Pump, Stall] = {}

    async def __aenter__(self) -> None:
        if self._explain:
            self._task = asyncio.create_task(self._run())

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            found = dict(stalled_streams(self._relays, STALL_SECONDS))
            for pump, stall in found.items():
                if pump not in self._reported:
                    self._print("stalled", stall, stall.seconds)
                self._reported[pump] = stall
            for pump in [pump for pump in self._reported if pump not in found]:
                stall = self._reported.pop(pump)
                self._print("ended" if pump.finished else "moving", stall, stall.seconds)

    def _print(self, state: str, stall: Stall, seconds: float) -> None:
        if not sys.stdout.isatty():
            json_line(
                {
                    "state": state,
                    "connection": stall.name,
                    "from": stall.source,
                    "to": stall.sink,
                    "cause": stall.cause,
                    "explanation": stall.explanation,
                    "seconds": round(seconds, 1),
                    "bytes": stall.moved,
                }
            )
        elif state == "stalled":
            warn(
                f"stalled for {seconds:.1f} s: {stall.name}, {stall.source} to {stall.sink}: "
                f"{stall.cause}: {stall.explanation}"
            )
        else:
            warn(f"{state} after {seconds:.1f} s: {stall.name}, {stall.source} to {stall.sink}")
        sys.stdout.flush()
