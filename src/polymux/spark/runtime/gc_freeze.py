"""Excluding imported modules from garbage collection in a Python worker.

Imported modules live as long as the worker, but every full collection traverses them, and Spark
forces one after every task: about 20 ms before the next task starts, and a few percent of a task.
"""

from __future__ import annotations

import gc

_frozen_stages: set[str] = set()


def freeze_gc(stage: str) -> None:
    """Call `gc.freeze()` once per stage, at its first task, so that later collections skip what
    has been imported."""
    if stage not in _frozen_stages:
        _frozen_stages.add(stage)
        gc.freeze()
