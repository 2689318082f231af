"""Sessions that new packets touch, and that stay as they were written: their captures are gone.

A touched session is analyzed again from its captures. Where one of these is gone, or has other
content now, its rows stay. New packets of its flow that are of its time are left out: they may be
those that the rows are of, and no row is doubled. All others become sessions of their own, which
may begin in the middle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from polymux.capture.packets.flows import FlowName, flow_name
from polymux.capture.packets.packet_refs import REF_BYTES
from polymux.spark.batch.reference_shuffle import (
    HeldLocation,
    ReferenceLocation,
    StoredFlow,
    packet_time,
)
from polymux.spark.incremental.carried_packets import MARK

Times = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class KeptSessions:
    """The sessions that stay as they were written.

    Attributes:
        count: How many there are.
        times: The first and the last nanosecond of each, by flow.
        gone: The captures that are missing, sorted.
    """

    count: int = 0
    times: Mapping[FlowName, Times] = field(default_factory=dict)
    gone: tuple[str, ...] = ()


class RemainingFlows:
    """The flows of a task without the packets of the time of kept sessions; iterate once.

    `left_out` is then how many packets these are.
    """

    def __init__(self, flows: Iterable[StoredFlow], kept: KeptSessions) -> None:
        self._flows = flows
        self._kept = kept
        self.left_out = 0

    def __iter__(self) -> Iterator[StoredFlow]:
        times = self._kept.times
        for flow in self._flows:
            found = times.get(flow_name(flow.locations[0].row.flow)) if times else None
            if found is None:
                yield flow
                continue
            locations = [
                remaining
                for location in flow.locations
                for remaining in self._remaining(location, found)
            ]
            if locations:
                yield StoredFlow(locations)

    def _remaining(self, location: ReferenceLocation, times: Times) -> list[ReferenceLocation]:
        row = location.row
        # Carried packets are of sessions that are not over: none that is kept.
        if MARK in row.file or not _overlap(row.first_at, row.last_at, times):
            return [location]
        refs = location.read(0, location.size)
        kept = [
            position
            for position in range(0, len(refs), REF_BYTES)
            if not _overlap(at := packet_time(refs, position), at, times)
        ]
        self.left_out += len(refs) // REF_BYTES - len(kept)
        if not kept:
            return []
        ends = packet_time(refs, kept[0]), packet_time(refs, kept[-1])
        row = row._replace(first_at=min(ends), last_at=max(ends))
        return [HeldLocation(row, b"".join(refs[at : at + REF_BYTES] for at in kept))]


def _overlap(first: int, last: int, times: Times) -> bool:
    return any(first <= end and last >= begin for begin, end in times)
