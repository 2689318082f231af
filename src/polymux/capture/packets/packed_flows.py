# mypyc: compiled
"""The packet references of whole files in a few arrays, and the flows of all files in order.

A capture may have a million flows of one packet each. As an object for each flow, its references
alone would take hundreds of megabytes; here a flow takes about a hundred bytes.
"""

from __future__ import annotations

from typing import Final

from librt.vecs import append, vec
from mypy_extensions import i64

from polymux.capture.packets.decoder import KEY_WORDS, FlowTable, PacketTable
from polymux.capture.packets.packet_refs import LOW32, SortedRefs

FILE_SHIFT: Final[i64] = 32  # of the number of a file in an entry of `FlowDirectory`


class PackedFlows:
    """The references of one file, by direction index: twice a flow's number, plus the direction.

    Takes the references out of the table, which must not be used afterwards.
    """

    def __init__(self, table: PacketTable, sensor: bytes = b"") -> None:
        self.sensor: bytes = sensor  # what each key ends with (see `flows`)
        flows = table.flows
        flows.release_slots()
        self.flows: FlowTable = flows
        self.sorted: SortedRefs = table.sort()

    def count(self) -> i64:
        """The number of flows."""
        return self.flows.count

    def key(self, flow: i64) -> bytes:
        """The key of a flow; see `FlowTable.key` and `flows`."""
        return self.flows.key(flow) + self.sensor

    def refs(self, direction: i64) -> bytes:
        """The references of a direction of a flow, packed; empty if it has none."""
        return self.sorted.direction(direction)

    def size(self, direction: i64) -> i64:
        """The bytes of these references."""
        return self.sorted.end(direction) - self.sorted.begin(direction)

    def first_at(self, direction: i64) -> i64:
        """The timestamp of the first packet of a direction that has one."""
        return self.sorted.word(self.sorted.begin(direction) // 8 + 1)


class FlowDirectory:
    """The flows of several files, ordered by the timestamp of their first packet, then by key.

    Call `add` for each direction of each flow that is wanted, then `arrange` once. A flow then is a
    range of entries, one for each direction in each file.
    """

    def __init__(self) -> None:
        self.files: list[PackedFlows] = []
        self.entries: vec[i64] = vec[i64]()  # file << FILE_SHIFT | direction index
        self.count: i64 = 0  # of flows
        self.starts: vec[i64] = vec[i64]()  # the first entry of each flow, and the end of the last
        self.first_times: vec[i64] = vec[i64]()
        self.order: vec[i64] = vec[i64]()  # flows by time

    def add_file(self, packed: PackedFlows) -> None:
        """Begin the next file; `add` then adds directions of it."""
        self.files.append(packed)

    def add(self, direction: i64) -> None:
        """Add a direction of the last file, in ascending order."""
        file: i64 = len(self.files) - 1
        self.entries = append(self.entries, (file << FILE_SHIFT) | direction)

    def arrange(self) -> None:
        """Group the entries of each flow and order the flows."""
        total: i64 = len(self.entries)
        if len(self.files) > 1:
            self.entries = self.merge_sorted(self.entries, False)
        for n in range(total):
            if n == 0 or self.compare_keys(self.entries[n - 1], self.entries[n]) != 0:
                self.starts = append(self.starts, n)
                self.first_times = append(self.first_times, self.entry_time(n))
                self.count += 1
            elif self.entry_time(n) < self.first_times[self.count - 1]:
                self.first_times[self.count - 1] = self.entry_time(n)
        self.starts = append(self.starts, total)
        numbers: vec[i64] = vec[i64]([0] * self.count)
        for flow in range(self.count):
            numbers[flow] = flow
        self.order = self.merge_sorted(numbers, True)

    def flow_entries(self, position: i64) -> list[tuple[int, int]]:
        """File number and direction index of all entries of the flow at a position of the order."""
        flow = self.order[position]
        found: list[tuple[int, int]] = []
        for n in range(self.starts[flow], self.starts[flow + 1]):
            entry = self.entries[n]
            found.append((int(entry >> FILE_SHIFT), int(entry & LOW32)))
        return found

    def entry_time(self, n: i64) -> i64:
        entry = self.entries[n]
        return self.files[entry >> FILE_SHIFT].first_at(entry & LOW32)

    def compare_keys(self, one: i64, other: i64) -> i64:
        """-1, 0 or 1: the keys of two entries, compared as bytes."""
        keys1 = self.files[one >> FILE_SHIFT].flows.keys
        keys2 = self.files[other >> FILE_SHIFT].flows.keys
        first1 = ((one & LOW32) >> 1) * KEY_WORDS
        first2 = ((other & LOW32) >> 1) * KEY_WORDS
        for n in range(KEY_WORDS):
            a = keys1[first1 + n]
            b = keys2[first2 + n]
            if a != b:
                if (a < 0) != (b < 0):  # the words are unsigned
                    if b < 0:
                        return -1
                    return 1
                if a < b:
                    return -1
                return 1
        sensor1 = self.files[one >> FILE_SHIFT].sensor
        sensor2 = self.files[other >> FILE_SHIFT].sensor
        if sensor1 == sensor2:
            return 0
        if sensor1 < sensor2:
            return -1
        return 1

    def is_before(self, one: i64, other: i64, by_time: bool) -> bool:
        """Whether an entry, or with `by_time` a flow, strictly precedes another."""
        if by_time:
            time1 = self.first_times[one]
            time2 = self.first_times[other]
            if time1 != time2:
                return time1 < time2
            entry = self.entries[self.starts[one]]
            return self.compare_keys(entry, self.entries[self.starts[other]]) < 0
        order = self.compare_keys(one, other)
        return order < 0 or (order == 0 and one < other)

    def merge_sorted(self, items: vec[i64], by_time: bool) -> vec[i64]:
        """The items in order: a merge sort from pairs upwards, in one more array."""
        total: i64 = len(items)
        other: vec[i64] = vec[i64]([0] * total)
        width: i64 = 1
        while width < total:
            begin: i64 = 0
            while begin < total:
                middle = begin + width
                if middle > total:
                    middle = total
                end = middle + width
                if end > total:
                    end = total
                left = begin
                right = middle
                for n in range(begin, end):
                    if left < middle and (
                        right >= end or not self.is_before(items[right], items[left], by_time)
                    ):
                        other[n] = items[left]
                        left += 1
                    else:
                        other[n] = items[right]
                        right += 1
                begin = end
            items, other = other, items
            width *= 2
        return items
