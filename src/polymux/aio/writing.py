"""Chunks to the transport: few system calls, and no copy of what is large."""

import asyncio
import os

GATHERED = 64 * 1024  # octets from which a copy costs more than asking for the socket
MOST_BUFFERS = 512  # in one system call; every system takes as many


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
    try:
        return os.writev(transport.get_extra_info("socket").fileno(), chunks)
    except OSError:
        return 0
