"""Payload of flows that are walked side by side, read for all of them at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from polymux.capture.io.asked import PayloadRequest, ReadAt
from polymux.capture.io.read_coalescing import SequentialRun, read_interleaved
from polymux.capture.tcp.events import TcpEvents
from polymux.core.errors import CaptureError

# Bytes of a file for each piece, on average, up to which all of them are read: a piece that is
# fetched by itself costs as much.
MAX_BYTES_PER_PIECE = 8192
NOT_STARTED = -(1 << 63)


class ReadCoalescer:
    """What flows that are walked side by side will want next.

    When one of them needs its batch, the batches of the others that lie in the same part of the
    file are read along. What cannot be read that way, or is not worth it, is left to whoever
    asked for it.
    """

    def __init__(self) -> None:
        self.pending: list[PayloadRequest] = []

    def add(self, request: PayloadRequest) -> PayloadRequest:
        self.pending.append(request)
        return request

    def remove(self, request: PayloadRequest) -> None:
        """Nobody wants it any more."""
        self.pending.remove(request)

    def read_now(self, request: PayloadRequest) -> None:
        """It is wanted now: read it if that is worth it, and others with it."""
        self.remove(request)
        if request.is_read():
            return
        files: dict[str, tuple[ReadAt, list[SequentialRun]]] = {}
        for one in [request, *request.nearby(self.pending)]:
            for path, stretch in one.runs:
                if not stretch.is_read():
                    read = one.readers[stretch.file]
                    files.setdefault(path, (read, []))[1].append(stretch)
        for read, stretches in files.values():
            pieces = sum(stretch.pieces for stretch in stretches)
            begin = min(stretch.begin for stretch in stretches)
            end = max(stretch.end for stretch in stretches)
            if end - begin <= pieces * MAX_BYTES_PER_PIECE:
                try:
                    read_interleaved(stretches, read)
                except CaptureError:
                    continue  # whoever asked for that part reads it, and hears what is wrong


class ReadAhead:
    """One of the flows that are walked side by side. It asks for one batch ahead."""

    def __init__(self, coalescer: ReadCoalescer) -> None:
        self._coalescer = coalescer
        self.next_timestamp = NOT_STARTED
        """The instant at which what it wants next begins."""

    def start(
        self,
        events_source: Iterator[TcpEvents],
        files: Sequence[str],
        readers: Sequence[ReadAt],
        read_unshared: Callable[[TcpEvents, Sequence[ReadAt]], bytes],
    ) -> Iterator[tuple[TcpEvents, bytes]]:
        """Ask for the first batch; gives the events, each with its payload.

        `alone` reads what was not read together.
        """
        batches = self._batches(events_source, files, readers, read_unshared)
        next(batches)
        return batches

    def _batches(
        self,
        events_source: Iterator[TcpEvents],
        files: Sequence[str],
        readers: Sequence[ReadAt],
        read_unshared: Callable[[TcpEvents, Sequence[ReadAt]], bytes],
    ) -> Iterator[tuple[TcpEvents, bytes]]:
        """The same, once the first was asked for; until then, nothing."""
        ahead: PayloadRequest | None = None
        try:
            for events in itertools.chain(events_source, (None,)):
                wanted, ahead = ahead, None
                if wanted is not None:
                    self._coalescer.read_now(wanted)
                if events is not None:
                    ahead = self._coalescer.add(PayloadRequest(events, files, readers))
                    self.next_timestamp = int(events.timestamp[0])
                if wanted is None:
                    yield TcpEvents(0), b""
                elif wanted.is_read():
                    yield wanted.events, wanted.take()
                else:
                    yield wanted.events, read_unshared(wanted.events, readers)
        finally:
            if ahead is not None:
                self._coalescer.remove(ahead)
