"""The per-user folder for what can be made again, and a way to make each thing in it once.

Nothing here is needed to be right, only to be fast: a folder that is missing, full, read-only or
somebody else's means going without, never an error.
"""

import fcntl
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def cache_folder() -> Path:
    """The folder: `POLYMUX_CACHE`, else `polymux` in the place the platform keeps caches."""
    chosen = os.environ.get("POLYMUX_CACHE")
    if chosen:
        return Path(chosen).absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "polymux"
    standard = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative path there is to be ignored.
    place = Path(standard) if os.path.isabs(standard) else Path.home() / ".cache"
    return place / "polymux"


def usable_folder(folder: Path) -> bool:
    """Make `folder` if need be; say whether it is ours and may be written.

    Programs are started from it, so a folder that another user owns is refused.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        return False


def make_once(target: Path, make: Callable[[Path], None]) -> bool:
    """Have `make` write the file `target`, unless it exists; say whether it exists now.

    `make` is given another name in the same folder, and the file appears under its own name only
    when `make` has returned, so nobody ever sees half of it. Of several processes that want the
    same file one makes it, and the others are told False at once. What `make` raises is raised
    here, and leaves nothing behind; a folder that cannot be written gives False.
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
        if target.exists():  # somebody was quicker
            return True
        for stale in target.parent.glob(f"{target.name}.*.part"):
            # We hold the lock, so whoever began these is gone.
            with suppress(OSError):
                stale.unlink()
        part = target.with_name(f"{target.name}.{os.getpid()}.part")
        try:
            make(part)
            os.replace(part, target)
        finally:
            with suppress(OSError):
                part.unlink()
        return True
    finally:
        os.close(lock)
