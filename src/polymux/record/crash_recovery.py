"""Publishes capture files that a killed recorder left behind as `.part`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass, field

from polymux.capture.io.atomic_write import PART_SUFFIX, open_locked
from polymux.capture.io.paths import INDEX_SUFFIX, AnyPath
from polymux.capture.pcapng.blocks import interface, section
from polymux.capture.pcapng.repair import recover_locked
from polymux.capture.pcapng.rotation import rotation_files
from polymux.core.errors import CaptureError
from polymux.record.process_files import paths_of_all

LEFTOVER_SECONDS = 3600.0  # age at which the temporary file of an index has no writer any more
# A shorter file has no packets: its writer was killed while writing the header.
MIN_CAPTURE_BYTES = len(section() + interface())


@dataclass
class RecoveryResult:
    """Result of a recovery.

    Attributes:
        published: Paths of the files that were published.
        problems: One line with path and reason for each file that could not be published.
    """

    published: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def recover_partial_captures(path: AnyPath) -> RecoveryResult:
    """Publish the files of a rotation whose recorder was killed.

    Files that another recorder is writing (they are locked) are skipped. Files that end within
    their header are removed, and so are temporary files of indexes that are an hour old. Running it
    again changes nothing.

    Args:
        path: Base name of the rotation, for example `captures/day.pcapng`. Those of the processes
            of a recorder, `captures/day-p1-00001.pcapng`, belong to it.

    Returns:
        What was published, and what could not be.
    """
    result = RecoveryResult()
    for base in paths_of_all(path):
        recover_rotation(base, result)
    return result


def recover_rotation(path: str, result: RecoveryResult) -> None:
    """`recover_partial_captures` for one rotation; adds to `result`."""
    remove_index_leftovers(path)
    for _, part in rotation_files(path):
        if not part.endswith(PART_SUFFIX):
            continue
        try:
            fd = open_locked(part)
        except (BlockingIOError, FileNotFoundError):
            continue  # a recorder writes it, or has published it
        except OSError as problem:
            result.problems.append(f"{part}: cannot be recovered: {problem.strerror}")
            continue
        # From here on it is locked, and the name stands for this file.
        try:
            if os.fstat(fd).st_size < MIN_CAPTURE_BYTES:
                os.unlink(part)
            else:
                recover_locked(part, fd)
                result.published.append(part.removesuffix(PART_SUFFIX))
        except CaptureError as problem:
            result.problems.append(str(problem))
        finally:
            os.close(fd)


def remove_index_leftovers(path: str) -> None:
    """Remove partial indexes of killed writers: temporary files that are an hour old."""
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    shape = re.compile(
        rf"\.{re.escape(stem)}-\d+{re.escape(extension + INDEX_SUFFIX)}"
        rf"\.[0-9a-f]{{8}}{re.escape(PART_SUFFIX)}"
    )
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return  # what writes here reports it
    for entry in entries:
        part = os.path.join(folder, entry)
        with contextlib.suppress(OSError):
            if shape.fullmatch(entry) and time.time() - os.lstat(part).st_mtime > LEFTOVER_SECONDS:
                os.unlink(part)
