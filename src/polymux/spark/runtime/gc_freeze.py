"""What a worker has imported lasts as long as the worker does.

Python looks through all of it for garbage again and again, and Spark has it look once more after
every task: some 20 ms before the worker takes another one, and a few percent of a task.
"""

from __future__ import annotations

import gc

_frozen_stages: set[str] = set()


def freeze_gc(stage: str) -> None:
    """Leave all there is now out of such looks; only once for each stage, at its first task."""
    if stage not in _frozen_stages:
        _frozen_stages.add(stage)
        gc.freeze()
