"""What a session asks of the socket under its transport."""

import asyncio
import contextlib
import os
import socket
import sys

UNSENT = 512 * 1024  # octets the system takes ahead of the network while streams share it
# Python 3.11 has no name for it on Linux.
NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else -1)


def plain_socket(transport: asyncio.Transport) -> int:
    """The socket's descriptor under asyncio's own socket transport, of which we know that an empty
    buffer means that nothing is on its way; -1 for any other transport."""
    if type(transport).__module__ != "asyncio.selector_events" or not hasattr(os, "writev"):
        return -1
    fd: int = transport.get_extra_info("socket").fileno()
    return fd


def keep_short(transport: asyncio.Transport | None) -> None:
    """Let no megabytes of one stream pile up in the system before a small message of another.

    Half a megabyte is plenty for the network; more of it only makes everybody wait.
    """
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and NOTSENT_LOWAT > 0:
        with contextlib.suppress(OSError):  # a system without this option does without
            sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)
