"""A disk that is full, fails or is slow: traffic continues, and missing packets are counted."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.record.captured_bytes import by_number
from tests.record.logging_peers import Room
from tests.record.record_process import Child, strace

from polymux.capture import index_file, recover

HEADERS = 54  # Ethernet, IPv4 and TCP
MISSED = re.compile(r"(\d+) packets \((\d+) bytes\) were not written: (.*)")
GAP = re.compile(rb"polymux: gap packets=(\d+) bytes=(\d+)")


def compare_with_gaps(room: Room, out: Path) -> int:
    """What is recorded is what was sent, but for gaps; returns the bytes missing."""
    recorded = by_number(out)
    assert set(recorded) == set(room.dialers)
    for number, talk in recorded.items():
        sides = (room.dialers[number], room.acceptors[number])
        for data, side in zip(talk.raw_bytes, sides, strict=True):
            assert len(data) == len(side.sent)
            assert all(a == b or a == ord("?") for a, b in zip(data, side.sent, strict=True))
    return sum(sum(talk.gaps) for talk in recorded.values())


def check_counts(room: Room, out: Path, text: str) -> int:
    """The line, the gap records in the file and the gaps themselves say the same."""
    (said,) = MISSED.findall(text)
    packets, size = int(said[0]), int(said[1])
    written = [(int(p), int(o)) for p, o in GAP.findall(out.read_bytes())]
    assert (sum(p for p, _ in written), sum(o for _, o in written)) == (packets, size)
    assert compare_with_gaps(room, out) == size - HEADERS * packets
    return packets


def packets_of_failed_calls(log: Path) -> list[int]:
    """How many packets each call held that was made to fail.

    A packet without bytes is one part. Each with bytes is two, its headers and them, and behind
    the last comes one more. Before the first of a call there may be the record of a gap.
    """
    parts = re.findall(r"\], (\d+), \d+[^\n]*\) += -1 E[^\n]*INJECTED", log.read_text())
    return [max(1, (int(count) - 1) // 2) for count in parts]


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
async def test_traffic_flows_on_past_a_failing_disk_and_gaps_are_counted_exactly(
    tmp_path: Path, error: str
) -> None:
    room = Room()
    out = tmp_path / "tap.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    # The head and three greetings are some 16 calls; later, 41 fail.
    log = tmp_path / "calls"
    before = strace(f"pwritev,pwritev2:error={error}:when=30..70", log=str(log))
    async with Child("tcp://127.0.0.1:0", upstream, "-o", str(out), before=before) as tap:
        await room.dial_all(tap.port)
        while len(packets_of_failed_calls(log)) < 41:
            await asyncio.sleep(0.02)
        await room.settle()
        await tap.said("traffic continues")
        code = await tap.stop()
    await room.close()
    assert code == 5
    failed = packets_of_failed_calls(log)
    assert len(failed) == 41
    assert check_counts(room, out, tap.text) == sum(failed)
    assert MISSED.findall(tap.text)[0][2] == os.strerror(28 if error == "ENOSPC" else 5)


async def test_with_on_full_block_traffic_waits_and_nothing_is_missing(tmp_path: Path) -> None:
    room = Room()
    out = tmp_path / "tap.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    before = strace("pwritev,pwritev2:error=ENOSPC:when=30..36")
    arguments = ("tcp://127.0.0.1:0", upstream, "-o", str(out), "--on-full", "block")
    async with Child(*arguments, before=before) as tap:
        await room.dial_all(tap.port)
        await tap.said("traffic waits")
        await tap.said("traffic continues")
        await room.settle()
        code = await tap.stop()
    await room.close()
    assert code == 0, tap.text
    assert compare_with_gaps(room, out) == 0
    assert not GAP.search(out.read_bytes())


async def test_a_proxy_that_waits_for_the_disk_forwards_nothing_and_can_be_stopped(
    tmp_path: Path,
) -> None:
    room = Room()
    out = tmp_path / "tap.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    before = strace("pwritev,pwritev2:error=ENOSPC:when=30+")
    arguments = ("tcp://127.0.0.1:0", upstream, "-o", str(out), "--on-full", "block")
    async with Child(*arguments, before=before) as tap:
        await room.dial_all(tap.port)
        await tap.said("traffic waits")
        await asyncio.sleep(0.3)
        code = await tap.stop()
    await room.close()
    assert code == 5
    assert "neither recorded nor forwarded" in tap.text
    for number, talk in by_number(out).items():
        assert talk.raw_bytes[0].startswith(room.acceptors[number].received)
        assert talk.raw_bytes[1].startswith(room.dialers[number].received)


async def test_a_failed_sync_is_exit_code_5_and_publishes_nothing(tmp_path: Path) -> None:
    room = Room()
    out = tmp_path / "tap.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    before = strace("fsync:error=EIO:when=1")  # any later one would succeed
    arguments = ("tcp://127.0.0.1:0", upstream, "-o", str(out), "--sync", "0.05")
    async with Child(*arguments, before=before) as tap:
        await room.dial_all(tap.port)
        await asyncio.sleep(0.3)
        await room.settle()
        code = await tap.stop()
    await room.close()
    assert code == 5
    assert f"{out}.part: is not published: it could not be synced" in tap.text
    assert [entry.name for entry in tmp_path.iterdir()] == ["tap.pcapng.part"]
    recover(f"{out}.part")
    assert compare_with_gaps(room, out) == 0


async def test_with_rotation_only_the_file_that_failed_to_sync_stays_unpublished(
    tmp_path: Path,
) -> None:
    room = Room()
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    # Each file is two syncs: itself and its directory. The second file's own fails.
    before = strace("fsync:error=EIO:when=3")
    arguments = ("-o", str(tmp_path / "tap.pcapng"), "--rotate-size", "200k", "--sync", "none")
    async with Child("tcp://127.0.0.1:0", upstream, *arguments, before=before) as tap:
        await room.dial_all(tap.port)
        while len(os.listdir(tmp_path)) < 4:
            await asyncio.sleep(0.02)
        await room.settle()
        code = await tap.stop()
    await room.close()
    assert code == 5
    assert "tap-00002.pcapng.part: is not published" in tap.text
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names[:3] == ["tap-00001.pcapng", "tap-00002.pcapng.part", "tap-00003.pcapng"]
    assert all(index_file(str(tmp_path / name)).summary.status == "whole" for name in names)


async def test_a_slow_disk_does_not_delay_traffic(tmp_path: Path) -> None:
    room = Room(rest=0.002)
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    before = strace("fsync:delay_enter=3s:when=1")
    arguments = ("-o", str(tmp_path / "tap.pcapng"), "--sync", "0.1")
    async with Child("tcp://127.0.0.1:0", upstream, *arguments, before=before) as tap:
        await room.dial_all(tap.port, 1)
        heard, longest = 0, 0.0
        loop = asyncio.get_running_loop()
        began = last = loop.time()
        while loop.time() - began < 2.8:
            await asyncio.sleep(0.005)
            longest = max(longest, loop.time() - last)
            if len(room.dialers[1].received) > heard:
                heard, last = len(room.dialers[1].received), loop.time()
        await room.settle()
        assert await tap.stop() == 0
    await room.close()
    assert longest < 2, "the sync of 3 s was waited for"


@dataclass
class Small:
    """A place with little room for files, and how to get more."""

    folder: Path
    before: list[str]
    make_room: Callable[[int], None]


def may_mount() -> bool:
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    try:
        return subprocess.run(probe, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.fixture(params=["limit", "tmpfs"] if may_mount() else ["limit"])
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Small]:
    """A limit on the size of files, and where one may mount also a disk that is really full."""
    folder = tmp_path / "small"
    folder.mkdir()
    if request.param == "limit":

        def raise_limit(pid: int) -> None:
            most = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))

        yield Small(folder, ["prlimit", "--fsize=300000:unlimited"], raise_limit)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    try:
        ballast = folder / "ballast"
        ballast.write_bytes(bytes((8 << 20) - 300_000))
        yield Small(folder, [], lambda pid: ballast.unlink())
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_recording_goes_on_once_there_is_room_again(small: Small) -> None:
    room = Room(rest=0.002)
    out = small.folder / "tap.pcapng"
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    async with Child("tcp://127.0.0.1:0", upstream, "-o", str(out), before=small.before) as tap:
        await room.dial_all(tap.port)
        await tap.said("traffic continues")
        small.make_room(tap.process.pid)
        await asyncio.sleep(0.1)
        room.rest = 10
        await asyncio.sleep(0.1)
        room.rest = 0
        await room.settle()
        assert await tap.stop() == 5
    await room.close()
    assert check_counts(room, out, tap.text) > 0
    assert index_file(str(out)).summary.status == "whole"
