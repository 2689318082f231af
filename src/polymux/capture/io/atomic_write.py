"""Writing a file so that no reader ever sees part of it: `NAME.part` first, then its name.

A file whose content is complete in memory goes through `write_atomically`. Recordings grow for
hours, and several processes may record into one directory and recover what others have left:

- a recording is created, or opened to be recovered, with a lock (`create_locked`, `open_locked`),
  and the lock counts only if the name still stands for that file;
- it gets its final name by `publish`, which replaces nothing, before the lock is released.

Other files are renamed by their writers: the Parquet writers of `analysis` and `spark.streaming`
have pyarrow open and write the file, `spark.runtime` writes executables.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import sys

from polymux.capture.io.paths import AnyPath, one_path

PART_SUFFIX = ".part"
DEFAULT_FILE_MODE = 0o666  # less the umask, as `open` has it
# Errors of a file system that has no hard links.
_NO_HARD_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))
_AT_FDCWD = -100  # Linux
_RENAME_NOREPLACE = 1  # flag of renameat2 on Linux
_RENAME_EXCL = 4  # flag of renamex_np on macOS


def write_atomically(
    path: AnyPath, data: bytes, *, sync: bool = True, mode: int = DEFAULT_FILE_MODE
) -> None:
    """Replace the content of `path` in one step: readers see the old file or the new one.

    Several processes may do so at once; the last one wins. The temporary file has a name of its
    own, `.NAME.RANDOM.part`, which listings of captures and tables leave out. The directory is not
    synced, so after a power loss the old file may be back.

    Args:
        path: The file to write.
        data: Its whole content.
        sync: Sync the content to the disk before it gets its name.
        mode: Permissions of the file, less the umask.

    Raises:
        OSError: The file could not be written. The temporary file has been removed.
    """
    path = one_path(path)
    folder, name = os.path.split(path)
    part = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{PART_SUFFIX}")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
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


def create_locked(path: str, mode: int) -> int:
    """Create a file that no other process recovers while it is open. Returns its descriptor.

    Between its creation and its lock another process may take it for one that was left behind
    and remove it; it is then created again.

    Raises:
        FileExistsError: The name is taken, also by a link.
        OSError: The file cannot be created or locked.
    """
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # a recovery holds the lock of an empty file briefly
            if names_file(path, fd):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def open_locked(path: str) -> int:
    """Open and lock a file that its writer has left behind. Returns its descriptor.

    Raises:
        BlockingIOError: Another process writes or recovers it.
        FileNotFoundError: There is no such file, or not any more.
        OSError: It cannot be opened; ELOOP if it is a symbolic link.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not names_file(path, fd):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def names_file(path: str, fd: int) -> bool:
    """Whether `path` is a name of the open file `fd`."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def publish(part: str, name: str) -> None:
    """Give a synced file its final name, which must not exist, and sync the directory.

    For a moment the file has both names, and a process that is killed then leaves both; the caller
    must hold its lock. Where there are no hard links it is renamed, with the same promise.

    Raises:
        FileExistsError: The name exists; nothing was changed.
        OSError: The file could not get the name, or its directory not be synced.
    """
    try:
        os.link(part, name, follow_symlinks=False)
    except OSError as failure:
        if failure.errno not in _NO_HARD_LINKS:
            raise
        rename_exclusively(part, name)
        sync_directory(name)
        return
    sync_directory(name)  # before the other name goes: a power loss must leave one of them
    os.unlink(part)


def rename_exclusively(part: str, name: str) -> None:
    """Rename a file by one system call that fails if the new name exists (Linux and macOS).

    Raises:
        FileExistsError: The name exists.
        OSError: The system or the file system has no such call.
    """
    library = ctypes.CDLL(None, use_errno=True)
    old, new = os.fsencode(part), os.fsencode(name)
    try:
        if sys.platform == "darwin":
            done = library.renamex_np(old, new, _RENAME_EXCL)
        else:
            done = library.renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_NOREPLACE)
    except AttributeError:
        raise OSError(
            errno.ENOTSUP, "this file system has no hard links, nor a rename that replaces nothing"
        ) from None
    if done != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def sync_directory(path: str) -> None:
    """Sync the directory that holds `path`, which makes the names in it durable."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
