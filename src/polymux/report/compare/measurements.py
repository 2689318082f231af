"""What is compared: latencies, throughput, stalls, resets and violations of one analysis, by group.

Memory is bounded: at most `MAX_GROUPS` groups are kept apart, and at most `MAX_SAMPLES` values of
each measure, chosen by a hash of their stream, so that the choice does not depend on the order of
rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from polymux.report.load.tables import Tables

GROUPINGS: Final = ("name", "protocol", "port")
EVERYTHING: Final = "all streams"
OTHER_GROUPS: Final = "(all other groups)"
NO_GROUP: Final = "(none)"
MAX_GROUPS: Final = 200
MAX_SAMPLES: Final = 20_000
MAX_NAMED_STREAMS: Final = 200_000  # with findings, whose names are kept apart
ABORTED_ENDINGS: Final = frozenset({"reset", "cancelled", "rejected"})
_STREAM_COLUMNS: Final = (
    "session_id", "stream", "name", "opener", "opened_at", "closed_at", "ending",
    "first_at_dialer", "first_at_acceptor", "bytes_dialer", "bytes_acceptor",
    "throughput_bps_dialer", "throughput_bps_acceptor",
)  # fmt: skip


class Sample:
    """Values of one measure, at most `MAX_SAMPLES` of them, and how many there were."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: list[tuple[int, int]] = []  # (negative hash, value): a heap, largest hash first

    def add(self, key: int, value: int) -> None:
        """Add the value of the stream with this hash."""
        self.count += 1
        if len(self._kept) < MAX_SAMPLES:
            heapq.heappush(self._kept, (-key, value))
        else:
            heapq.heappushpop(self._kept, (-key, value))

    def sorted_values(self) -> list[int]:
        """The values that were kept, in order."""
        return sorted(value for _, value in self._kept)


@dataclass(slots=True)
class EventTotal:
    """Events of a kind: how many, and the sums of their durations and squared durations."""

    count: int = 0
    total_us: int = 0
    squares: int = 0

    def add(self, duration_us: int = 0) -> None:
        """Add one event."""
        self.count += 1
        self.total_us += duration_us
        self.squares += duration_us * duration_us


@dataclass(slots=True)
class Group:
    """The measurements of the streams of one name, protocol or port, or of all."""

    streams: int = 0
    aborted: int = 0
    latency: Sample = field(default_factory=Sample)
    """Microseconds from the opening of a stream to the first frame of the other side."""
    lasted: Sample = field(default_factory=Sample)
    """Microseconds from the opening of a stream to its end."""
    throughput: Sample = field(default_factory=Sample)
    """Bits per second of the side that sent more."""
    stalls: dict[str, EventTotal] = field(default_factory=dict)
    """By cause, without `sender-idle`."""
    violations: dict[str, int] = field(default_factory=dict)
    """By rule, of severity warning and error."""


Measurements = dict[str, Group]


def measure(tables: Tables, by: str | None = None) -> Measurements:
    """Read the measurements of an analysis, in groups by name, protocol or port, or in one.

    Rows without a name, protocol or stream are in the group `(none)`.

    Raises:
        UnreadableTables: A table cannot be read.
    """
    groups: Measurements = {}
    sessions = _session_groups(tables, by)
    names = _streams_with_findings(tables) if by == "name" else {}
    for session_id, key, name, *rest in _rows(tables, "streams", _STREAM_COLUMNS):
        label = str(name) if by == "name" and name is not None else sessions(str(session_id))
        group = _group(groups, label)
        if (str(session_id), str(key)) in names:
            names[str(session_id), str(key)] = label
        _add_stream(group, crc32(f"{session_id}/{key}".encode("utf-8", "replace")), rest)

    def group_of(session_id: object, stream: object) -> Group:
        if by == "name":
            full = len(names) >= MAX_NAMED_STREAMS
            unknown = OTHER_GROUPS if full and stream is not None else NO_GROUP
            return _group(groups, names.get((str(session_id), str(stream)), unknown))
        return _group(groups, sessions(str(session_id)))

    columns: tuple[str, ...] = ("session_id", "stream", "cause", "duration_us")
    for session_id, key, cause, duration in _rows(tables, "stalls", columns):
        if cause != "sender-idle":
            total = group_of(session_id, key).stalls.setdefault(str(cause), EventTotal())
            total.add(_integer(duration))
    columns = ("session_id", "stream", "rule", "severity")
    for session_id, key, rule, severity in _rows(tables, "violations", columns):
        if severity != "note":
            counts = group_of(session_id, key).violations
            counts[str(rule)] = counts.get(str(rule), 0) + 1
    return groups


def _streams_with_findings(tables: Tables) -> dict[tuple[str, str], str]:
    """The streams whose name is needed for their findings; more are in `OTHER_GROUPS`."""
    found: dict[tuple[str, str], str] = {}
    for table in ("stalls", "violations"):
        for session_id, stream in _rows(tables, table, ("session_id", "stream")):
            if len(found) >= MAX_NAMED_STREAMS:
                return found
            if stream is not None:
                found[str(session_id), str(stream)] = NO_GROUP
    return found


def _add_stream(group: Group, key: int, row: list[object]) -> None:
    opener, opened, closed, ending, first_dialer, first_acceptor, sent, received, *rates = row
    group.streams += 1
    group.aborted += ending in ABORTED_ENDINGS
    reply = first_acceptor if opener == "dialer" else first_dialer
    if isinstance(opened, int) and isinstance(reply, int) and reply >= opened:
        group.latency.add(key, reply - opened)
    if isinstance(opened, int) and isinstance(closed, int) and closed >= opened:
        group.lasted.add(key, closed - opened)
    rate = rates[0] if _integer(sent) >= _integer(received) else rates[1]
    if isinstance(rate, int) and rate > 0:
        group.throughput.add(key, rate)


def _session_groups(tables: Tables, by: str | None) -> Callable[[str], str]:
    """A function from a session's id to its group."""
    if by not in ("protocol", "port"):
        fixed = EVERYTHING if by is None else NO_GROUP
        return lambda session_id: fixed
    column = "protocol" if by == "protocol" else "acceptor"
    found: dict[str, str] = {}
    for session_id, text in _rows(tables, "sessions", ("session_id", column)):
        if text is not None:
            value = str(text)
            found[str(session_id)] = value if by == "protocol" else value.rpartition(":")[2]
    return lambda session_id: found.get(session_id, NO_GROUP)


def _group(groups: Measurements, label: str) -> Group:
    if label not in groups and len(groups) >= MAX_GROUPS:
        label = OTHER_GROUPS
    return groups.setdefault(label, Group())


def _rows(tables: Tables, table: str, columns: tuple[str, ...]) -> Iterator[tuple[object, ...]]:
    for batch in tables.batches(table, columns):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0
