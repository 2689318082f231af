"""A server in a process that has no descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator

import pytest
from tests.aio.session_helpers import echo

import polymux
from polymux.metrics import Meter


@contextlib.contextmanager
def no_descriptors() -> Iterator[None]:
    """Take all that this process may still open; give them back at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    taken = [highest]
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)


def hits(meter: Meter) -> int:
    found = [family for family in meter.collect() if family.name == "limit_hits"]
    return sum(family.values.get(("mplex", "open_files"), 0) for family in found)


async def test_connections_wait_until_there_are_descriptors_and_none_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = Meter()
    caplog.set_level(logging.INFO, "polymux.aio")
    async with polymux.serve(echo, "tcp://127.0.0.1:0", protocol="mplex", meter=meter) as server:
        with contextlib.ExitStack() as clients:
            waiting = [clients.enter_context(socket.socket()) for _ in range(5)]
            with no_descriptors():
                for client in waiting:
                    client.connect(("127.0.0.1", server.port))
                while not hits(meter):
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.2)
                assert not server.sessions
            assert hits(meter) == 1  # it has not tried again and again
            async with asyncio.timeout(60):
                while len(server.sessions) < 5:
                    await asyncio.sleep(0.01)
    assert caplog.text.count("no connections are accepted until descriptors are free") == 1
    assert caplog.text.count("connections are accepted again") == 1
