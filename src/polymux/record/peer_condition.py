"""Whether the peer of a connection that is not being read is still there.

While the disk is full, connections are not read, and asyncio does not notice that a peer has ended.
The kernel knows: it is asked here, without reading.
"""

from __future__ import annotations

import enum
import fcntl
import select
import struct
import termios

from polymux.live.session.socket_options import transport_info
from polymux.live.transport import ConnectionInfo

HANG_UP = getattr(select, "POLLRDHUP", 0)  # the peer has ended its direction; Linux only


class PeerCondition(enum.Enum):
    """What the kernel knows about a peer."""

    PRESENT = "present"
    ENDED = "ended"
    """It sends no more. It may have closed the connection, or wait for an answer."""
    GONE = "gone"
    """The connection is lost: nothing can be sent to it any more."""


def peer_condition(transport: ConnectionInfo | None) -> PeerCondition:
    """Return the condition of the peer; PRESENT where there is no socket to ask."""
    descriptor = socket_descriptor(transport)
    if descriptor < 0:
        return PeerCondition.PRESENT
    poll = select.poll()
    poll.register(descriptor, HANG_UP)
    events = sum(event for _, event in poll.poll(0))
    if events & (select.POLLERR | select.POLLHUP):
        return PeerCondition.GONE
    return PeerCondition.ENDED if events & HANG_UP else PeerCondition.PRESENT


def has_unread_bytes(transport: ConnectionInfo | None) -> bool:
    """Return whether the kernel holds received bytes of this connection."""
    descriptor = socket_descriptor(transport)
    if descriptor < 0:
        return False
    (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    return bool(count)


def socket_descriptor(transport: ConnectionInfo | None) -> int:
    """Return the descriptor of a transport's socket; -1 if there is none, or it is closed."""
    sock = transport_info(transport, "socket")
    descriptor: int = sock.fileno() if sock is not None else -1
    return descriptor
