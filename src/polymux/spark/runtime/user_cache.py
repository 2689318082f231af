"""The per-user cache folder, and creating a file in it exactly once across processes.

The cache makes sessions faster and is never required: if the folder is missing, full, read-only or
owned by another user, callers go without it, and nothing raises.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

OTHERS_WRITE_MODE = stat.S_IWGRP | stat.S_IWOTH


def cache_folder() -> Path:
    """Return `POLYMUX_CACHE`, else the folder `polymux` in the platform's cache directory."""
    chosen = os.environ.get("POLYMUX_CACHE")
    if chosen:
        return Path(chosen).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "polymux"
    standard = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: relative paths must be ignored.
    base = Path(standard) if os.path.isabs(standard) else Path.home() / ".cache"
    return base / "polymux"


def usable_folder(folder: Path) -> bool:
    """Create `folder` if needed. Return whether this user, and no other, can write to it.

    Programs are started from the cache, so a folder that another user owns or can write to is
    rejected.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return is_private(folder.stat()) and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def usable_file(file: Path) -> bool:
    """Return whether no user but this one can have written `file`.

    That is a regular file, not a link, that this user owns and no other can write to, in such a
    folder.
    """
    try:
        status = file.lstat()
        return (
            stat.S_ISREG(status.st_mode) and is_private(status) and is_private(file.parent.stat())
        )
    except OSError:
        return False


def is_private(status: os.stat_result) -> bool:
    """Return whether this user owns a file or folder and no other user can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE_MODE


def make_once(target: Path, make: Callable[[Path], None]) -> bool:
    """Create the file `target` by calling `make`, unless it exists. Return whether it exists now.

    `make` receives a temporary name in the same folder, and the file is renamed to `target` when
    `make` has returned, so that a partial file is never visible. If several processes call this at
    the same time, one creates the file and the others return False at once. Returns False if the
    folder is not writable. An exception of `make` is raised, and leaves no file behind.
    """
    if target.exists():
        return True
    if not usable_folder(target.parent):
        return False
    try:
        lock = os.open(target.with_name(target.name + ".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError:
        return False
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # taken, or a file system without locks
            return target.exists()
        if target.exists():  # created since the check above
            return True
        for stale in target.parent.glob(f"{target.name}.*.part"):
            # This process holds the lock, so the one that created these has ended.
            with suppress(OSError):
                stale.unlink()
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            make(part)
            part.chmod(0o600)  # whatever the umask is: `usable_file` rejects it otherwise
            os.replace(part, target)
        finally:
            with suppress(OSError):
                part.unlink()
        return True
    finally:
        os.close(lock)
