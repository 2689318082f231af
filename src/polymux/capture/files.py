"""The capture files of a run: found, opened when needed, closed again."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from polymux.capture.limits import CaptureLimits
from polymux.capture.sources import STDIN, Source, open_source

OPEN_FILES = 64
_NOT_CAPTURES = (".idx", ".part")


def find_captures(paths: Iterable[str]) -> list[str]:
    """Files named, and for directories every file below, each once, sorted within a directory.

    Links to directories are not followed and a file met twice through links counts once. Index
    files, recordings that are still being written (`.part`) and what is no file at all (a pipe
    would have to be waited for) are left out of directories.
    """
    found: dict[str, str] = {}
    for path in paths:
        if path == STDIN or not os.path.isdir(path):
            found.setdefault(path if path == STDIN else os.path.realpath(path), path)
            continue
        for folder, folders, names in os.walk(path):
            folders.sort()
            for name in sorted(names):
                file = os.path.join(folder, name)
                if name.endswith(_NOT_CAPTURES) or name.startswith("."):
                    continue
                if os.path.isfile(file):
                    found.setdefault(os.path.realpath(file), file)
    return list(found.values())


class Files:
    """Opens captures on demand and keeps a bounded number of them open.

    Pipes and stdin can be read once only, so they stay open until `close`.
    """

    def __init__(self, limits: CaptureLimits | None = None) -> None:
        self.limits = limits or CaptureLimits()
        self._open: OrderedDict[str, Source] = OrderedDict()
        self._kept: dict[str, Source] = {}

    def source(self, path: str) -> Source:
        """The opened file; raises `CaptureError`."""
        if path in self._kept:
            return self._kept[path]
        source = self._open.pop(path, None)
        if source is None:
            source = open_source(path, self.limits)
            if path == STDIN or not os.path.isfile(path):
                self._kept[path] = source
                return source
        self._open[path] = source
        while len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return source

    def reader(self, path: str) -> Callable[[int, int], bytes]:
        """Reads exactly `size` octets at `offset`, whether or not the file was closed since."""

        def read(offset: int, size: int) -> bytes:
            return self.source(path).read_at(offset, size)

        return read

    def readers(self, paths: Sequence[str]) -> list[Callable[[int, int], bytes]]:
        return [self.reader(path) for path in paths]

    def close(self) -> None:
        for source in [*self._open.values(), *self._kept.values()]:
            source.close()
        self._open.clear()
        self._kept.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
