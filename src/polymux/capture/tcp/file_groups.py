"""Files of one flow that cannot hold the same connection, although their endpoints are equal.

Problem: two hosts in different private networks may use the same addresses and ports at the same
time. If nothing tells their captures apart (see `packets.flows`), they have the same flow key,
and a merge of both would be a connection that never existed.

Idea: at any moment a connection has one position in each direction. If two files have packets of
the same time, and no sequence number or acknowledgement of one is anywhere near those of the other,
they hold different connections. Files are grouped so that this is so between groups, and within
none. A file that follows another in time joins the group whose last position is nearest to its
first; with the same recording it joins that recording's.

Not all packets are looked at. The first and the last packet of every row of one file are compared
with those of the other; if the files have packets of the same time, the packets next to the start
of the common time are compared too, and those next to its end. Files are kept apart only if they
have nothing in common in this. A connection that was captured on two interfaces, or in a file for
each direction, has the same positions in both, even if one capture starts later and stops earlier.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from polymux.capture.packets.indexer import FlowRefs
from polymux.capture.packets.packet_refs import ACK, REF_BYTES, SAME_PACKET_MASK, SYN

_unpack_ref = struct.Struct("<qqqq").unpack_from
_unpack_timestamp = struct.Struct("<q").unpack_from
_SPACE = 1 << 32  # sequence numbers
MAX_DISTANCE = 1 << 26  # bytes between positions of one connection at about the same time


@dataclass(slots=True)
class Positions:
    """Where the two directions of a flow stand, by some packets of one file."""

    seqs: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Sequence numbers, and acknowledgements by the other side, of each direction."""
    packets: set[tuple[int, int, int, int]] = field(default_factory=set)
    """Direction, timestamp and headers of these packets."""

    def add(self, row: FlowRefs, number: int) -> None:
        """Add packet `number` of a row."""
        _, timestamp, seq_ack, header = _unpack_ref(_ref(row, number))
        self.packets.add((row.direction, timestamp, seq_ack, header & int(SAME_PACKET_MASK)))
        flags = header >> 16 & 255
        self.seqs[row.direction].append(seq_ack >> 32 & _SPACE - 1)
        if flags & int(ACK):
            self.seqs[1 - row.direction].append(seq_ack & _SPACE - 1)
        if flags & int(SYN):
            self.seqs[row.direction].append((seq_ack >> 32) + 1 & _SPACE - 1)

    def distances(self, other: Positions) -> list[int | None]:
        """The least distance in each direction; None if not both have positions of it."""
        return [
            min((_distance(a, b) for a in self.seqs[side] for b in other.seqs[side]), default=None)
            for side in (0, 1)
        ]


@dataclass(slots=True)
class FilePositions:
    """Where the two directions of a flow stand in one file."""

    file: str
    recording: str = ""
    first_at: int = 0
    last_at: int = 0
    ends: Positions = field(default_factory=Positions)
    """At the first and the last packet of each row."""
    rows: list[FlowRefs] = field(default_factory=list)

    def add(self, row: FlowRefs) -> None:
        if not self.rows:
            self.first_at, self.last_at = row.first_at, row.last_at
        self.recording = row.recording
        self.first_at = min(self.first_at, row.first_at)
        self.last_at = max(self.last_at, row.last_at)
        self.rows.append(row)
        if row.packets:
            self.ends.add(row, 0)
            self.ends.add(row, row.packets - 1)

    def at(self, moment: int) -> Positions:
        """The positions at the packets next to a moment, before and after, of each direction."""
        found = Positions()
        for direction in (0, 1):
            rows = [row for row in self.rows if row.direction == direction and row.packets]
            before = [row for row in rows if row.first_at < moment]
            after = [row for row in rows if row.last_at >= moment]
            if before:
                row = max(before, key=lambda row: min(row.last_at, moment))
                found.add(row, _first_since(row, moment) - 1)
            if after:
                row = min(after, key=lambda row: max(row.first_at, moment))
                found.add(row, _first_since(row, moment))
        return found

    def overlaps(self, other: FilePositions) -> bool:
        """Whether both have packets of the same time."""
        return self.first_at <= other.last_at and other.first_at <= self.last_at

    def distance(self, other: FilePositions) -> int:
        """The least distance of two positions in the direction in which they are further apart.

        Compared are the ends of rows with each other, and if the files overlap, the positions at
        the start of their common time, and those at its end. 0 if no direction has positions in
        both, or one of these packets is in both.
        """
        compared = [self.ends.distances(other.ends)]
        if any(compared[0]) and self.overlaps(other):
            for moment in (
                max(self.first_at, other.first_at),
                min(self.last_at, other.last_at),
            ):
                here, there = self.at(moment), other.at(moment)
                if here.packets & there.packets:
                    return 0
                compared.append(here.distances(there))
        sides = [
            [distance for distance in side if distance is not None]
            for side in zip(*compared, strict=True)
        ]
        return max((min(side) for side in sides if side), default=0)


class Group:
    """Files that can hold the same connections, added by their first packets."""

    def __init__(self, file: FilePositions) -> None:
        self.files: list[FilePositions] = []
        self._recordings: set[str] = set()
        self._reaching: list[FilePositions] = []  # files with packets as late as the last look
        self.add(file)

    def add(self, file: FilePositions) -> None:
        self.files.append(file)
        self._reaching.append(file)
        if file.recording:
            self._recordings.add(file.recording)

    def has_recording_of(self, file: FilePositions) -> bool:
        """Whether a file of the same recording is here."""
        return file.recording in self._recordings

    def distance(self, file: FilePositions) -> int | None:
        """The distance of the nearest file with packets of the same time, or of the last file.

        None if there is one of the same time, and it is too far. A file that ends before this one
        begins is not looked at again: those that are added later begin later.
        """
        self._reaching = [other for other in self._reaching if other.last_at >= file.first_at]
        compared = self._reaching or self.files[-1:]
        distance = min(other.distance(file) for other in compared)
        return None if self._reaching and distance > MAX_DISTANCE else distance


def group_rows(rows: Sequence[FlowRefs]) -> list[list[FlowRefs]]:
    """The rows of a flow in groups of files that can hold the same connections; mostly one."""
    files: dict[str, FilePositions] = {}
    for row in rows:
        files.setdefault(row.file, FilePositions(row.file)).add(row)
    groups: list[Group] = []
    for file in sorted(files.values(), key=lambda file: (file.first_at, file.file)):
        group = _group_of(file, groups)
        if group is None:
            groups.append(Group(file))
        else:
            group.add(file)
    return [[row for file in group.files for row in file.rows] for group in groups]


def _group_of(file: FilePositions, groups: Iterable[Group]) -> Group | None:
    """The group that a file joins; None if it has packets of the time of all, far from theirs."""
    best: Group | None = None
    nearest = -1
    for group in groups:
        if group.has_recording_of(file):
            return group
        distance = group.distance(file)
        if distance is not None and (nearest < 0 or distance < nearest):
            best, nearest = group, distance
    return best


def _ref(row: FlowRefs, number: int) -> bytes:
    """The reference of packet `number` of a row."""
    start = number * REF_BYTES
    if row.stored is not None:
        return row.stored(start, REF_BYTES)
    return row.refs[start : start + REF_BYTES]


def _first_since(row: FlowRefs, moment: int) -> int:
    """The number of the first packet of a row at or after a moment, by binary search.

    The number of its packets if all are before. Packets out of the order of time by a little may
    give one next to it.
    """
    if moment > row.last_at:
        return row.packets
    return bisect_left(
        range(row.packets), moment, key=lambda number: _unpack_timestamp(_ref(row, number), 8)[0]
    )


def _distance(one: int, two: int) -> int:
    """The distance of two sequence numbers, which wrap around."""
    away = (one - two) % _SPACE
    return min(away, _SPACE - away)
