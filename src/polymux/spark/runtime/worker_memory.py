"""Memory of a Python worker between tasks."""

from __future__ import annotations

from polymux.malloc import trim


def release_memory() -> None:
    """Return free memory to the system.

    Called at the start of a task: a worker runs many, and the free memory that one leaves in the
    allocators of Arrow and of the C library would count towards the next.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim()
