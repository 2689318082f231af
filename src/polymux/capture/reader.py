"""Reading the sessions of capture files in one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from polymux.capture.io.discovery import find_captures
from polymux.capture.io.file_pool import FilePool
from polymux.capture.io.paths import AnyPaths
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import UNREADABLE, FileSummary
from polymux.capture.packets.flow_filter import FlowFilter
from polymux.capture.packets.indexer import FileIndex, FlowRefs, index_file
from polymux.capture.tcp.sessions import TcpSession, sessions_of
from polymux.core.errors import CaptureError

# Flows whose packets are ordered at a time. Reading payload in between evicts the references from
# the processor's caches, so many flows are ordered at once.
FLOWS_ORDERED_AT_ONCE = 64


class CaptureReader:
    """Indexed captures. Iterate over it for their sessions, as often as needed.

    `files` has a summary for each file; a damaged file does not raise. Flows are ordered by the
    timestamp of their first packet, and the sessions of a flow follow each other. Close the
    reader, or use it as a context manager, when the payload is no longer needed.
    """

    def __init__(self, pool: FilePool, indexes: Iterable[FileIndex], wanted: FlowFilter) -> None:
        self._pool = pool
        self._wanted = wanted
        self.files: list[FileSummary] = []
        self._flows: dict[bytes, list[FlowRefs]] = {}
        for index in indexes:
            self.files.append(index.summary)
            for row in index.rows:
                self._flows.setdefault(row.flow, []).append(row)

    def __iter__(self) -> Iterator[TcpSession]:
        def first(flow: bytes) -> tuple[int, bytes]:
            return min(row.first_at for row in self._flows[flow]), flow

        flows = iter(sorted(self._flows, key=first))
        while ahead := list(itertools.islice(flows, FLOWS_ORDERED_AT_ONCE)):
            ordered = [self._sessions(flow) for flow in ahead]
            for sessions in ordered:
                yield from sessions

    def _sessions(self, flow: bytes) -> list[TcpSession]:
        return sessions_of(
            self._flows[flow],
            self._pool.reader,
            limits=self._pool.limits,
            ports=self._wanted.ports,
        )

    def close(self) -> None:
        """Close the files. Payload can no longer be read from pipes and standard input."""
        self._pool.close()

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_sessions(
    paths: AnyPaths,
    *,
    limits: CaptureLimits | None = None,
    ports: Iterable[int] = (),
    filters: Iterable[str] = (),
    verify: bool = False,
) -> CaptureReader:
    """Index captures and return a reader for their sessions.

    Args:
        paths: One path or several: files, directories, globs, or "-" for standard input; see
            `find_captures`.
        limits: By default `CaptureLimits()`.
        ports: Listening ports. If no SYN was captured, the endpoint with such a port is taken for
            the acceptor.
        filters: `address:port`, `address` or `:port`. With ports or filters, only the flows that
            match one of them are read.
        verify: Leave out packets with a wrong checksum; see `index_file`.

    Returns:
        The reader, whose `files` report damaged and unreadable files.

    Raises:
        ValueError: A filter cannot be parsed.
    """
    wanted = FlowFilter(ports, filters)
    pool = FilePool(limits)
    indexes = [_index(pool, path, wanted, verify) for path in find_captures(paths)]
    return CaptureReader(pool, indexes, wanted)


def _index(pool: FilePool, path: str, wanted: FlowFilter, verify: bool) -> FileIndex:
    try:
        source = pool.source(path)
    except CaptureError as failure:
        return FileIndex(FileSummary(path, None, UNREADABLE, error=str(failure)))
    return index_file(path, limits=pool.limits, wanted=wanted, source=source, verify=verify)
