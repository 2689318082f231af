"""How inputs are found: from the files, directories, globs and URLs a caller names to captures.

`find_captures` looks at local paths; `find_inputs` also lists URLs, gives sizes and raises when a
path names nothing. A directory or file that cannot be looked at is an error in both.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from polymux.capture.io.atomic_write import PART_SUFFIX
from polymux.capture.io.listing import cannot_be_listed, expand, files_below, mode_of
from polymux.capture.io.paths import (
    INDEX_SUFFIX,
    AnyPaths,
    each_path,
    is_glob,
    is_url,
    local_path,
)
from polymux.capture.io.remote import filesystem
from polymux.capture.io.sources import STDIN
from polymux.core.errors import CaptureError, CaptureUnavailable, PolymuxError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_PLAIN_IN_URLS: Final = "/:@!$&'()*+,;=~"  # beside letters, digits, and "_.-"


def find_captures(paths: AnyPaths) -> list[str]:
    """List the files that `paths` name; a directory means every capture file below it.

    Links to directories are not followed, and a file reached twice through links is listed once.
    Index files, recordings still being written (`.part`), hidden files and anything that is not a
    regular file (reading a pipe would block) are left out of directories.

    Args:
        paths: One path or several. A path with wildcards (`*`, `?`, `[`, and `**` across
            directories) stands for what it matches. One that matches nothing is kept, so that
            opening it reports the error.

    Returns:
        Paths in the order given, sorted within a directory.

    Raises:
        CaptureUnavailable: A directory cannot be listed, or a file in it cannot be looked at.
    """
    found: dict[str, str] = {}
    matches = [(path, given) for given in each_path(paths) for path in expand(given) or [given]]
    for path, given in matches:
        # Opening a path that was named itself reports the error, if there is one.
        is_folder = os.path.isdir(path) if path == given else stat.S_ISDIR(mode_of(path))
        if path == STDIN or not is_folder:
            found.setdefault(path if path == STDIN else os.path.realpath(path), path)
            continue
        for file in files_below(path, is_capture_name):
            found.setdefault(os.path.realpath(file), file)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A capture file, its size in bytes and its modification time in nanoseconds since 1970; 0 if
    that is not known."""

    path: str
    size: int = 0
    modified_ns: int = 0


def find_inputs(paths: AnyPaths) -> list[CaptureFile]:
    """List the captures that `paths` name, each once, with absolute paths and sizes.

    A file in a directory that turns out not to be a capture is reported when it is read, as a row
    of the `captures` table.

    Args:
        paths: One path or several: a file, a directory (all captures below it), a glob (`**`
            crosses directories), or a URL of a file or directory that `pyarrow.fs` can open.

    Raises:
        CaptureError: A path names nothing, is neither a file nor a directory, or cannot be listed.
            Of a directory or file that cannot be looked at, and of a URL that cannot be listed, a
            CaptureUnavailable.
        PolymuxError: A path is standard input, which workers cannot read.
        MissingExtra: A URL is given and pyarrow is not installed.
    """
    found: dict[str, CaptureFile] = {}
    given = each_path(paths)
    for path in given:
        for capture in _captures_below(local_path(path)):
            if is_url(capture.path):
                found.setdefault(capture.path, capture)
            else:
                # Absolute: a worker's current directory may differ from the driver's.
                file = replace(capture, path=os.path.abspath(capture.path))
                found.setdefault(os.path.realpath(file.path), file)
    if not found:
        named = ", ".join(given) or "nothing"
        raise CaptureError("no capture there; name files, directories, globs or URLs", named)
    return list(found.values())


def _captures_below(path: str) -> Iterator[CaptureFile]:
    if path == STDIN:
        raise PolymuxError("-: workers cannot read standard input; name a file")
    if is_url(path):
        yield from _remote_captures(path)
        return
    mode = mode_of(path)
    if not mode:
        matches = expand(path) if is_glob(path) else []
        if not matches:
            raise CaptureError("no such file or directory", path)
        for match in matches:
            yield from _captures_below(match)
        return
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise CaptureError("is not a regular file; record a pipe to a file first", path)
    for file in find_captures([path]):
        try:
            found = os.stat(file)
        except FileNotFoundError:  # removed meanwhile
            continue
        except OSError as problem:
            raise cannot_be_listed(file, problem) from None
        yield CaptureFile(file, found.st_size, found.st_mtime_ns)


def _remote_captures(url: str) -> Iterator[CaptureFile]:
    from pyarrow.fs import FileSelector, FileType

    system, path = filesystem(url)
    try:
        info = system.get_file_info(path)
        if info.type == FileType.NotFound:
            raise CaptureError("no such file or directory", url)
        if info.type != FileType.Directory:
            yield CaptureFile(url, info.size or 0, info.mtime_ns or 0)
            return
        below: list[FileInfo] = system.get_file_info(FileSelector(path, recursive=True))
    except (OSError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise CaptureUnavailable(f"cannot be listed: {reason}", url) from None
    for entry in sorted(below, key=lambda info: str(info.path)):
        if entry.type == FileType.File and is_capture_name(entry.base_name):
            child = _child_url(url, path, entry.path)
            yield CaptureFile(child, entry.size or 0, entry.mtime_ns or 0)


def is_capture_name(name: str) -> bool:
    """Whether a file of this name in a directory may be a finished capture."""
    return not name.startswith(".") and not name.endswith((INDEX_SUFFIX, PART_SUFFIX))


def _child_url(url: str, folder: str, path: str) -> str:
    """The URL of the file `path` below `folder`, which `url` names; keeps the query at the end.

    What would mean something else in a URL is escaped: pyarrow takes `a%41` for `aA`.
    """
    base, mark, query = url.partition("?")
    rest = path[len(folder.rstrip("/")) :].lstrip("/")
    return f"{base.rstrip('/')}/{quote(rest, safe=_PLAIN_IN_URLS)}{mark}{query}"
