"""Options of a session's transport and socket that transports have no interface for."""

import contextlib
import os
import socket
import struct
import sys
from typing import Any, cast

from polymux.live.transport import ConnectionInfo

# Of `get_extra_info`: the descriptor to write to while the transport holds nothing.
EXTRA_RAW_FD = "polymux_raw_fd"
MAX_UNSENT_BYTES = 512 * 1024  # that the kernel buffers ahead of the network
# Python 3.11 does not define it on Linux.
NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else -1)

# Offset of `tcpi_min_rtt` (microseconds) in the `tcp_info` of Linux 4.6 and later.
TCPI_MIN_RTT_OFFSET = 148
UNKNOWN_RTT = 0xFFFFFFFF

MAX_KEEPALIVE_SECONDS = 32767  # the largest interval that every system accepts


def transport_info(transport: ConnectionInfo | None, name: str) -> Any:
    """Return extra information of a transport, or None if it has none or is gone."""
    if transport is not None:
        with contextlib.suppress(AttributeError):  # uvloop raises it once the connection is gone
            return transport.get_extra_info(name)
    return None


def peer_name(transport: ConnectionInfo | None, fallback: str) -> str:
    """Return HOST:PORT of the peer, or `fallback` where the transport has no such address."""
    address = transport_info(transport, "peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else fallback


def reset_on_close(transport: ConnectionInfo) -> None:
    """Let the end of a TCP connection be a reset (RST): what is unsent is dropped."""
    sock = transport_info(transport, "socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):  # the socket is gone
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def raw_socket_fd(transport: ConnectionInfo) -> int:
    """Return the socket's descriptor, or -1 if bytes may not be written to it directly.

    Direct writes need a transport of which an empty write buffer means that no byte is in flight
    between it and the socket: asyncio's own for sockets, and those that say so by EXTRA_RAW_FD.
    """
    if not hasattr(os, "writev"):
        return -1
    if type(transport).__module__ == "asyncio.selector_events":
        fd: int = transport.get_extra_info("socket").fileno()
    else:
        fd = transport.get_extra_info(EXTRA_RAW_FD, -1)
    return fd


def limit_unsent_bytes(transport: ConnectionInfo | None) -> None:
    """Set TCP_NOTSENT_LOWAT to bound unsent kernel-buffer data, so that a small message is not
    queued behind megabytes of another stream. Half a megabyte does not slow a transfer down."""
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and NOTSENT_LOWAT > 0:
        with contextlib.suppress(OSError):  # the system does not have the option
            sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, MAX_UNSENT_BYTES)


def configure_tcp_keepalive(
    transport: ConnectionInfo | None, interval: float, bound_unacknowledged: bool = True
) -> None:
    """Enable keepalive probes and a bound on unacknowledged data, to notice a vanished peer.

    Does nothing where the transport has no TCP socket. Options that the system lacks are skipped.

    Args:
        transport: The transport of the session.
        interval: Seconds between probes; data that stays unacknowledged for twice as long ends the
            connection.
        bound_unacknowledged: False leaves that bound out. Linux also applies it to a peer that is
            alive and does not read, which a proxy has to endure.
    """
    sock = transport_info(transport, "socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    seconds = max(1, int(min(interval, MAX_KEEPALIVE_SECONDS)))
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPIDLE", -1), seconds),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPINTVL", -1), seconds),
        (socket.IPPROTO_TCP, getattr(socket, "TCP_KEEPCNT", -1), 1),
    ]
    if bound_unacknowledged:
        user_timeout = getattr(socket, "TCP_USER_TIMEOUT", -1)
        options.append((socket.IPPROTO_TCP, user_timeout, 2000 * seconds))
    for level, option, value in options:
        if option >= 0:
            with contextlib.suppress(OSError):  # the system does not have the option
                sock.setsockopt(level, option, value)


def min_rtt_ns(transport: ConnectionInfo) -> int:
    """Return the minimum round-trip time in nanoseconds that TCP has measured; -1 if unknown."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform != "linux":
        return -1
    try:
        tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCPI_MIN_RTT_OFFSET + 4)
    except (OSError, ValueError):  # not TCP, or closed by now
        return -1
    if len(tcp_info) <= TCPI_MIN_RTT_OFFSET:
        return -1
    microseconds = int.from_bytes(tcp_info[TCPI_MIN_RTT_OFFSET:], sys.byteorder)
    return microseconds * 1000 if microseconds < UNKNOWN_RTT else -1


def stop_tls_read_ahead(transport: ConnectionInfo) -> None:
    """Keep uvloop's TLS from seeing the peer's end of stream while reading is paused.

    At the end of stream uvloop discards what its TLS layer has read and not delivered. So while
    reading is paused, the TLS layer must not read past the first undelivered bytes.
    """
    if transport.get_extra_info("uvloop.sslproto") is not None:
        # asyncio's transport classes do not declare uvloop's method.
        cast(Any, transport).set_read_buffer_limits(high=1, low=0)
