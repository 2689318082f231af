"""Truncated, damaged and hostile files are reported with the offset and never crash."""

from __future__ import annotations

import random
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture import capture_builder as build
from tests.capture.capture_builder import ALICE, BOB, Packet
from tests.capture.hostile_files import CORPUS, GOOD, HEAD, Lie

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    FlowRefs,
    index_file,
    read_sessions,
    sessions_of,
)
from polymux.capture.packets.decoder import FlowTable


class MemorySource:
    """A capture in memory."""

    compression = ""
    decompression_error = ""

    def __init__(self, data: bytes) -> None:
        self.path = self.name = "memory"
        self.data = data

    def window(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def read_at(self, offset: int, size: int) -> bytes:
        data = self.data[offset : offset + size]
        assert len(data) == size
        return data

    def close(self) -> None: ...


def index(data: bytes, limits: CaptureLimits | None = None) -> FileIndex:
    return index_file("memory", source=MemorySource(data), limits=limits)


def read_all(data: bytes) -> FileIndex:
    """Index, reassemble and read everything; nothing may raise."""
    found = index(data)
    flows: dict[bytes, list[FlowRefs]] = {}
    for row in found.rows:
        flows.setdefault(row.flow, []).append(row)
    for rows in flows.values():
        for session in sessions_of(rows, lambda _: MemorySource(data).read_at):
            size = 0
            for batch in session.batches():
                size += len(batch.data)
            assert size == sum(session.reassembled_bytes)
    return found


def check_every_cut(head: list[bytes], packets: list[bytes]) -> None:
    """Truncate after the magic number and at every byte after it: only complete blocks count."""
    data = b"".join(head + packets)
    ends = [0]
    for block in head + packets:
        ends.append(ends[-1] + len(block))
    whole = 0
    for size in range(4, len(data) + 1):
        while whole + 1 < len(ends) and ends[whole + 1] <= size:
            whole += 1
        summary = index(data[:size]).summary
        assert summary.packets == max(whole - len(head), 0)
        assert summary.bytes == size
        if size == ends[whole]:
            assert (summary.status, summary.error_offset) == ("whole", None)
        else:
            assert (summary.status, summary.error_offset) == ("truncated", ends[whole])


def test_a_capture_of_64_kib_cut_at_every_byte_says_where() -> None:
    frames = [build.frame(ALICE, BOB, 1 + n * 32700, payload=bytes(32700)) for n in range(2)]
    blocks = [build.enhanced(Packet(build.START + n, data)) for n, data in enumerate(frames)]
    assert sum(map(len, blocks)) >= 65536
    check_every_cut([build.section(), build.interface()], blocks)


def test_small_captures_cut_at_every_byte_say_where() -> None:
    talk = build.talk((0, b"hello"), (1, b"welcome"))
    blocks = [build.enhanced(packet) for packet in talk]
    check_every_cut([build.section(), build.interface(), build.block(5, b"statistics")], blocks)
    classic = build.pcap([])
    check_every_cut([classic], [build.pcap([packet])[len(classic) :] for packet in talk])


def test_cuts_are_counted_like_tshark_counts_them(
    tshark: Callable[..., str], tmp_path: Path
) -> None:
    data = build.pcapng(build.talk((0, b"hello"), (1, b"welcome"), (0, b"x" * 700)))
    path = tmp_path / "cut.pcapng"
    for size in random.Random(7).sample(range(60, len(data)), 5):
        path.write_bytes(data[:size])
        theirs = len(tshark(path, "-T", "fields", "-e", "frame.number").split())
        assert index_file(str(path)).summary.packets == theirs


@pytest.mark.parametrize("lie", CORPUS, ids=lambda lie: lie.name)
def test_a_hostile_file_is_reported_and_read_as_far_as_it_goes(lie: Lie) -> None:
    began = time.process_time()
    summary = read_all(lie.data).summary
    assert summary.status == lie.status
    assert lie.word in (summary.error or "")
    assert summary.packets == lie.packets
    assert summary.tcp_packets + summary.other_packets == summary.packets
    if lie.offset is not None:
        assert summary.error_offset == lie.offset
    if lie.status == "damaged":
        assert summary.error_offset is not None
    assert time.process_time() - began < 1 + len(lie.data) / 1e6


def test_the_hostile_corpus_is_large_enough() -> None:
    assert len({lie.name for lie in CORPUS}) == len(CORPUS) >= 60


def test_a_million_interfaces_are_refused_at_the_limit() -> None:
    data = build.section() + build.interface() * 3000
    summary = index(data, CaptureLimits(max_interfaces=2000)).summary
    assert summary.status == "damaged"
    assert "limit max_interfaces=2000" in (summary.error or "")
    assert summary.error_offset == len(build.section()) + 2000 * len(build.interface())


def test_flows_beyond_the_limit_are_counted_as_other() -> None:
    ends = [build.End("192.0.2.1", 1000 + n) for n in range(50)]
    packets = [Packet(n, build.frame(end, BOB, 1, payload=b"x")) for n, end in enumerate(ends)]
    found = index(build.pcapng(packets), CaptureLimits(max_flows=20))
    assert len(found.rows) == 20
    assert (found.summary.tcp_packets, found.summary.other_packets) == (20, 30)
    assert "limit max_flows=20" in (found.summary.error or "")


def test_more_comments_than_are_remembered_do_no_harm() -> None:
    packets = build.talk((0, b"x"))
    blocks = [
        build.enhanced(Packet(p.at, p.data, comment=f"polymux: protocol=p{n}-{k}"))
        for n in range(30)
        for k, p in enumerate(packets)
    ]
    found = index(build.section() + build.interface() + b"".join(blocks))
    assert found.summary.status == "whole"
    assert all(len(row.hints) <= 61 for row in found.rows)


def test_many_comments_of_one_packet_are_kept_only_up_to_the_length_of_a_hint() -> None:
    said = [b"polymux: protocol=mplex", *[b"polymux:"] * 5000, b"polymux: vantage=dialer"]
    options = build.options(*[(1, text) for text in said])
    head = struct.pack("<IIIII", 0, 0, 0, len(GOOD), len(GOOD))
    packet = build.block(6, head + GOOD + bytes(-len(GOOD) % 4) + options)
    (row,) = index(HEAD + packet).rows
    lines = row.hints[1].split("\n")
    assert lines == [text.decode() for text in said[: len(lines)]]
    assert 1000 < len(row.hints[1]) <= 1024


@pytest.mark.parametrize(
    "flows",
    [
        [(n, n ^ 5, 1 << 60, 7) for n in range(4096)],
        [(0, (n % 64 - 32) << 58, 1, (n // 64 - 32) << 58) for n in range(4096)],
    ],
    ids=["two halves of one XOR", "top bits that add up alike"],
)
def test_flows_with_crafted_addresses_do_not_collide(
    flows: list[tuple[int, int, int, int]],
) -> None:
    def longest_crowd() -> int:
        table = FlowTable(1_000_000)
        for _ in range(2):
            numbers = [table.direction_index(*flow, 1000 << 16 | 80) for flow in flows]
            assert numbers == [2 * n for n in range(len(flows))]
        taken = "".join("x" if table.slots[n] >= 0 else " " for n in range(table.mask + 1))
        return max(map(len, taken.split()))

    # The hash is seeded at random: one bad seed in some thousands is expected, three are not.
    assert min(longest_crowd() for _ in range(3)) < 500


def test_thousands_of_flipped_bits_never_crash() -> None:
    chance = random.Random(20)
    talk = build.talk((0, b"hello" * 20), (1, b"welcome" * 9), (0, b"x"))
    captures = [build.pcapng(talk, comment="polymux: protocol=mplex"), build.pcap(talk)]
    for _ in range(1500):
        for data in captures:
            flipped = bytearray(data)
            for _ in range(chance.choice([1, 1, 1, 5])):
                flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            summary = read_all(bytes(flipped)).summary
            assert summary.status in ("whole", "truncated", "damaged", "unreadable")
            assert (summary.error is None) == (summary.status == "whole")
            assert (summary.error_offset is None) == (summary.status == "whole")


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=600), start=st.sampled_from([b"", build.section(), build.pcap([])]))
def test_any_bytes_are_read_without_a_crash(data: bytes, start: bytes) -> None:
    read_all(start + data)


@settings(max_examples=100, deadline=None)
@given(kinds=st.lists(st.tuples(st.sampled_from([1, 2, 3, 6, 5]), st.binary(max_size=120))))
def test_any_chain_of_well_framed_blocks_is_read_to_its_end(kinds: list[tuple[int, bytes]]) -> None:
    data = build.section() + build.interface() + b"".join(build.block(k, b) for k, b in kinds)
    summary = read_all(data).summary
    # only an interface block that is too short ends the scan
    assert summary.bytes == len(data) or "an interface block of" in (summary.error or "")


def test_memory_stays_small_behind_an_endless_hole(tmp_path: Path) -> None:
    """One byte never arrives: what is buffered behind it is bounded."""
    frames = [build.frame(ALICE, BOB, 2 + n, payload=b"x") for n in range(30000)]
    path = tmp_path / "hole.pcap"
    path.write_bytes(build.pcap([Packet(build.START, data) for data in frames]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    limits = CaptureLimits(max_out_of_order_segments=1000)
    with read_sessions([str(path)], limits=limits) as reading:
        (session,) = reading
        assert sum(batch.count for batch in session.batches()) >= 30000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_missing_file_and_a_directory_are_unreadable(tmp_path: Path) -> None:
    missing = index_file(str(tmp_path / "none.pcap")).summary
    assert (missing.status, missing.format) == ("unreadable", None)
    assert "No such file" in (missing.error or "")
    assert "directory" in (index_file(str(tmp_path)).summary.error or "")
    with read_sessions([str(tmp_path / "none.pcap")]) as reading:
        assert [f.status for f in reading.files] == ["unreadable"]
        assert list(reading) == []
