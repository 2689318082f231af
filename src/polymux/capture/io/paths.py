"""Path arguments (one or several, `str` or `os.PathLike`, with globs; URLs), and private files.

Files that hold payload are private: only their owner may read them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import IO
from urllib.parse import unquote, urlsplit

from polymux.core.errors import CaptureError

AnyPath = str | os.PathLike[str]
AnyPaths = AnyPath | Iterable[AnyPath]

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
INDEX_SUFFIX = ".idx"  # of the split index beside a capture

WILDCARDS = frozenset("*?[")


def one_path(path: AnyPath) -> str:
    """The path as `str`. Raises TypeError unless it is a `str` or `os.PathLike[str]`."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"{path!r}: write the path as str or os.PathLike[str], not as bytes")
    return text


def each_path(paths: AnyPaths) -> list[str]:
    """The paths as `str`. A `str` or an `os.PathLike` is one path, not a sequence of characters."""
    if isinstance(paths, str | bytes | os.PathLike):
        return [one_path(paths)]
    return [one_path(path) for path in paths]


def is_glob(path: str) -> bool:
    """Whether `path` has wildcards and is not the literal name of a file."""
    return bool(WILDCARDS & set(path)) and not os.path.lexists(path)


def is_url(path: str) -> bool:
    """Whether `path` is read through `pyarrow.fs`. Resolve `file://` with `local_path` before."""
    return "://" in path


def local_path(path: str) -> str:
    """The local path of a `file://` URL, or of `file:/path`, as Hadoop writes it; any other path or
    URL unchanged.

    Raises:
        CaptureError: The URL names another machine.
    """
    if not path.startswith("file:/"):
        return path
    parts = urlsplit(path)
    if parts.netloc not in ("", "localhost"):
        raise CaptureError("names another machine; write file:///path", path)
    return unquote(parts.path)


def open_private(path: AnyPath, *, append: bool = False) -> IO[bytes]:
    """Open a file for writing; a new file gets mode 0600. A symbolic link is not followed.

    Without `append` the file must not exist (FileExistsError), so that no file with other
    permissions is reused.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_APPEND if append else os.O_EXCL)
    return os.fdopen(os.open(path, flags, PRIVATE_FILE), "wb")


def make_private_folders(path: AnyPath) -> None:
    """Create a directory and its missing parents, with mode 0700; those that exist are kept.

    Raises:
        OSError: One cannot be created, or is not a directory.
    """
    path = os.path.abspath(one_path(path))
    if not os.path.isdir(path):
        make_private_folders(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):  # created meanwhile; or no directory, see below
            os.mkdir(path, PRIVATE_FOLDER)
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
