"""Rotation: recordings divided into files by size and by age, each complete in itself."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from tests.capture.capture_builder import MS, START
from tests.capture.conftest import streams
from tests.capture.pcapng.test_writer import ACCEPTOR, DIALER, talk

from polymux.capture import (
    RotatingWriter,
    TcpConnectionWriter,
    hint_comment,
    index_file,
    index_range,
    plan_ranges,
    read_sessions,
)
from polymux.capture.pcapng import writer as writing
from polymux.core.errors import CaptureError


def test_two_recorders_in_one_folder_skip_each_others_numbers(tmp_path: Path) -> None:
    path = str(tmp_path / "tap.pcapng")
    first = RotatingWriter(path, max_bytes=10_000, sync="none")
    second = RotatingWriter(path, max_bytes=10_000, sync="none")
    for at in range(50):
        first.packet(at, [bytes(1000)])
    second.packet(1, [bytes(1000)])
    published = first.close() + second.close()
    names = sorted(Path(name).name for name in published)
    assert names == [f"tap-{number:05}.pcapng" for number in range(1, len(names) + 1)]
    assert len(names) > 5
    assert not first.failures
    assert sum(index_file(name).summary.packets for name in published) == 51


def test_files_are_rotated_by_size_and_each_has_its_comments(tmp_path: Path) -> None:
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=2000)
    scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START, comment=hint_comment("mplex"))
    sent = [os.urandom(150) for _ in range(40)]
    for n, data in enumerate(sent):
        scribe.data(0, data, START + n * MS)
    scribe.close(START + 100 * MS)
    names = writer.close()
    assert [Path(name).name for name in names[:3]] == [
        "tap-00001.pcapng",
        "tap-00002.pcapng",
        "tap-00003.pcapng",
    ]
    assert sorted(os.listdir(tmp_path)) == sorted(Path(name).name for name in names)
    assert all(os.path.getsize(name) < 2500 for name in names)
    assert writer.packets == sum(index_file(name).summary.packets for name in names)
    (session,) = read_sessions([str(tmp_path)])
    assert streams(session)[0] == b"".join(sent)
    for name in names:
        (part,) = read_sessions([name])
        assert part.protocol_hint == "mplex"


def test_files_are_rotated_by_age_and_numbered_after_existing_ones(tmp_path: Path) -> None:
    (tmp_path / "tap-00007.pcapng").write_bytes(b"")
    (tmp_path / "tap-00009.pcapng.part").write_bytes(b"")
    (tmp_path / "other-00099.pcapng").write_bytes(b"")
    now = [0.0]
    with RotatingWriter(
        str(tmp_path / "tap.pcapng"), max_seconds=10, clock=lambda: now[0]
    ) as writer:
        for _ in range(5):
            writer.packet(START, [b"x"])
            now[0] += 6
    assert [Path(name).name for name in writer.published] == [
        "tap-00010.pcapng",
        "tap-00011.pcapng",
    ]


def test_without_bounds_there_is_one_file_of_the_name_given(tmp_path: Path) -> None:
    with RotatingWriter(str(tmp_path / "tap.pcapng")) as writer:
        talk(writer, (0, bytes(100_000)))
        writer.rotate()
    assert writer.published == [str(tmp_path / "tap.pcapng")]


def test_if_the_next_file_cannot_be_created_the_current_one_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=500)
    real = os.open

    def refuse(path: str, *arguments: int) -> int:
        if path.endswith(".part"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    talk(writer, *[(0, bytes(100)) for _ in range(10)])
    monkeypatch.setattr(os, "open", real)
    talk(writer, *[(1, bytes(100)) for _ in range(10)], at=START + 1000 * MS)
    names = writer.close()
    assert len(names) > 1
    assert writer.loss.packets == 0
    assert os.strerror(errno.EMFILE) in writer.loss.error
    assert [s.scan_packets().reassembled_bytes for s in read_sessions(names)] == [
        (1000, 0),
        (0, 1000),
    ]


def test_an_idle_recording_with_packets_is_published_when_it_is_old(
    tmp_path: Path,
) -> None:
    now = [0.0]
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_seconds=10, clock=lambda: now[0])
    for _ in range(5):
        now[0] += 11
        writer.tick()
    assert writer.published == []
    writer.packet(START, [b"x"])
    assert len(writer.published) == 1  # it was old enough already
    writer.packet(START, [b"y"])
    now[0] += 11
    writer.tick()
    assert len(writer.published) == 2
    assert len(writer.close()) == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [
        "tap-00001.pcapng",
        "tap-00002.pcapng",
    ]


def test_a_packet_that_is_alone_in_its_file_has_the_comment(tmp_path: Path) -> None:
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=1)
    scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START, comment=hint_comment("mplex"))
    scribe.data(0, b"hello", START)
    names = writer.close()
    assert len(names) == 4
    for name in names:
        (session,) = read_sessions([name])
        assert session.protocol_hint == "mplex"


def test_a_thread_publishes_in_order_while_recording_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync = threading.Event()
    monkeypatch.setattr(os, "fsync", lambda fd: may_sync.wait(5))
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=1000, background=True)
    sent = [bytes([n]) * 200 for n in range(60)]
    scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START)
    for n, data in enumerate(sent):
        scribe.data(0, data, START + n)
    assert writer.published == []
    # At most a few files wait to be published: after that the current file grows.
    assert len(list(tmp_path.iterdir())) <= 5
    assert writer.packets == 63
    may_sync.set()
    names = writer.close()
    assert names == sorted(names)
    assert writer.packets == sum(index_file(name).summary.packets for name in names) == 63
    (session,) = read_sessions(names)
    assert streams(session)[0] == b"".join(sent)


@pytest.mark.parametrize("background", [False, True])
def test_losses_are_counted_over_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=1000, background=background)
    real = os.pwritev
    calls = [0]

    def pwritev(fd: int, parts: list[bytes], offset: int) -> int:
        calls[0] += 1
        if calls[0] % 7 == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    for _ in range(100):
        writer.packet(START, [bytes(100)])
    monkeypatch.setattr(os, "pwritev", real)
    names = writer.close()
    missed = writer.loss
    assert missed.packets + writer.packets == 100
    assert missed.bytes == 100 * missed.packets > 0
    assert missed.error == os.strerror(errno.EIO)
    assert sum(index_file(name).summary.packets for name in names) == writer.packets


def test_an_index_beside_each_file_cuts_it_where_packets_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "MARK_INTERVAL_BYTES", 2000)
    with RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=20_000, index=True) as writer:
        scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START, comment=hint_comment("mplex"))
        for n in range(300):
            scribe.data(n % 2, bytes([n % 256]) * (n + 1), START + n * MS)
    assert len(writer.published) >= 3
    for name in writer.published:
        assert os.path.exists(f"{name}.idx")
        ranges = plan_ranges(name, target=1500)
        assert len(ranges) > 5
        whole = index_file(name)
        parts = [index_range(name, span) for span in ranges]
        assert sum(part.summary.packets for part in parts) == whole.summary.packets
        assert {part.summary.status for part in parts} == {"whole"}
        for direction in (0, 1):
            refs = [row.refs for part in parts for row in part.rows if row.direction == direction]
            assert len(b"".join(refs)) == sum(
                len(row.refs) for row in whole.rows if row.direction == direction
            )


def test_an_index_that_cannot_be_written_is_reported_and_the_file_is_published(
    tmp_path: Path,
) -> None:
    (tmp_path / "tap.pcapng.idx").mkdir()
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), index=True)
    writer.packet(START, [b"x"])
    with pytest.raises(CaptureError, match="idx"):
        writer.close()
    assert writer.published == [str(tmp_path / "tap.pcapng")]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tap.pcapng", "tap.pcapng.idx"]


def test_after_close_no_file_is_started(tmp_path: Path) -> None:
    writer = RotatingWriter(str(tmp_path / "tap.pcapng"), max_bytes=1, background=True)
    writer.packet(START, [b"x"])
    names = writer.close()
    writer.packet(START, [b"too late"])
    writer.tick()
    assert writer.close() == names
    assert [str(entry) for entry in tmp_path.iterdir()] == names
