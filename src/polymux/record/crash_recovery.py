"""Publishes capture files that a killed recorder left behind as `.part`."""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import dataclass, field

from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import AnyPath, one_path
from polymux.capture.pcapng.blocks import interface, section
from polymux.capture.pcapng.repair import recover
from polymux.capture.pcapng.rotation import rotation_files
from polymux.core.errors import CaptureError

# A shorter file has no packets: its writer was killed while writing the header.
MIN_CAPTURE_BYTES = len(section() + interface())


@dataclass
class RecoveryResult:
    """Result of a recovery.

    Args:
        published: Paths of the files that were published.
        problems: One line with path and reason for each file that could not be published.
    """

    published: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def recover_partial_captures(path: AnyPath) -> RecoveryResult:
    """Publish the files of a rotation whose recorder was killed.

    Files that another recorder is writing (they are locked) are skipped. Files that end within
    their header are removed. Running it again changes nothing.

    Args:
        path: Base name of the rotation, for example `captures/day.pcapng`.

    Returns:
        What was published, and what could not be.
    """
    result = RecoveryResult()
    for _, part in rotation_files(one_path(path)):
        if not part.endswith(PART_SUFFIX) or is_locked(part) or remove_empty(part):
            continue
        try:
            result.published.append(recover(part))
        except CaptureError as problem:
            result.problems.append(str(problem))
    return result


def is_locked(part: str) -> bool:
    """Whether a recorder is writing the file."""
    try:
        with open(part, "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # `recover` reports the problem
    return False


def remove_empty(part: str) -> bool:
    """Remove the file if it has no complete header. Return whether it was removed."""
    with contextlib.suppress(OSError), open(part, "r+b") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_size < MIN_CAPTURE_BYTES:
            os.unlink(part)
            return True
    return False
