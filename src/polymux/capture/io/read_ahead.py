"""Payload of flows that are walked side by side, read for all of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from polymux.capture.io.asked import Asked, Reader
from polymux.capture.io.read_coalescing import Stretch, read_together
from polymux.capture.tcp.events import Events
from polymux.core.errors import CaptureError

# Octets of a file for each piece, on average, up to which all of them are read: a piece that is
# fetched by itself costs as much.
NEAR = 8192
NOT_BEGUN = -(1 << 63)


class SharedReads:
    """What flows that are walked side by side will want next.

    When one of them needs its batch, the batches of the others that lie in the same part of the
    file are read along. What cannot be read that way, or is not worth it, is left to whoever
    asked for it.
    """

    def __init__(self) -> None:
        self._asked: list[Asked] = []

    def ask(self, asked: Asked) -> Asked:
        self._asked.append(asked)
        return asked

    def forget(self, asked: Asked) -> None:
        """Nobody wants it any more."""
        self._asked.remove(asked)

    def settle(self, asked: Asked) -> None:
        """It is wanted now: read it if that is worth it, and others with it."""
        self.forget(asked)
        if asked.is_read():
            return
        files: dict[str, tuple[Reader, list[Stretch]]] = {}
        for one in [asked, *asked.those_by_it(self._asked)]:
            for path, stretch in one.stretches:
                if not stretch.is_read():
                    read = one.readers[stretch.file]
                    files.setdefault(path, (read, []))[1].append(stretch)
        for read, stretches in files.values():
            pieces = sum(stretch.pieces for stretch in stretches)
            begin = min(stretch.begin for stretch in stretches)
            end = max(stretch.end for stretch in stretches)
            if end - begin <= pieces * NEAR:
                try:
                    read_together(stretches, read)
                except CaptureError:
                    continue  # whoever asked for that part reads it, and hears what is wrong


class Companion:
    """One of the flows that are walked side by side. It asks for one batch ahead."""

    def __init__(self, shared: SharedReads) -> None:
        self._shared = shared
        self.at = NOT_BEGUN
        """The instant at which what it wants next begins."""

    def begin(
        self,
        found: Iterator[Events],
        files: Sequence[str],
        readers: Sequence[Reader],
        alone: Callable[[Events, Sequence[Reader]], bytes],
    ) -> Iterator[tuple[Events, bytes]]:
        """Ask for the first batch; gives the events, each with its payload.

        `alone` reads what was not read together.
        """
        batches = self._batches(found, files, readers, alone)
        next(batches)
        return batches

    def _batches(
        self,
        found: Iterator[Events],
        files: Sequence[str],
        readers: Sequence[Reader],
        alone: Callable[[Events, Sequence[Reader]], bytes],
    ) -> Iterator[tuple[Events, bytes]]:
        """The same, once the first was asked for; until then, nothing."""
        ahead: Asked | None = None
        try:
            for events in itertools.chain(found, (None,)):
                wanted, ahead = ahead, None
                if wanted is not None:
                    self._shared.settle(wanted)
                if events is not None:
                    ahead = self._shared.ask(Asked(events, files, readers))
                    self.at = int(events.at[0])
                if wanted is None:
                    yield Events(0), b""
                elif wanted.is_read():
                    yield wanted.events, wanted.take()
                else:
                    yield wanted.events, alone(wanted.events, readers)
        finally:
            if ahead is not None:
                self._shared.forget(ahead)
