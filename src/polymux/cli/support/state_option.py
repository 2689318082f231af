"""--top: the socket at which `polymux top` watches a recorder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping

import click

from polymux.metrics import StateSocket

Counters = Mapping[str, int]


def top_option(command: Callable[..., object]) -> Callable[..., object]:
    """Add --top; the command receives `top_url`."""
    add: Callable[[Callable[..., object]], Callable[..., object]] = click.option(
        "--top", "top_url", metavar="URL",
        help="Answer `polymux top URL` at this Unix socket: unix:///path.",
    )  # fmt: skip
    return add(command)


@contextlib.asynccontextmanager
async def recorder_state(
    url: str | None, capture: str, counters: Callable[[], Counters]
) -> AsyncIterator[None]:
    """Serve the state of a recorder at `url` within the block; without one, do nothing.

    Args:
        url: of a Unix socket.
        capture: the file, rotation or directory that is written.
        counters: names and values to show; a name that ends in `bytes` is a size.

    Raises:
        click.UsageError: The URL cannot be listened on.
    """
    if url is None:
        yield
        return
    path = os.path.abspath(capture)

    def state() -> dict[str, object]:
        return {"kind": "recorder", "capture": path, "counters": dict(counters())}

    async with StateSocket(url, state):
        yield
