"""`polymux record --processes`, and what several recorders need to know of each other."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.record.record_process import polymux as run
from tests.record.test_audit_log import events
from tests.record.test_shared_directory import die
from tests.running_command import Running

import polymux
from polymux.capture import RotatingWriter, TcpConnectionWriter
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import PacketBurst
from polymux.cli.support.peer_io import open_audit_log
from polymux.live.one_of import OneOf
from polymux.record import AuditLog, recover_partial_captures
from polymux.record.disk_quota import FolderUse, QuotaWriter, shared_count_file
from polymux.record.made_up_ports import MadeUpPorts
from polymux.record.process_files import path_of_process, paths_of_all


async def echo(stream: polymux.Stream) -> None:
    async for chunk in stream:
        await stream.send(chunk)
    await stream.end()


async def ask(url: str) -> None:
    async with polymux.connect(url, protocol="mplex") as session:
        stream = await session.open("a stream")
        await stream.send(b"hello")
        await stream.end()
        assert await stream.receive_all() == b"hello"


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "unix://{folder}/proxy"])
async def test_all_sessions_are_in_the_captures_of_all_processes(
    listen: str, tmp_path: Path
) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    async with polymux.serve(
        lambda session: session.serve_streams(echo), "tcp://127.0.0.1:0", protocol="mplex"
    ) as server:
        with Running(
            "record", listen.format(folder=tmp_path), server.url, "-o", str(folder / "day.pcapng"),
            "--protocol", "mplex", "--processes", "2",
        ) as recording:  # fmt: skip
            await asyncio.gather(*(ask(recording.url) for _ in range(12)))
            await asyncio.to_thread(recording.kill_worker)
            await asyncio.gather(*(ask(recording.url) for _ in range(12)))
            assert await asyncio.to_thread(recording.stop) == 0
    assert "day-p*.pcapng" in recording.err
    code, out, _ = await run("ls", str(folder))
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    sessions = [row for row in rows if row["table"] == "sessions"]
    assert [row["ending"] for row in sessions] == ["clean"] * 24
    assert sum(row["payload_bytes_dialer"] for row in sessions) == 24 * 5


@given(st.integers(0, 1 << 40), st.integers(1, 64))
def test_shares_add_up_to_the_whole_and_differ_by_one_at_most(total: int, count: int) -> None:
    shares = [OneOf(index, count).share(total) for index in range(count)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


@given(st.integers(1, 64))
def test_no_two_processes_make_up_the_same_port(count: int) -> None:
    processes = [MadeUpPorts(OneOf(index, count)) for index in range(count)]
    taken = [ports.take() for ports in processes for _ in range(20)]
    assert len(set(taken)) == len(taken)


@pytest.mark.parametrize("count", [1, 7, 64])
def test_made_up_ports_are_valid_and_come_back_after_as_many_as_there_are(count: int) -> None:
    for index in (0, count - 1):
        ports = MadeUpPorts(OneOf(index, count))
        period = 60_000 // count
        taken = [ports.take() for _ in range(period + 1)]
        assert taken[0] == taken[-1]
        assert len(set(taken)) == period
        assert 1024 < min(taken) <= max(taken) < 65_536


def test_several_writers_of_one_audit_log_lose_no_line_and_keep_to_its_bound(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    logs = [AuditLog(path, max_bytes=2000, process=number) for number in range(3)]
    lines = []
    for number in range(60):
        before = path.read_bytes()
        logs[number % 3].refused(f"192.0.2.1:{number}", "x")
        after = path.read_bytes()
        lines.append(after.removeprefix(before) if after.startswith(before) else after)
        assert all(entry.stat().st_size <= 2000 for entry in tmp_path.iterdir())
    for log in logs:
        assert log.suppressed == 0
        log.close()
    rows = [json.loads(line) for line in lines]
    assert [row["peer"] for row in rows] == [f"192.0.2.1:{number}" for number in range(60)]
    assert [row["process"] for row in rows] == [number % 3 for number in range(60)]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]


def test_processes_divide_the_rate_of_an_audit_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with open_audit_log(str(path), OneOf(0, 4)) as audit:
        assert audit is not None
        for number in range(1000):
            audit.refused(f"192.0.2.1:{number}", "x")
        assert audit.suppressed > 300
    assert 500 <= len(events(path)) < 700  # a quarter of what one process may write at once


def test_an_audit_log_that_another_program_has_renamed_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        audit.refused("first", "x")
        path.rename(tmp_path / "old")
        audit.refused("second", "x")
    assert [event["peer"] for event in events(tmp_path / "old")] == ["first"]
    assert [event["peer"] for event in events(path)] == ["second"]


def test_of_several_writers_the_one_that_makes_room_keeps_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    one, other = AuditLog(path, max_bytes=300), AuditLog(path, max_bytes=300)
    write = os.write
    with ThreadPoolExecutor(1) as worker:
        second: list[Future[None]] = []

        def write_late(descriptor: int, line: bytes) -> int:
            """The other one has time to write as well, after the size was looked at."""
            if not second:
                second.append(worker.submit(other.refused, "other", "y" * 120))
                wait(second, 0.3)
            return write(descriptor, line)

        monkeypatch.setattr(os, "write", write_late)
        one.refused("one", "x" * 120)
        second[0].result(60)
    assert [event["peer"] for event in events(tmp_path / "audit.jsonl.1")] == ["one"]
    assert [event["peer"] for event in events(path)] == ["other"]
    one.close()
    other.close()


# Holds the lock of the common count until its input ends.
HOLDING = """
import sys
from polymux.record.disk_quota import FolderUse
with FolderUse(".", int(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_no_process_looks_at_the_common_count_while_another_one_writes(tmp_path: Path) -> None:
    count = shared_count_file()
    with (
        subprocess.Popen(
            [sys.executable, "-c", HOLDING, str(count)],
            pass_fds=[count], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as other,
        RotatingWriter(tmp_path / "x.pcapng", numbered=True, sync="none") as writer,
        ThreadPoolExecutor(1) as worker,
    ):  # fmt: skip
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        quota = QuotaWriter(writer, FolderUse(str(tmp_path), count), 20_000)
        peers = ("192.0.2.1", 4000), ("198.51.100.2", 9000)
        writing = worker.submit(TcpConnectionWriter, Sink(quota), *peers, 1)
        assert wait([writing], 0.3).not_done
        other.stdin.close()
        writing.result(60)
        assert writer.packets
    os.close(count)


def test_what_the_disk_has_no_space_for_does_not_count(tmp_path: Path) -> None:
    class Full(RotatingWriter):
        def offer_burst(self, burst: PacketBurst) -> None:
            raise DiskFull("no space")

    use = FolderUse(str(tmp_path))
    with Full(tmp_path / "x.pcapng", sync="none") as writer:
        before = use.current()
        sink = Sink(QuotaWriter(writer, use, 20_000))
        with pytest.raises(DiskFull):
            TcpConnectionWriter(sink, ("192.0.2.1", 4000), ("198.51.100.2", 9000), 1)
        assert use.current() == before


class Sink:
    """Where a connection is written, below a limit on the disk space."""

    comment_epoch = 1

    def __init__(self, quota: QuotaWriter) -> None:
        self.quota = quota

    def burst(self, burst: PacketBurst) -> None:
        self.quota.offer_burst(burst)


def test_writers_that_count_together_have_one_limit(tmp_path: Path) -> None:
    folder = tmp_path / "captures"
    folder.mkdir()
    count = shared_count_file()
    writers, connections = [], []
    for index in range(2):
        base = path_of_process(folder / "x.pcapng", OneOf(index, 2))
        writers.append(RotatingWriter(base, numbered=True, sync="none"))
        quota = QuotaWriter(writers[-1], FolderUse(str(folder), count), 20_000)
        peers = ("192.0.2.1", 4000 + index), ("198.51.100.2", 9000)
        connections.append(TcpConnectionWriter(Sink(quota), *peers, 1))
    written, full = 0, set[int]()
    while len(full) < 2:
        for index, connection in enumerate(connections):
            try:
                connection.data(0, bytes(1000), 1)
                written += 1000
            except DiskFull:
                full.add(index)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert 18_000 < size <= 20_000
    assert 16_000 <= written < size
    for writer in writers:
        writer.discard()
    os.close(count)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it is a file in a directory")
def test_the_common_count_needs_no_space_on_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # what is full cannot be mapped either
    count = shared_count_file()
    uses = [FolderUse(str(tmp_path), count) for _ in range(2)]
    assert uses[0].current() == 0
    uses[0].add(5)
    assert uses[1].current() == 5
    os.close(count)


def test_what_killed_processes_have_left_is_published_by_the_name_of_the_recording(
    tmp_path: Path,
) -> None:
    base = tmp_path / "day.pcapng"
    for index in range(3):
        writer = RotatingWriter(path_of_process(base, OneOf(index, 3)), numbered=True)
        writer.packet(1, [b"x"])
        die(writer.current_writer)
    numbers = (1, 2, 3)
    published = [str(tmp_path / f"day-p{number}-00001.pcapng") for number in numbers]
    assert recover_partial_captures(base).published == published
    rotations = [str(tmp_path / f"day-p{number}.pcapng") for number in numbers]
    assert paths_of_all(base) == [str(base), *rotations]
