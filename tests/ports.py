"""Ports for programs that must be told where to listen, or that must find nothing there."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

LOWEST = 10_000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

# One socket for each port given out: its name tells test processes beside this one that the port
# is taken, and goes with this process.
_claims: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Different ports of 127.0.0.1 that nothing listens on.

    They stay free until the caller uses them, also again and again: the system gives none of them
    to a socket that asks for any port, and no other test process gets the same ones.
    """
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    allowed = range(LOWEST, first) if first > LOWEST + 1000 else range(LOWEST, 65_536)
    ports: list[int] = []
    for port in random.SystemRandom().sample(allowed, len(allowed)):
        if len(ports) == count:
            return ports
        with contextlib.suppress(OSError):
            _claim(port)
            ports.append(port)
    raise AssertionError(f"there are no {count} free ports")


def free_port() -> int:
    """One of `free_ports`."""
    return free_ports(1)[0]


def _claim(port: int) -> None:
    """Raises OSError if the port is in use or given out to another test process."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0polymux-tests-port-{port}")
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        claim.close()
        raise
    _claims.append(claim)
