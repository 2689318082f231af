"""Repair: a new file with every block that could be read, the old one untouched."""

from __future__ import annotations

import gzip
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.capture import capture_builder as build
from tests.capture.conftest import streams

from polymux.capture import PcapngWriter, index_file, read_sessions, recover, repair
from polymux.capture.io.sources import PlainSource
from polymux.core.errors import CaptureError

PACKETS = build.talk(*[(n % 2, bytes([65 + n]) * 50) for n in range(12)])
DATA = build.pcapng(PACKETS)
HEAD = len(build.section() + build.interface())


@pytest.mark.parametrize("make", [build.pcapng, build.pcap])
def test_a_torn_tail_is_cut_off(
    write: Callable[..., str], tmp_path: Path, make: Callable[..., bytes]
) -> None:
    data = make(PACKETS)
    target = str(tmp_path / "repaired")
    result = repair(write(data[:-7]), target)
    summary = index_file(target).summary
    assert (summary.status, summary.packets) == ("whole", len(PACKETS) - 1)
    assert result.packets == len(PACKETS) - 1
    assert result.bytes_kept + result.bytes_dropped == len(data) - 7
    assert Path(target).read_bytes() == data[: result.bytes_kept]
    assert not Path(target + ".part").exists()


def test_a_damaged_length_costs_its_own_block_only(
    write: Callable[..., str], tmp_path: Path
) -> None:
    for n in random.Random(5).sample(range(1, len(PACKETS) - 1), 6):
        place = HEAD + sum(len(build.enhanced(packet)) for packet in PACKETS[:n])
        broken = bytearray(DATA)
        broken[place + 6] ^= 0x40
        target = str(tmp_path / f"repaired-{n}")
        result = repair(write(bytes(broken)), target)
        assert (result.packets, result.resumed) == (len(PACKETS) - 1, 1)
        assert result.bytes_dropped == len(build.enhanced(PACKETS[n]))
        assert index_file(target).summary.status == "whole"


def test_a_whole_capture_is_copied_as_it_is(write: Callable[..., str], tmp_path: Path) -> None:
    target = tmp_path / "repaired"
    result = repair(write(DATA), str(target))
    assert target.read_bytes() == DATA
    assert (result.bytes_dropped, result.resumed) == (0, 0)


def test_a_torn_compressed_capture_is_written_plain(
    write: Callable[..., str], tmp_path: Path
) -> None:
    target = str(tmp_path / "repaired")
    repair(write(gzip.compress(DATA + DATA[HEAD:])[:-9], "torn.gz"), target)
    (session,) = read_sessions([target])
    assert len(streams(session)[0]) == 300


def test_zeros_after_a_power_loss_are_left_out(write: Callable[..., str], tmp_path: Path) -> None:
    target = tmp_path / "repaired"
    result = repair(write(DATA + bytes(10_000)), str(target))
    assert target.read_bytes() == DATA
    assert result.bytes_dropped == 10_000


@pytest.mark.parametrize("near", [512, 512 + 4096, 512 + 4096 + 32768, 1 << 20])
def test_reading_goes_on_behind_damage_of_any_length(
    write: Callable[..., str], tmp_path: Path, near: int
) -> None:
    for size in range(near - 24, near + 28, 4):
        target = tmp_path / f"repaired-{size}"
        result = repair(write(DATA + bytes(size) + DATA[HEAD:]), str(target))
        assert (result.bytes_dropped, result.resumed) == (size, 1)
        assert target.read_bytes() == DATA + DATA[HEAD:]


@pytest.mark.parametrize("order", ["<", ">"])
def test_large_blocks_that_nobody_knows_are_kept(
    write: Callable[..., str], tmp_path: Path, order: str
) -> None:
    """The second section may have its bytes in another order."""
    section = build.section("x" * 60_000, order) + build.block(0xBAD, bytes(900_000), order)
    data = DATA + section + build.interface(order=order) + build.block(0xBAD, b"", order)
    target = tmp_path / "repaired"
    result = repair(write(data), str(target))
    assert target.read_bytes() == data
    assert (result.bytes_dropped, result.resumed) == (0, 0)


@pytest.mark.parametrize(
    ("damage", "behind"),
    [
        (struct.pack("<III", 1, 12, 12), 100_000),  # an interface must be longer
        (build.block(5, b"") * 2 + struct.pack("<II", 6, 4 << 20), 5 << 20),  # other lengths differ
        (build.block(5, b"") * 2 + struct.pack("<II", 6, 4 << 20), 1 << 20),  # beyond the end
    ],
    ids=["short", "long", "torn"],
)
def test_many_damaged_places_are_not_each_read_with_all_that_follows(
    write: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: bytes,
    behind: int,
) -> None:
    data = DATA + damage * 400 + bytes(behind)
    byte_count = 0
    plain = PlainSource.window

    def counting(source: PlainSource, offset: int, size: int) -> bytes:
        nonlocal byte_count
        found = plain(source, offset, size)
        byte_count += len(found)
        return found

    monkeypatch.setattr(PlainSource, "window", counting)
    result = repair(write(data), str(tmp_path / "repaired"))
    assert result.packets == len(PACKETS)
    assert result.resumed >= 398
    assert byte_count < 5 * len(data) + 400 * 3000


def test_what_cannot_be_repaired_is_refused(write: Callable[..., str], tmp_path: Path) -> None:
    path = write(DATA)
    with pytest.raises(CaptureError, match="exists already"):
        repair(path, path)
    with pytest.raises(CaptureError, match="not a capture"):
        repair(write(b"no capture " * 10, "text"), str(tmp_path / "out"))
    with pytest.raises(CaptureError, match="No such file"):
        repair(str(tmp_path / "missing"), str(tmp_path / "out"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["capture.pcapng", "text"]


@pytest.mark.parametrize("cut", [1, 7, 100, 130])
def test_a_recording_left_behind_is_published_without_its_torn_block(
    tmp_path: Path, cut: int
) -> None:
    part = tmp_path / "tap.pcapng.part"
    part.write_bytes(DATA[:-cut])
    assert recover(str(part)) == str(tmp_path / "tap.pcapng")
    assert [entry.name for entry in tmp_path.iterdir()] == ["tap.pcapng"]
    summary = index_file(str(tmp_path / "tap.pcapng")).summary
    assert (summary.status, summary.packets) == ("whole", len(PACKETS) - (1 if cut < 90 else 2))


def test_a_recording_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    writer = PcapngWriter(str(tmp_path / "tap.pcapng"))
    with pytest.raises(CaptureError, match="still being written"):
        recover(str(tmp_path / "tap.pcapng.part"))
    writer.packet(build.START, [b"x"])
    assert index_file(writer.close()).summary.packets == 1


def test_recovery_refuses_what_it_cannot_vouch_for(tmp_path: Path) -> None:
    part = tmp_path / "tap.pcapng.part"
    cases = [(b"rubbish " * 9, "not a capture"), (DATA + bytes(99), "repair"), (b"", "no complete")]
    for data, word in cases:
        part.write_bytes(data)
        with pytest.raises(CaptureError, match=word):
            recover(str(part))
        assert part.read_bytes() == data
    (tmp_path / "tap.pcapng").write_bytes(DATA)
    with pytest.raises(CaptureError, match="exists already"):
        recover(str(part))
    with pytest.raises(CaptureError, match="end in"):
        recover(str(tmp_path / "tap.pcapng"))
