"""Names of forgotten captures that stand for other files now.

`tcpdump -W 24 -G 3600` writes a ring of files: it truncates the oldest and uses its name again. The
folder does not change by that, so the files themselves have to be asked for their modification
time. A look asks the next `NAMES_PER_LOOK` of them, and from time to time all.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from polymux.spark.streaming.folder_listing import FULL_LOOK_SECONDS, FULL_LOOK_SHARE
from polymux.spark.streaming.offset import NameRanges

NAMES_PER_LOOK = 64


class ReusedNames:
    """Looks for files below `path` that were modified after a file of their name was forgotten."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._round: Iterator[str] = iter(())
        self._full_look_due = -math.inf
        self.found: set[str] = set()
        """Names among the forgotten ones that stand for another file."""

    def look(self, forgotten: NameRanges) -> set[str]:
        """Look at some of the forgotten files. Return the names found since the last look."""
        self.found = {name for name in self.found if name in forgotten}
        begun = self._clock()
        if begun >= self._full_look_due:
            new = self._look_at(forgotten, forgotten)
            ended = self._clock()
            self._full_look_due = ended + max(FULL_LOOK_SECONDS, FULL_LOOK_SHARE * (ended - begun))
        else:
            names = list(islice(self._round, NAMES_PER_LOOK))
            if len(names) < NAMES_PER_LOOK:  # the next round begins
                self._round = iter(forgotten)
                names += islice(self._round, NAMES_PER_LOOK - len(names))
            new = self._look_at(names, forgotten)
        new -= self.found
        self.found |= new
        return new

    def _look_at(self, names: Iterable[str], forgotten: NameRanges) -> set[str]:
        new = set()
        for name in names:
            try:
                modified_ns = os.stat(os.path.join(self._path, name)).st_mtime_ns
            except OSError:  # it is not there any more
                continue
            if forgotten.is_another(name, modified_ns // 1_000_000):
                new.add(name)
        return new
