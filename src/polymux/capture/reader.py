"""Reading the sessions of capture files in one process."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from polymux.capture.io.discovery import find_captures
from polymux.capture.io.file_pool import FilePool
from polymux.capture.io.paths import AnyPaths
from polymux.capture.limits import CaptureLimits
from polymux.capture.packets.file_summary import UNREADABLE, FileSummary
from polymux.capture.packets.flows import FlowFilter, SensorNaming
from polymux.capture.packets.indexer import FlowIndex, FlowRows, index_flows
from polymux.capture.packets.packed_flows import FlowDirectory
from polymux.capture.tcp.sessions import TcpSession, consume_sessions, sessions_of
from polymux.core.errors import CaptureError

# Flows whose packets are ordered at a time. Reading payload in between evicts the references from
# the processor's caches, so many flows are ordered at once.
FLOWS_ORDERED_AT_ONCE = 64


class CaptureReader:
    """Indexed captures. Iterate over it for their sessions, as often as needed.

    `files` has a summary for each file; a damaged file does not raise. Flows are ordered by the
    timestamp of their first packet, and the sessions of a flow follow each other. Close the
    reader, or use it as a context manager, when the payload is no longer needed.

    `read_sessions` is the usual way to make one.

    Args:
        pool: The open files; `close` closes it.
        indexes: An index for each file, from `index_flows`.
        wanted: Its ports identify the acceptor of a session whose SYN was not captured.
    """

    def __init__(self, pool: FilePool, indexes: Iterable[FlowIndex], wanted: FlowFilter) -> None:
        self._pool = pool
        self._wanted = wanted
        self.files: list[FileSummary] = []
        self.secrets: list[bytes] = []
        """TLS key logs from the secrets blocks of all files."""
        self._rows: list[FlowRows] = []
        self._directory = FlowDirectory()
        for index in indexes:
            self.files.append(index.summary)
            self.secrets += index.secrets
            if index.rows is not None:
                self._rows.append(index.rows)
                self._directory.add_file(index.rows.packed)
                for direction in index.rows.directions():
                    self._directory.add(direction)
        self._directory.arrange()

    def __iter__(self) -> Iterator[TcpSession]:
        positions = iter(range(self._directory.count))
        while ahead := list(itertools.islice(positions, FLOWS_ORDERED_AT_ONCE)):
            ordered = [self._sessions(position) for position in ahead]
            ordered.reverse()
            while ordered:  # a session is freed when the next one is asked for
                yield from consume_sessions(ordered.pop())

    def _sessions(self, position: int) -> list[TcpSession]:
        """The sessions of the flow at this position of the order."""
        entries = self._directory.flow_entries(position)
        return sessions_of(
            [self._rows[file].row(direction) for file, direction in entries],
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
    sensors: SensorNaming | None = None,
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
        sensors: How the sensor of each file is found. Packets of different sensors never belong to
            the same session.

    Returns:
        The reader, whose `files` report damaged and unreadable files.

    Raises:
        ValueError: A filter cannot be parsed.
    """
    wanted = FlowFilter(ports, filters, sensors)
    pool = FilePool(limits)
    indexes = [_index(pool, path, wanted, verify) for path in find_captures(paths)]
    return CaptureReader(pool, indexes, wanted)


def _index(pool: FilePool, path: str, wanted: FlowFilter, verify: bool) -> FlowIndex:
    try:
        source = pool.source(path)
    except CaptureError as failure:
        return FlowIndex(FileSummary(path, None, UNREADABLE, error=str(failure)))
    return index_flows(path, limits=pool.limits, wanted=wanted, source=source, verify=verify)
