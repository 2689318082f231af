"""Names of the captures that several processes of one recorder write.

Each process has a rotation of its own, `NAME-p1-00001.EXT`, `NAME-p2-00001.EXT` and so on, so that
readers can follow each while it grows.
"""

from __future__ import annotations

import os
import re

from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.paths import AnyPath, one_path
from polymux.live.one_of import OneOf


def path_of_process(path: AnyPath, one_of: OneOf) -> str:
    """Return the name of a process's rotation, given that of the recording; the only process has
    the name itself."""
    path = one_path(path)
    if one_of.count == 1:
        return path
    stem, extension = os.path.splitext(path)
    return f"{stem}-p{one_of.index + 1}{extension}"


def paths_of_all(path: AnyPath) -> list[str]:
    """Return the name of a recording, and those of the rotations that processes have written.

    Only rotations that have files are returned.
    """
    path = one_path(path)
    folder, name = os.path.split(path)
    stem, extension = os.path.splitext(name)
    shape = re.compile(
        rf"({re.escape(stem)}-p\d+)-\d+{re.escape(extension)}(?:{re.escape(PART_SUFFIX)})?"
    )
    try:
        found = [shape.fullmatch(entry) for entry in os.listdir(folder or ".")]
    except OSError:
        return [path]
    stems = sorted({match[1] for match in found if match})
    return [path, *(os.path.join(folder, each + extension) for each in stems)]
