"""From capture files to sessions, in one process."""

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

# Flows put in order at a time. Who reads their payload in between drives what this needs out of
# the processor's caches, so it is done for many at once.
FLOWS_ORDERED_AT_ONCE = 64


class CaptureReader:
    """Captures that were read: iterate it for the sessions, as often as needed.

    `files` has a summary for each file; nothing raises because a file is bad. Flows come by the
    instant of their first packet, the sessions of a flow one after another. Close it, or use it
    as a context, when the payload is no longer needed.
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
            found = [self._sessions(flow) for flow in ahead]
            for sessions in found:
                yield from sessions

    def _sessions(self, flow: bytes) -> list[TcpSession]:
        return sessions_of(
            self._flows[flow],
            self._pool.reader,
            limits=self._pool.limits,
            ports=self._wanted.ports,
        )

    def close(self) -> None:
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
    """Index files and directories and give their sessions. `paths` is one path or several.

    `ports` are listening ports, `filters` are `host:port`, `host` or `:port`; with either, only
    the flows they name are read. Where no SYN was captured, a listening port names the acceptor.
    `verify`: see `index_file`.
    """
    wanted = FlowFilter(ports, filters)
    files = FilePool(limits)
    indexes = [_index(files, path, wanted, verify) for path in find_captures(paths)]
    return CaptureReader(files, indexes, wanted)


def _index(pool: FilePool, path: str, wanted: FlowFilter, verify: bool) -> FileIndex:
    try:
        source = pool.source(path)
    except CaptureError as failure:
        return FileIndex(FileSummary(path, None, UNREADABLE, error=str(failure)))
    return index_file(path, limits=pool.limits, wanted=wanted, source=source, verify=verify)
