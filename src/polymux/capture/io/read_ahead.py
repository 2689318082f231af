# mypyc: compiled
"""Sharing reads between flows that are analyzed side by side.

`interleave` advances up to 64 flows in turn, always the earliest. Each has a `ReadAhead` that
requests the payload of its next batch before it is needed. The `ReadCoalescer` they share reads
requests that lie in the same region of a file together: see `read_coalescing`.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from polymux.capture.io.file_pool import FileReader
from polymux.capture.io.read_coalescing import (
    PayloadRequest,
    ReadAt,
    SequentialRun,
    read_interleaved,
)
from polymux.capture.tcp.reassembly import TcpEvents
from polymux.core.errors import CaptureError

MAX_INTERLEAVED_FLOWS = 64  # flows analyzed at the same time
MAX_HELD_BYTES = 24 * 1048576  # references held by the flows that are analyzed at the same time
# Runs are read in one pass if that reads at most this many bytes of the file for each piece, on
# average: fetching a piece by itself costs about as much.
MAX_BYTES_PER_PIECE = 8192
# Where pieces can be gathered, the pass must also read at most this much of what is wanted, the
# headers of a packet included: each of many tasks that share a file would read all of it otherwise.
# With two tasks, a pass of each is quicker.
MAX_READ_PERCENT = 250
PACKET_HEADER_BYTES = 96  # of the block or record, Ethernet, IP and TCP
NOT_STARTED = -0x7FFFFFFFFFFFFFFF - 1


class SizedFlow(Protocol):
    """A flow with the memory that its analysis holds."""

    @property
    def held_bytes(self) -> int:
        """Bytes of references that are held while the flow is analyzed."""


F = TypeVar("F", bound=SizedFlow)


def interleave(flows: Iterable[F], steps: Callable[[F, ReadAhead], Iterator[int]]) -> Iterator[int]:
    """Interleave the analysis of several flows, always advancing the earliest one.

    Flows that start together are stored together in the files: interleaved, they read the same
    regions, which are then read once for all. The number of flows is bounded by the references
    they hold; a flow that exceeds the bound alone is analyzed alone.

    Args:
        flows: the flows, in order of their start.
        steps: starts the analysis of a flow; the iterator yields after each step.

    Yields:
        What the steps yield.
    """
    shared = ReadCoalescer()
    active: list[tuple[int, int, ActiveFlow]] = []  # a heap: by next timestamp, then by number
    held = 0
    for number, flow in enumerate(flows):
        while active and (
            len(active) == MAX_INTERLEAVED_FLOWS or held + flow.held_bytes > MAX_HELD_BYTES
        ):
            ended = active[0][2]
            size = _advance(active)
            if size < 0:
                held -= ended.held_bytes
            else:
                yield size
        read_ahead = ReadAhead(shared)
        started = ActiveFlow(flow.held_bytes, read_ahead, steps(flow, read_ahead))
        heapq.heappush(active, (read_ahead.next_timestamp, number, started))
        held += flow.held_bytes
    while active:
        size = _advance(active)
        if size >= 0:
            yield size


class ActiveFlow:
    """A flow that is being analyzed."""

    def __init__(self, held_bytes: int, read_ahead: ReadAhead, steps: Iterator[int]) -> None:
        self.held_bytes = held_bytes
        self.read_ahead = read_ahead
        self.steps = steps


def _advance(active: list[tuple[int, int, ActiveFlow]]) -> int:
    """Advance the earliest flow by a step and return what it yields; -1 if it has ended."""
    _, number, flow = active[0]
    step = next(flow.steps, None)
    if step is None:
        heapq.heappop(active)
        flow.read_ahead.withdraw()
        return -1
    heapq.heapreplace(active, (flow.read_ahead.next_timestamp, number, flow))
    return step


class ReadCoalescer:
    """The pending payload requests of flows that are analyzed side by side.

    When one flow needs its batch, the requests of the others in the same region of the file are
    read along. A request that cannot be read that way, or is not worth it, is left unread: its
    flow then reads the payload itself.
    """

    def __init__(self) -> None:
        self.pending: list[PayloadRequest] = []

    def add(self, request: PayloadRequest) -> PayloadRequest:
        """Add a pending request; returns it."""
        self.pending.append(request)
        return request

    def remove(self, request: PayloadRequest) -> None:
        """Withdraw a request; no effect if it is not pending."""
        if request in self.pending:
            self.pending.remove(request)

    def read_now(self, request: PayloadRequest) -> None:
        """Take `request` off the list; read it, and requests near it, if that is worthwhile."""
        self.remove(request)
        if request.is_read():
            return
        files: dict[str, tuple[ReadAt, list[SequentialRun]]] = {}
        for each in [request, *request.nearby(self.pending)]:
            for path, run in each.runs:
                if not run.is_read():
                    read = each.readers[run.file]
                    files.setdefault(path, (read, []))[1].append(run)
        for read, runs in files.values():
            if is_worthwhile(runs, read):
                try:
                    read_interleaved(runs, read)
                except CaptureError:
                    continue  # the flow that needs the failed part reads it and gets the error


def is_worthwhile(runs: Sequence[SequentialRun], read: ReadAt) -> bool:
    """Whether to read these runs of a file in one pass, rather than each flow's by itself."""
    pieces = sum(run.pieces for run in runs)
    passed = max(run.end for run in runs) - min(run.begin for run in runs)
    if passed > pieces * MAX_BYTES_PER_PIECE:
        return False
    wanted = sum(run.payload_bytes for run in runs) + pieces * PACKET_HEADER_BYTES
    return passed * 100 <= wanted * MAX_READ_PERCENT or not (
        isinstance(read, FileReader) and read.can_gather()
    )


class ReadAhead:
    """One of the flows that are analyzed side by side. It requests one batch ahead.

    The request stays pending until it is read, the flow's next session starts, or `withdraw`.
    """

    def __init__(self, coalescer: ReadCoalescer) -> None:
        self._coalescer = coalescer
        self._request: PayloadRequest | None = None
        self.next_timestamp = NOT_STARTED
        """Timestamp of the first event of the next batch, in nanoseconds; NOT_STARTED before."""

    def start(
        self,
        events_source: Iterator[TcpEvents],
        files: Sequence[str],
        readers: Sequence[ReadAt],
        read_unshared: Callable[[TcpEvents, Sequence[ReadAt]], bytes],
    ) -> Iterator[tuple[TcpEvents, bytes]]:
        """Request the first batch; returns an iterator over batches of events and their payload.

        Args:
            events_source: The batches of the flow, without payload.
            files: Paths of the files that events name by number.
            readers: A reader for each of them.
            read_unshared: Reads the payload of a batch that was not read with others.
        """
        self.withdraw()
        batches = self._batches(events_source, files, readers, read_unshared)
        next(batches)
        return batches

    @property
    def pending_requests(self) -> int:
        """How many requests are pending, those of the flows beside this one included."""
        return len(self._coalescer.pending)

    def withdraw(self) -> None:
        """Withdraw what is requested: the caller reads no further."""
        request, self._request = self._request, None
        if request is not None:
            self._coalescer.remove(request)

    def _batches(
        self,
        events_source: Iterator[TcpEvents],
        files: Sequence[str],
        readers: Sequence[ReadAt],
        read_unshared: Callable[[TcpEvents, Sequence[ReadAt]], bytes],
    ) -> Iterator[tuple[TcpEvents, bytes]]:
        """As `start`, except that the first item is empty: it only requests the first batch."""
        ahead: PayloadRequest | None = None
        try:
            for events in itertools.chain(events_source, (None,)):
                request, ahead = ahead, None
                if request is not None:
                    self._coalescer.read_now(request)
                if events is not None:
                    ahead = self._coalescer.add(PayloadRequest(events, files, readers))
                    self._request = ahead
                    self.next_timestamp = int(events.timestamp[0])
                if request is None:
                    yield TcpEvents(0), b""
                elif request.is_read():
                    yield request.events, request.take()
                else:
                    yield request.events, read_unshared(request.events, readers)
        finally:  # after an error: what is left early is withdrawn by `withdraw`
            if ahead is not None:
                self._coalescer.remove(ahead)
