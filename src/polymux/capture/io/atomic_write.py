"""Writing a file so that no reader ever sees part of it: `NAME.part` first, then a rename.

Modules that write a file piece by piece (`PcapngWriter`, the Parquet tables) hold their own
descriptor and use `publish`, or only the suffix; a file that is complete in memory goes through
`write_atomically`.
"""

from __future__ import annotations

import contextlib
import os

from polymux.capture.io.paths import AnyPath, one_path

PART_SUFFIX = ".part"
DEFAULT_FILE_MODE = 0o666  # less the umask, as `open` has it


def write_atomically(
    path: AnyPath,
    data: bytes,
    *,
    hidden: bool = False,
    sync: bool = True,
    mode: int = DEFAULT_FILE_MODE,
) -> None:
    """Replace the content of `path` in one step: readers see the old file or the new one.

    One writer at a time: what an interrupted writer left in the temporary file is replaced. The
    directory is not synced, so after a power loss the old file may be back.

    Args:
        path: The file to write.
        data: Its whole content.
        hidden: Call the temporary file `.NAME.part` instead of `NAME.part`, so that listings of
            the directory leave it out.
        sync: Sync the content to the disk before it gets its name.
        mode: Permissions of the file, less the umask.

    Raises:
        OSError: The file could not be written. The temporary file has been removed.
    """
    path = one_path(path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f"{'.' if hidden else ''}{name}{PART_SUFFIX}")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)  # it may have other permissions
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(fd)
        os.replace(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


def publish(part: str, name: str) -> None:
    """Rename a synced file to its final name and sync the directory, so that the name is durable.

    Raises:
        OSError: The file could not be renamed, or its directory not be synced.
    """
    os.replace(part, name)
    sync_directory(name)


def sync_directory(path: str) -> None:
    """Sync the directory that holds `path`, which makes the names in it durable."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
