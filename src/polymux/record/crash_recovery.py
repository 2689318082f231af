"""Recordings that a killed recorder left behind, found again when the next one starts."""

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

MIN_CAPTURE_BYTES = len(
    section() + interface()
)  # a file shorter than this was killed before its first packet


@dataclass
class RecoveryResult:
    """What was published now, and what could not be, each with the reason."""

    published: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def recover_partial_captures(path: AnyPath) -> RecoveryResult:
    """Publish every file of the rotation `path` that its recorder could not publish any more.

    Files that another recorder is still writing are left alone, those without a single whole
    packet and its head are removed. Doing it again changes nothing.
    """
    found = RecoveryResult()
    for _, part in rotation_files(one_path(path)):
        if not part.endswith(PART_SUFFIX) or is_locked(part) or remove_empty(part):
            continue
        try:
            found.published.append(recover(part))
        except CaptureError as problem:
            found.problems.append(str(problem))
    return found


def is_locked(part: str) -> bool:
    """Is it being written right now?"""
    try:
        with open(part, "rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False  # whoever reads it next will say what is wrong
    return False


def remove_empty(part: str) -> bool:
    """Remove a file whose writer was killed before it held anything."""
    with contextlib.suppress(OSError), open(part, "r+b") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_size < MIN_CAPTURE_BYTES:
            os.unlink(part)
            return True
    return False
