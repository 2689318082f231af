"""The capture files of a run: found, opened when needed, closed again."""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Sequence

from polymux.capture.io.mmap_gather import RESIDENT, Stage
from polymux.capture.io.paths import AnyPath, AnyPaths, each_path, expand, one_path
from polymux.capture.io.read_runs import Run, vectors
from polymux.capture.io.sources import STDIN, PlainSource, Source, open_source
from polymux.capture.limits import CaptureLimits
from polymux.capture.tcp.events import Events

OPEN_FILES = 64
_NOT_CAPTURES = (".idx", ".part")


def find_captures(paths: AnyPaths) -> list[str]:
    """Files named, and for directories every file below, each once, sorted within a directory.

    `paths` is one path or several. A path with wildcards (`*`, `?`, `[`, `**` across directories)
    means what it matches; one that matches nothing is kept, so that opening it says so.

    Links to directories are not followed and a file met twice through links counts once. Index
    files, recordings that are still being written (`.part`) and what is no file at all (a pipe
    would have to be waited for) are left out of directories.
    """
    found: dict[str, str] = {}
    matches = [match for each in each_path(paths) for match in expand(each) or [each]]
    for path in matches:
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
        self._last: Source | None = None  # the one of `_open` that was asked for last
        self._stage: Stage | None = None
        self._resident = 0  # blocks of mapped files that are in use, at most

    def source(self, path: AnyPath) -> Source:
        """The opened file; raises `CaptureError`."""
        path = one_path(path)
        if self._last is not None and self._last.path == path:
            return self._last
        if path in self._kept:
            return self._kept[path]
        source = self._open.pop(path, None)
        if source is None:
            source = open_source(path, self.limits)
            if path == STDIN or not os.path.isfile(path):
                self._kept[path] = source
                return source
        self._open[path] = self._last = source
        while len(self._open) > OPEN_FILES:
            self._open.popitem(last=False)[1].close()
        return source

    def reader(self, path: AnyPath) -> FileReader:
        """Reads the file's octets, whether or not it was closed since."""
        return FileReader(self, one_path(path))

    def readers(self, paths: Sequence[AnyPath]) -> list[FileReader]:
        return [self.reader(path) for path in paths]

    def stage(self) -> Stage | None:
        """Where runs of pieces are joined; None where that cannot be done."""
        if self._stage is None or self._stage.owner != os.getpid():
            self._stage = None
            with contextlib.suppress(OSError):
                self._stage = Stage()
        return self._stage

    def bound_resident(self, more: int) -> None:
        """So many more blocks of mapped files are in use: keep them all within bounds."""
        self._resident += more
        if self._resident > RESIDENT:
            self._resident = 0
            for source in self._every():
                if isinstance(source, PlainSource):
                    source.forget()

    def _every(self) -> list[Source]:
        return [*self._open.values(), *self._kept.values()]

    def close(self) -> None:
        if self._stage is not None:
            self._stage.close()
            self._stage = None
        for source in self._every():
            source.close()
        self._last = None
        self._open.clear()
        self._kept.clear()

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FileReader:
    """One file of `Files`, for payload: call it for exactly `size` octets at `offset`."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def __call__(self, offset: int, size: int) -> bytes:
        return self._files.source(self._path).read_at(offset, size)

    def join(self, events: Events, run: Run) -> bytes | None:
        """The octets of a run by one call; None if they must be read piece by piece.

        That is so for compressed files too, and where something is wrong with the file: then
        reading it says what.
        """
        source = self._files.source(self._path)
        if not isinstance(source, PlainSource) or run.end > source.size:
            return None
        mapping = source.mapping()
        stage = self._files.stage()
        if mapping is None or stage is None:
            return None
        before = mapping.touched.count
        given = vectors(events, run, mapping.address, mapping.touched)
        data = stage.join(given, run.pieces, run.octets)
        if mapping.touched.count > before:
            self._files.bound_resident(mapping.touched.count - before)
        # A page that was cut short still reads as zeros up to its end.
        return data if source.still_holds(run.end) else None
