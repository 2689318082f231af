"""File rotation under load, and a recorder killed while it publishes a file."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path

import pytest
from tests.record.captured_bytes import by_number, talks
from tests.record.logging_peers import Room
from tests.record.record_process import Child, strace

from polymux.capture import index_file, index_range, plan_ranges


async def consume(folder: Path, seen: set[str], enough: int) -> None:
    """Read published names only, as soon as they appear; each must be complete at once."""
    async with asyncio.timeout(80):
        while len(seen) < enough:
            for name in os.listdir(folder):
                if name.endswith(".pcapng") and name not in seen:
                    seen.add(name)
                    assert index_file(str(folder / name)).summary.status == "whole"
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("bound", [("--rotate-size", "300k"), ("--rotate-time", "0.2")], ids=str)
async def test_published_files_are_complete_and_sessions_span_them(
    tmp_path: Path, bound: tuple[str, str]
) -> None:
    room = Room()
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    out = str(tmp_path / "tap.pcapng")
    arguments = ("tcp://127.0.0.1:0", upstream, "-o", out, "--protocol", "mplex", "--index")
    seen: set[str] = set()
    async with Child(*arguments, *bound) as tap:
        await room.dial_all(tap.port)
        await consume(tmp_path, seen, 4)
        await room.settle()
        assert await tap.stop() == 0, tap.text
    await room.close()
    files = sorted(tmp_path.glob("*.pcapng"))
    assert {file.name for file in files} >= seen
    assert [file.name for file in files] == [f"tap-{n + 1:05}.pcapng" for n in range(len(files))]
    assert not list(tmp_path.glob("*.part"))
    assert sorted(tmp_path.glob("*.idx")) == [Path(f"{file}.idx") for file in files]
    assert all(file.name in tap.text for file in files)
    for number, talk in by_number(*files).items():
        dialer, acceptor = room.dialers[number], room.acceptors[number]
        assert talk.raw_bytes == (bytes(dialer.sent), bytes(acceptor.sent))
    spans = [{talk.dialer for talk in talks(file)} for file in files]
    assert any(one & other for one, other in itertools.pairwise(spans))
    for file in files:
        assert {talk.protocol for talk in talks(file)} <= {"mplex"}
        ranges = [
            index_range(str(file), span).summary for span in plan_ranges(str(file), target=100_000)
        ]
        assert sum(part.packets for part in ranges) == index_file(str(file)).summary.packets


async def test_an_idle_proxy_publishes_what_it_has_and_no_empty_files(tmp_path: Path) -> None:
    room = Room()
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    arguments = ("-o", str(tmp_path / "tap.pcapng"), "--rotate-time", "0.2")
    async with Child("tcp://127.0.0.1:0", upstream, *arguments) as tap:
        await asyncio.sleep(0.5)
        assert [entry.name for entry in tmp_path.iterdir()] == ["tap-00001.pcapng.part"]
        await room.dial_all(tap.port, 1)
        await room.settle()
        while not (tmp_path / "tap-00001.pcapng").exists():
            await asyncio.sleep(0.02)
        published = -1
        while published != len(list(tmp_path.glob("*.pcapng"))):  # until no more files come
            published = len(list(tmp_path.glob("*.pcapng")))
            await asyncio.sleep(0.5)
        assert len(list(tmp_path.iterdir())) <= published + 1
        assert await tap.stop() == 0
    await room.close()
    assert all(index_file(str(file)).summary.packets for file in tmp_path.iterdir())


# Where in publishing the recorder is killed: before the file is cut to size, before its sync,
# before it gets its name, before the directory is synced, before the other name goes; and before a
# file gets its head.
PLACES = [
    "ftruncate:signal=KILL:when=1",
    "ftruncate:signal=KILL:when=2",
    "fsync:signal=KILL:when=1",
    "link,linkat:signal=KILL:when=1",
    "link,linkat:signal=KILL:when=2",
    "unlink,unlinkat:signal=KILL:when=1",
    "fsync:signal=KILL:when=2",
    "flock:signal=KILL:when=2",
    "pwritev,pwritev2:signal=KILL:when=40",
]


@pytest.mark.parametrize("place", PLACES)
async def test_a_recorder_killed_while_it_publishes_loses_nothing_and_repeats_nothing(
    tmp_path: Path, place: str
) -> None:
    room = Room()
    upstream = f"tcp://127.0.0.1:{await room.listen()}"
    out = str(tmp_path / "tap.pcapng")
    arguments = ("tcp://127.0.0.1:0", upstream, "-o", out, "--rotate-size", "100k", "--sync")
    async with Child(*arguments, "none", before=strace(place)) as tap:
        await room.dial_all(tap.port)
        assert await tap.ended() != 0
    await room.close()
    assert list(tmp_path.glob("*.part"))
    async with Child(*arguments, "none") as tap:
        assert await tap.stop() == 0
    assert "left behind by a recorder that was killed" in tap.text
    files = sorted(tmp_path.iterdir())
    assert all(file.suffix == ".pcapng" for file in files)
    recorded = by_number(*files)
    assert set(recorded) == set(room.dialers)
    for number, talk in recorded.items():
        dialer, acceptor = room.dialers[number], room.acceptors[number]
        assert talk.gaps == (0, 0)
        assert talk.raw_bytes[0].startswith(acceptor.received)
        assert talk.raw_bytes[1].startswith(dialer.received)
        assert dialer.sent.startswith(talk.raw_bytes[0])
        assert acceptor.sent.startswith(talk.raw_bytes[1])
    # And once more: there is nothing left to do.
    async with Child(*arguments, "none") as tap:
        assert await tap.stop() == 0
    assert "left behind" not in tap.text
