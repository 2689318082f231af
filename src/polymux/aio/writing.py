"""Chunks to the transport: few system calls, and no copy of what is large."""

import asyncio
import contextlib
import os
import socket
import sys

GATHERED = 64 * 1024  # octets from which a copy costs more than asking for the socket
AT_A_TIME = 64 * 1024  # octets handed to the system: it takes more of them while the peer reads
MOST_BUFFERS = 512  # in one system call; every system takes as many
UNSENT = 512 * 1024  # octets the system takes ahead of the network while streams share it
# Python 3.11 has no name for it on Linux.
NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else -1)


def hand_over(transport: asyncio.Transport, chunks: list[bytes]) -> int:
    """Give the transport all chunks, in order; returns their octets.

    A system call for each chunk would cost more than joining them, and `writelines` hands small
    buffers to the system one by one, in some versions without ever asking us to wait. Large ones
    go to the socket together, uncopied.
    """
    if len(chunks) == 1:
        transport.write(chunks[0])
        return len(chunks[0])
    size = sum(map(len, chunks))
    if size < GATHERED or len(chunks) > MOST_BUFFERS or not is_plain_socket(transport):
        transport.write(b"".join(chunks))
        return size
    taken = write_now(transport, chunks) if transport.get_write_buffer_size() == 0 else 0
    if taken == size:
        return size
    for chunk in chunks:  # once something waits, more of it costs no system call
        if taken >= len(chunk):
            taken -= len(chunk)
        else:
            transport.write(memoryview(chunk)[taken:] if taken else chunk)
            taken = 0
    return size


def is_plain_socket(transport: asyncio.Transport) -> bool:
    """Is it asyncio's own socket transport, of which we know that an empty buffer means that
    nothing is on its way?"""
    return type(transport).__module__ == "asyncio.selector_events" and not transport.is_closing()


def write_now(transport: asyncio.Transport, chunks: list[bytes]) -> int:
    """Octets the socket took at once. What is wrong with it, the transport will find out."""
    fd = transport.get_extra_info("socket").fileno()
    taken = size = first = 0
    with contextlib.suppress(OSError):
        for after, chunk in enumerate(chunks, 1):
            size += len(chunk)
            if size >= AT_A_TIME or after == len(chunks):
                written = os.writev(fd, chunks[first:after])
                taken += written
                if written < size:
                    break
                first, size = after, 0
    return taken


def keep_short(transport: asyncio.Transport | None) -> None:
    """Let no megabytes of one stream pile up in the system before a small message of another.

    Half a megabyte is plenty for the network; more of it only makes everybody wait.
    """
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and NOTSENT_LOWAT > 0:
        with contextlib.suppress(OSError):  # a system without this option does without
            sock.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT)
