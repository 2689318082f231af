"""From what a caller names (files, directories, globs, URLs) to the captures there are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polymux.capture import find_captures
from polymux.capture.io.paths import AnyPaths, each_path, expand, is_glob
from polymux.capture.io.remote import filesystem, is_url, local_path
from polymux.capture.io.sources import STDIN
from polymux.core.errors import CaptureError, PolymuxError

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

_NOT_CAPTURES = (".idx", ".part")


@dataclass(frozen=True, slots=True)
class CaptureFile:
    """A capture file and its size in bytes; 0 where it is not known."""

    path: str
    size: int = 0


def find_inputs(paths: AnyPaths) -> list[CaptureFile]:
    """Every capture the paths name, each once; a clear error if one names nothing.

    A path is a file, a directory (all captures below it), a glob (`**` crosses directories) or a
    URL of a file or directory that `pyarrow.fs` can open. What lies in a directory and is no
    capture is found out when it is read, and becomes a row of `captures`.
    """
    found: dict[str, CaptureFile] = {}
    given = each_path(paths)
    for path in given:
        for capture in _below(local_path(path)):
            # Workers may stand in another folder than the driver.
            whole = capture.path if is_url(capture.path) else os.path.abspath(capture.path)
            found.setdefault(
                whole if is_url(whole) else os.path.realpath(whole),
                CaptureFile(whole, capture.size),
            )
    if not found:
        named = ", ".join(given) or "nothing"
        raise CaptureError("no capture there; name files, directories, globs or URLs", named)
    return list(found.values())


def _below(path: str) -> Iterator[CaptureFile]:
    if path == STDIN:
        raise PolymuxError("-: workers cannot read standard input; name a file")
    if is_url(path):
        yield from _remote(path)
        return
    if not os.path.exists(path):
        matches = expand(path) if is_glob(path) else []
        if not matches:
            raise CaptureError("no such file or directory", path)
        for match in matches:
            yield from _below(match)
        return
    if not os.path.isdir(path) and not os.path.isfile(path):
        raise CaptureError("is no file; record a pipe to a file first", path)
    for file in find_captures([path]):
        yield CaptureFile(file, os.path.getsize(file))


def _remote(url: str) -> Iterator[CaptureFile]:
    from pyarrow.fs import FileSelector, FileType

    system, path = filesystem(url)
    try:
        info = system.get_file_info(path)
        if info.type == FileType.NotFound:
            raise CaptureError("no such file or directory", url)
        if info.type != FileType.Directory:
            yield CaptureFile(url, info.size or 0)
            return
        below: list[FileInfo] = system.get_file_info(FileSelector(path, recursive=True))
    except (OSError, ValueError, RuntimeError) as problem:
        reason = str(problem).strip().splitlines()[0]
        raise CaptureError(f"cannot be listed: {reason}", url) from None
    for entry in sorted(below, key=lambda each: str(each.path)):
        hidden = entry.base_name.startswith(".") or entry.base_name.endswith(_NOT_CAPTURES)
        if entry.type == FileType.File and not hidden:
            yield CaptureFile(_child(url, path, entry.path), entry.size or 0)


def _child(url: str, folder: str, path: str) -> str:
    """The URL of a file below the folder that `url` names; a query stays behind the path."""
    place, mark, query = url.partition("?")
    rest = path[len(folder.rstrip("/")) :].lstrip("/")
    return f"{place.rstrip('/')}/{rest}{mark}{query}"
