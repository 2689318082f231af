"""Errors of Spark tasks as the exceptions that the tasks raised.

Spark gives the driver the text of a failed task, with the traces of Python and Java around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from polymux.core.errors import CaptureUnavailable, PolymuxError, UnwritableOutput

# The last line of a Python trace, which begins with the name of the exception's class.
_RAISED = re.compile(r"^polymux\.[\w.]+\.(\w+): (.*)$", re.MULTILINE)
_CLASSES: dict[str, type[PolymuxError]] = {
    "LostInput": CaptureUnavailable,
    "CaptureUnavailable": CaptureUnavailable,
    "OutputError": UnwritableOutput,
    "UnwritableOutput": UnwritableOutput,
}


def raised_in_task(text: str) -> PolymuxError | None:
    """Return the error of polymux that a task raised, from the text of Spark's error.

    None if the task failed for another reason.
    """
    found = _RAISED.findall(text)
    if not found:
        return None
    name, message = found[-1]
    return _CLASSES.get(name, PolymuxError)(message.strip())


@contextmanager
def task_errors() -> Iterator[None]:
    """Raise the error of polymux that a task of the block raised, in place of Spark's."""
    try:
        yield
    except PolymuxError:
        raise
    except Exception as problem:
        error = raised_in_task(str(problem))
        if error is None:
            raise
        raise error from None
