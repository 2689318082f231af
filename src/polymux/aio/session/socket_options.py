"""What is asked of a transport, and of the socket under it, beyond what asyncio has words for."""

import asyncio
import contextlib
import os
import socket
import sys
from typing import Any, cast

MAX_UNSENT_BYTES = 512 * 1024  # bytes the system takes ahead of the network while streams share it
# Python 3.11 has no name for it on Linux.
NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else -1)

TCPI_MIN_RTT_OFFSET = (
    148  # where Linux, since 4.6, has `tcpi_min_rtt` in its `tcp_info`: microseconds
)
UNKNOWN_RTT = 0xFFFFFFFF


def raw_socket_fd(transport: asyncio.Transport) -> int:
    """The socket's descriptor under asyncio's own socket transport, of which we know that an empty
    buffer means that nothing is on its way; -1 for any other transport."""
    if type(transport).__module__ != "asyncio.selector_events" or not hasattr(os, "writev"):
        return -1
    fd: int = transport.get_extra_info("socket").fileno()
    return fd


def limit_unsent_bytes(transport: asyncio.Transport | None) -> None:
    """Let no megabytes of one stream pile up in the system before a small message of another.

    Half a megabyte is plenty for the network; more of it only makes everybody wait.
    """
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and NOTSENT_LOWAT > 0:
        with contextlib.suppress(OSError):  # a system without this option does without
            sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, MAX_UNSENT_BYTES)


def min_rtt_ns(transport: asyncio.BaseTransport) -> int:
    """Nanoseconds that bytes need to the peer and back: the least that TCP has measured of late;
    -1 if nobody has."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return -1
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_MIN_RTT_OFFSET + 4)
    except (OSError, ValueError):  # not TCP, or closed by now
        return -1
    least = (
        int.from_bytes(told[TCPI_MIN_RTT_OFFSET:], sys.byteorder)
        if len(told) > TCPI_MIN_RTT_OFFSET
        else UNKNOWN_RTT
    )
    return least * 1000 if least < UNKNOWN_RTT else -1


def stop_tls_read_ahead(transport: asyncio.BaseTransport) -> None:
    """Let TLS on uvloop not see a peer's end while reading is paused.

    At the end uvloop drops what its TLS has read and nobody has taken. So while nobody takes
    anything, TLS may not read past the first bytes that wait.
    """
    if transport.get_extra_info("uvloop.sslproto") is not None:
        cast(Any, transport).set_read_buffer_limits(high=1, low=0)
