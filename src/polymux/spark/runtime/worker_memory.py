"""Memory and temporary files of a Python worker, which runs many tasks.

`release_memory` keeps what one task leaves in the allocators from counting towards the next.
`freeze_gc` keeps garbage collection from traversing imported modules, which live as long as the
worker: Spark forces a full collection after every task, which without it takes about 20 ms before
the next task starts, and a few percent of a task.
"""

from __future__ import annotations

import gc
import os
import tempfile

from polymux.malloc import trim

_frozen_stages: set[str] = set()


def freeze_gc(stage: str) -> None:
    """Call `gc.freeze()` once per stage, at its first task, so that later collections skip what
    has been imported."""
    if stage not in _frozen_stages:
        _frozen_stages.add(stage)
        gc.freeze()


def release_memory() -> None:
    """Return the free memory of Arrow and of the C library to the system.

    Called at the start of a task.
    """
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    trim()


def use_spark_local_dirs() -> None:
    """Make the directories of `spark.local.dir`, which Spark clears up, those of Python's
    temporary files.

    Several workers of a host take turns over several directories. Does nothing outside of a worker.
    """
    folders = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    usable = [folder for folder in folders if os.access(folder, os.W_OK)]
    if usable:
        tempfile.tempdir = usable[os.getpid() % len(usable)]
