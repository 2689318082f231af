"""Listing directories and globs so that what cannot be looked at is an error, never left out.

`os.walk` and `glob` skip a directory that they cannot list, and `os.path.isfile` denies a file that
it cannot look at. An analysis would then replace good tables by some without these captures. Here
only what is certainly not there is left out: a name without a file, or a link that leads nowhere.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat
from collections.abc import Callable, Iterator, Sequence

from polymux.capture.io.paths import WILDCARDS, is_glob
from polymux.core.errors import CaptureUnavailable

_ANY_DEPTH = "**"
# The name leads to no file, on any machine. Other errors say nothing about what is there.
_NOT_THERE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP))


def cannot_be_listed(path: str, problem: OSError) -> CaptureUnavailable:
    """The error for a directory that cannot be listed, or a file that cannot be looked at."""
    text = f"cannot be looked at: {problem.strerror}; captures there would be missing"
    if problem.errno in (errno.EACCES, errno.EPERM):
        text += ": make it readable, or leave it out by naming the files or directories beside it"
    return CaptureUnavailable(text, path)


def mode_of(path: str) -> int:
    """The mode of what `path` leads to, as `os.stat` gives it; 0 if there is nothing.

    Raises:
        CaptureUnavailable: It cannot be looked at.
    """
    try:
        return os.stat(path).st_mode
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return 0
        raise cannot_be_listed(path, problem) from None
    except ValueError:  # a NUL in it
        return 0


def files_below(folder: str, is_wanted: Callable[[str], bool]) -> Iterator[str]:
    """Yield the regular files of wanted names below a directory, sorted within each.

    Links to files count. Links to directories are not followed. A directory that is removed
    meanwhile is empty.

    Raises:
        CaptureUnavailable: A directory cannot be listed, or a file cannot be looked at.
    """

    def refuse(problem: OSError) -> None:
        if problem.errno not in _NOT_THERE:
            raise cannot_be_listed(problem.filename or folder, problem) from None

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        for name in sorted(filter(is_wanted, names)):
            file = os.path.join(parent, name)
            if stat.S_ISREG(mode_of(file)):
                yield file


def expand(path: str) -> list[str]:
    """The files and directories that a glob matches, sorted; `**` crosses directories.

    A path without wildcards, or one that exists literally, is returned unchanged. The list is
    empty if the glob matches nothing. Wildcards do not match the dot of a hidden file.

    Raises:
        CaptureUnavailable: A directory in which to look for matches cannot be listed.
    """
    if not is_glob(path):
        return [path]
    return sorted(set(_matches("", path.split(os.sep))))


def _matches(base: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield what matches the `parts` of a glob below `base`, which ends with a separator or is
    empty; it may not exist."""
    part, rest = parts[0], parts[1:]
    if part == _ANY_DEPTH:
        for folder in _folders_below(base):
            if rest:
                yield from _matches(folder, rest)
                continue
            if folder:
                yield folder
            yield from (folder + entry.name for entry in _entries(folder) if not _is_hidden(entry))
    elif WILDCARDS & set(part):
        for entry in _entries(base):
            if fnmatch.fnmatchcase(entry.name, part) and (part[0] == "." or not _is_hidden(entry)):
                yield from _reached(base + entry.name, rest)
    else:
        yield from _reached(base + part, rest)


def _reached(path: str, rest: Sequence[str]) -> Iterator[str]:
    """Yield `path` itself if it exists and no parts are left, otherwise what matches below it."""
    if rest and any(rest):
        yield from _matches(path + os.sep, rest)
    elif rest:  # only separators
        if stat.S_ISDIR(mode_of(path)):
            yield path + os.sep
    else:
        try:
            os.lstat(path)
        except OSError as problem:
            if problem.errno not in _NOT_THERE:
                raise cannot_be_listed(path, problem) from None
        else:
            yield path


def _folders_below(base: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield `base` and the directories below it, each with a separator at its end; links to
    directories are followed, but not to one that they are in."""
    real = os.path.realpath(base or os.curdir)
    if real in above:
        return
    yield base
    for entry in _entries(base):
        path = base + entry.name
        try:
            is_folder = not _is_hidden(entry) and entry.is_dir()
        except OSError as problem:
            if problem.errno not in _NOT_THERE:
                raise cannot_be_listed(path, problem) from None
            continue
        if is_folder:
            yield from _folders_below(path + os.sep, (*above, real))


def _entries(base: str) -> list[os.DirEntry[str]]:
    """The entries of a directory, sorted by name; none if it is no directory."""
    try:
        with os.scandir(base or os.curdir) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as problem:
        if problem.errno in _NOT_THERE:
            return []
        raise cannot_be_listed(base or os.curdir, problem) from None


def _is_hidden(entry: os.DirEntry[str]) -> bool:
    return entry.name.startswith(".")
