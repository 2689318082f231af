"""The names of the captures in a growing folder, and what is new among them.

Captures may stay in the folder for ever. What a look costs must follow what is new, so it does not
look at files that were read and forgotten:

- A folder is listed again only if its modification time has changed. Files that grow do not change
  it; new, renamed and removed ones do.
- A list has names only. Files that are forgotten are never asked for their size or kind;
  those that were modified since are found by `reused_names`.
- Of folders whose captures are all forgotten, such as those of past days, only the modification
  time is kept, and a look asks for that of the next `SETTLED_FOLDERS_PER_LOOK` of them.

Some file systems do not keep modification times of folders. All folders are therefore listed every
`FULL_LOOK_SECONDS`, or less often if that takes long, and at every look once that has found
something.
"""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from polymux.capture.io.discovery import is_capture_name

SETTLED_FOLDERS_PER_LOOK = 64
FULL_LOOK_SECONDS = 60.0
FULL_LOOK_SHARE = 100  # full looks take at most one part in so many of the time
# The clock of a file system is coarse: a file may appear in the same tick in which its folder was
# listed. A modification as recent as this, at the time of the list, proves nothing.
UNCERTAIN_NS = 2_000_000_000


@dataclass(slots=True)
class _Folder:
    """A folder as it was when it was listed; names are those within the folder that is watched."""

    modified_ns: int = -1
    names: set[str] = field(default_factory=set)  # of all entries
    captures: set[str] = field(default_factory=set)  # that were not forgotten
    folders: list[str] = field(default_factory=list)


class FolderListing:
    """Lists the captures in a folder and below it, by name within the folder.

    Links to directories are not followed, and of several names of a file only one counts. From one
    look to the next, names may be added to the forgotten ones, and those that have vanished be left
    out; for any other change make a new object. `clock` gives seconds.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._listed: dict[str, _Folder] = {}  # by name; "" is the folder itself
        self._settled: dict[str, int] = {}  # modification times; the one seen longest ago is first
        self._full_look_due = -math.inf
        self._times_are_kept = True  # modification times of folders have not been wrong
        self._forgotten_by_folder: dict[str, set[str]] | None = None  # during a look
        self.vanished: set[str] = set()
        """Names that were there, or are forgotten, and are not there any more."""

    def look(self, forgotten: Collection[str]) -> list[str]:
        """Return the captures that are not among the `forgotten` ones, sorted."""
        begun = self._clock()
        full = not self._times_are_kept or begun >= self._full_look_due
        self._look_at_folders(forgotten, full)
        self._forgotten_by_folder = None
        if full:
            ended = self._clock()
            self._full_look_due = ended + max(FULL_LOOK_SECONDS, FULL_LOOK_SHARE * (ended - begun))
        self.vanished = {name for name in self.vanished if name in forgotten}
        found: list[str] = []
        for name, folder in list(self._listed.items()):
            folder.captures = {each for each in folder.captures if each not in forgotten}
            found += folder.captures
            if name and not folder.captures and not folder.folders:
                del self._listed[name]
                self._settled[name] = folder.modified_ns
        return list(self._without_doubles(sorted(found)))

    def take_back(self, names: Iterable[str]) -> None:
        """From the next look on, these captures that were forgotten are not."""
        for name in names:
            folder = self._listed.get(os.path.dirname(name))
            if folder is None:
                self._settled.pop(os.path.dirname(name), None)  # it is listed again
            else:
                folder.captures.add(name)

    def has(self, name: str) -> bool:
        """Whether a capture that was not forgotten was there at the last look."""
        folder = self._listed.get(os.path.dirname(name))
        return folder is not None and name in folder.captures

    def all_names(self) -> Iterator[str]:
        """Yield the names of all captures that exist now, forgotten ones and links included."""
        for folder, _, files in os.walk(self._path):
            within = os.path.relpath(folder, self._path)
            for file in filter(is_capture_name, files):
                yield file if within == os.curdir else os.path.join(within, file)

    # Private helpers

    def _look_at_folders(self, forgotten: Collection[str], full: bool) -> None:
        due = set(islice(self._settled, SETTLED_FOLDERS_PER_LOOK))
        waiting, seen = [""], set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            if full or name in due or name not in self._settled:
                self._look_at(name, forgotten, full)
                if name in self._listed:
                    waiting += self._listed[name].folders
        for name in (self._listed.keys() | self._settled.keys()) - seen:
            self._drop(name, forgotten)
        if full:  # also folders that had gone before the first look
            for name in self._by_folder(forgotten).keys() - seen:
                self.vanished |= self._forgotten_in(name, forgotten)

    def _look_at(self, name: str, forgotten: Collection[str], full: bool) -> None:
        """List a folder again if it may have changed."""
        path = os.path.join(self._path, name)
        known = self._listed.get(name)
        before = self._settled.get(name, -1) if known is None else known.modified_ns
        looked_at = time.time_ns()
        try:
            modified_ns = os.stat(path).st_mtime_ns
            changed = modified_ns != before
            entries = os.listdir(path) if changed or full else []
        except (FileNotFoundError, NotADirectoryError):
            self._drop(name, forgotten)
            return
        except OSError:  # it can be read again one day, and its captures be known then
            return
        self._settled.pop(name, None)
        if not changed and not full:
            if known is None:
                self._settled[name] = before  # now the last to be looked at again
            return
        prefix = f"{name}{os.sep}" if name else ""
        names = {prefix + entry for entry in entries} if prefix else set(entries)
        if known is None:
            known = self._listed[name] = _Folder(names=self._forgotten_in(name, forgotten))
        old = known.names
        new = names - old
        self.vanished -= names
        if len(names) - len(new) != len(old):
            self.vanished |= old - names
            known.captures &= names
            known.folders = [each for each in known.folders if each in names]
        if not changed and names != old:
            self._times_are_kept = False
        known.names = names
        for each in new:
            self._add(known, each)
        # -1: list it again at the next look.
        known.modified_ns = modified_ns if modified_ns < looked_at - UNCERTAIN_NS else -1

    def _add(self, folder: _Folder, name: str) -> None:
        try:
            mode = os.lstat(os.path.join(self._path, name)).st_mode
        except OSError:  # removed meanwhile
            folder.names.discard(name)
            return
        if stat.S_ISDIR(mode):
            folder.folders.append(name)
        elif is_capture_name(os.path.basename(name)):
            folder.captures.add(name)

    def _drop(self, name: str, forgotten: Collection[str]) -> None:
        """Forget a folder that is not there any more, with its captures."""
        folder = self._listed.pop(name, None)
        settled = self._settled.pop(name, None)
        if folder is not None:
            self.vanished |= folder.names
        elif settled is not None:
            self.vanished |= self._forgotten_in(name, forgotten)

    def _forgotten_in(self, name: str, forgotten: Collection[str]) -> set[str]:
        return self._by_folder(forgotten).get(name, set())

    def _by_folder(self, forgotten: Collection[str]) -> dict[str, set[str]]:
        if self._forgotten_by_folder is None:
            self._forgotten_by_folder = {}
            for name in forgotten:
                self._forgotten_by_folder.setdefault(os.path.dirname(name), set()).add(name)
        return self._forgotten_by_folder

    def _without_doubles(self, names: list[str]) -> Iterator[str]:
        """Leave out links to captures that are listed themselves, or by another link."""
        seen: set[str] = set()
        for name in names:
            path = os.path.join(self._path, name)
            if os.path.islink(path):
                root = os.path.join(os.path.realpath(self._path), "")
                real = os.path.realpath(path)
                listed = real.startswith(root) and is_capture_name(os.path.basename(real))
                if listed or real in seen:
                    continue
                seen.add(real)
            yield name
