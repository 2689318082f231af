"""`process_lock`: a lock among processes that have inherited the descriptor of one file.

Locks of `fcntl.lockf` belong to a process and end with it, however it ends. For the same reason
the system takes two threads that wait for different processes for a deadlock, although each of
them goes on by itself: a process that waits with one thread while another one holds a lock gets
EDEADLK. No thread here holds one lock while it waits for another, so that is never true, and the
lock is asked for again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator

RETRY_SECONDS = 0.001


@contextlib.contextmanager
def process_lock(descriptor: int, number: int = 0) -> Iterator[None]:
    """Hold the lock with this number within the block, alone of all processes.

    A thread must not hold two. Threads of one process do not exclude each other.

    Args:
        descriptor: Of the file; no other one of it may be closed in this process meanwhile.
        number: The byte of the file that is locked.
    """
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, number)
            break
        except OSError as problem:
            if problem.errno != errno.EDEADLK:
                raise
        time.sleep(RETRY_SECONDS)
    try:
        yield
    finally:
        fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, number)


def unnamed_file(size: int) -> int:
    """Return the descriptor of a new file of zeros, without a name, for processes that inherit it.

    On Linux it is in memory: it needs no directory that can be written, and a full disk does not
    end a process that has it mapped.

    Raises:
        OSError: It cannot be created.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("polymux")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        os.write(descriptor, bytes(size))  # not only its length: the space is taken now
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
