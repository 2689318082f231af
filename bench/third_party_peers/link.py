"""One end of a peer: `SCRIPT listen` prints its port, `SCRIPT connect PORT` runs JSON commands.

A line `{"do": NAME, ...}` on stdin is answered by one line on stdout: its result, or
`{"error": text}`. The end of stdin ends the program.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Command = Callable[..., Awaitable[Any]]


def print_json(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


async def run_commands(
    commands: dict[str, Command], next_line: Callable[[], Awaitable[str]]
) -> None:
    """Run the commands one after another."""
    print_json({"ready": True})
    while line := await next_line():
        order = json.loads(line)
        command = commands[order.pop("do")]
        try:
            print_json({"found": await command(**order)})
        except Exception as problem:
            print_json({"error": f"{type(problem).__name__}: {problem}"[:300]})
    os._exit(0)


def exit_on_eof() -> None:
    """Exit when standard input ends. Runs in a thread of a listening end."""
    while sys.stdin.readline():
        pass
    os._exit(0)
