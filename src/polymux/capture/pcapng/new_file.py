"""A new capture file: written as `NAME.part`, published when it is complete."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from polymux.capture.io.atomic_write import PART_SUFFIX, create_locked, publish
from polymux.capture.io.paths import PRIVATE_FILE
from polymux.core.errors import CaptureError


@contextlib.contextmanager
def new_capture(target: str) -> Iterator[int]:
    """The descriptor of a new file, which gets the name `target` when the block ends.

    It is readable by its owner only. If the block raises, nothing is left behind.

    Raises:
        CaptureError: `target` exists or cannot be written.
    """
    if os.path.lexists(target):
        raise CaptureError("exists already; choose another name", target)
    part = target + PART_SUFFIX
    try:
        fd = create_locked(part, PRIVATE_FILE)
    except FileExistsError:
        raise CaptureError("exists already; remove it first", part) from None
    except OSError as failure:
        raise CaptureError(f"cannot be written: {failure.strerror}", target) from None
    try:
        yield fd
        os.fsync(fd)
        publish_capture(part, target)
    except OSError as failure:
        raise CaptureError(f"cannot be written: {failure.strerror}", target) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # unless it is published
        os.close(fd)


def publish_capture(part: str, name: str) -> None:
    """`publish`, with an error that says what to do if the name exists."""
    try:
        publish(part, name)
    except FileExistsError:
        raise CaptureError(
            "has appeared meanwhile and is not replaced; move it away and try again", name
        ) from None
