"""Recordings can be read, by polymux and other tools, whatever the disk does."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.capture.capture_builder import MS, START
from tests.capture.conftest import streams

from polymux.capture import (
    PcapngWriter,
    RotatingWriter,
    TcpConnectionWriter,
    hint_comment,
    index_file,
    read_sessions,
    recover,
)
from polymux.capture.pcapng.writer import DiskFull
from polymux.capture.synthesis.packet_builder import HeaderTemplate, PacketBurst
from polymux.core.errors import CaptureError

DIALER = ("192.0.2.1", 40000)
ACCEPTOR = ("198.51.100.2", 9000)
DIALER6 = ("2001:db8::1", 40000)
ACCEPTOR6 = ("2001:db8::2", 9000)
MESSAGES = ["tcp.checksum.status", "ip.checksum.status", "_ws.malformed", "tcp.analysis.flags"]


def talk(sink: PcapngWriter | RotatingWriter, *lines: tuple[int, bytes], at: int = START) -> None:
    scribe = TcpConnectionWriter(sink, DIALER, ACCEPTOR, at)
    for n, (side, data) in enumerate(lines):
        scribe.data(side, data, at + n * MS)
    scribe.close(at + len(lines) * MS)


@pytest.mark.parametrize("ends", [(DIALER, ACCEPTOR), (DIALER6, ACCEPTOR6)], ids=["ipv4", "ipv6"])
def test_other_tools_find_nothing_wrong_with_what_is_written(
    tmp_path: Path, tshark: Callable[..., str], ends: tuple[tuple[str, int], tuple[str, int]]
) -> None:
    path = tmp_path / "written.pcapng"
    with PcapngWriter(str(path), comment=hint_comment("mplex")) as writer:
        scribe = TcpConnectionWriter(writer, *ends, START + 7, comment="polymux: vantage=middle")
        for n, size in enumerate([0, 1, 2, 3, 1000, 65495, 65496, 65536, 200_001]):
            scribe.data(n % 2, os.urandom(size), START + n)
        scribe.close(START + 99)
        aborted = TcpConnectionWriter(writer, ends[0], (ends[1][0], 22), START + 200)
        aborted.abort(1, START + 201)
    fields = [word for field in MESSAGES for word in ("-e", field)]
    checks = ["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"]
    rows = tshark(path, *checks, "-T", "fields", "-E", "separator=;", *fields).splitlines()
    ip = "1" if ":" not in ends[0][0] else ""
    assert set(rows) == {f"1;{ip};;"}
    assert len(rows) == index_file(str(path)).summary.packets
    times = tshark(path, "-T", "fields", "-e", "frame.time_epoch").split()
    assert times[0] == "1700000000.000000007"
    assert "polymux: vantage=middle" in tshark(path, "-T", "fields", "-e", "frame.comment")


lines = st.lists(st.tuples(st.integers(0, 1), st.binary(max_size=300)), max_size=8)


@settings(max_examples=60, deadline=None)
@given(lines=lines, at=st.integers(0, 2**61))
def test_a_written_connection_reads_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[int, bytes]], at: int
) -> None:
    path = str(tmp_path_factory.mktemp("scribe") / "written.pcapng")
    with PcapngWriter(path, sync="none") as writer:
        talk(writer, *lines, at=at)
    with read_sessions([path]) as reading:
        (session,) = reading
        sent = tuple(b"".join(data for side, data in lines if side == n) for n in (0, 1))
        assert streams(session) == sent
        assert session.ends == ("fin", "fin")
        assert (session.dialer, session.acceptor) == ("192.0.2.1:40000", "198.51.100.2:9000")
        assert session.started_at == at
        assert session.retransmissions == ([], [])


def test_a_port_used_again_is_a_new_session(tmp_path: Path) -> None:
    path = str(tmp_path / "written.pcapng")
    with PcapngWriter(path) as writer:
        talk(writer, (0, b"first"))
        talk(writer, (0, b"second"), at=START + 1000 * MS)
    assert [streams(s)[0] for s in read_sessions([path])] == [b"first", b"second"]


def test_mixed_address_families_are_written_as_ipv6(tmp_path: Path) -> None:
    path = str(tmp_path / "written.pcapng")
    with PcapngWriter(path) as writer:
        TcpConnectionWriter(writer, ("fe80::1%eth0", 1), ("192.0.2.9", 2), START).data(
            0, b"x", START
        )
    (session,) = read_sessions([path])
    assert (session.dialer, streams(session)[0]) == ("[fe80::1]:1", b"x")
    assert session.acceptor == "192.0.2.9:2"


def test_a_file_gets_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "written.pcapng"
    writer = PcapngWriter(str(path))
    talk(writer, (0, b"x"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["written.pcapng.part"]
    assert index_file(f"{path}.part").summary.status == "whole"
    assert stat.S_IMODE(os.stat(f"{path}.part").st_mode) == 0o600
    assert writer.close() == writer.close() == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["written.pcapng"]
    with pytest.raises(CaptureError, match="exists already"):
        PcapngWriter(str(path))


def test_a_part_file_left_behind_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "written.pcapng"
    (tmp_path / "written.pcapng.part").write_bytes(b"precious")
    with pytest.raises(CaptureError, match="was left"):
        PcapngWriter(str(path))
    with pytest.raises(CaptureError, match="cannot be written"):
        PcapngWriter(str(tmp_path / "nowhere" / "x.pcapng"))


class Disk:
    """A disk with a number of bytes left; short writes before it is full."""

    def __init__(
        self, left: int, monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC
    ) -> None:
        self.left = left
        self.code = code
        self._pwritev, self._pwrite = os.pwritev, os.pwrite
        monkeypatch.setattr(os, "pwritev", self.pwritev)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def pwritev(self, fd: int, parts: list[bytes], offset: int) -> int:
        return self.pwrite(fd, b"".join(parts), offset)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        if self.left <= 0:
            raise OSError(self.code, os.strerror(self.code))
        done = self._pwrite(fd, data[: self.left], offset)
        self.left -= done
        return done


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("left", range(300, 1500, 37))
def test_a_full_disk_is_a_gap_of_the_right_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, code: int
) -> None:
    path = str(tmp_path / "written.pcapng")
    writer = PcapngWriter(path)
    scribe = TcpConnectionWriter(writer, DIALER, ACCEPTOR, START)
    scribe.data(0, b"before", START)
    disk = Disk(left, monkeypatch, code)
    sent = [bytes([65 + n]) * 100 for n in range(20)]
    for n, data in enumerate(sent):
        scribe.data(0, data, START + n)
        if n == 15:
            disk.left = 1 << 20
    scribe.close(START + 50)
    writer.close()
    summary = index_file(path).summary
    assert summary.status == "whole"
    assert summary.packets == writer.packets
    assert 0 < writer.loss.packets == 27 - writer.packets
    assert writer.loss.error == os.strerror(code)
    assert writer.loss.gaps >= 1
    said = f"polymux: gap packets={writer.loss.packets} bytes={writer.loss.bytes}"
    assert said.encode() in Path(path).read_bytes()
    (session,) = read_sessions([path])
    got, whole = streams(session)[0], b"before" + b"".join(sent)
    assert len(got) == len(whole)
    assert all(a == b or a == ord("?") for a, b in zip(got, whole, strict=True))
    assert session.missing_bytes[0] == 100 * writer.loss.packets


def test_a_full_disk_can_be_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "written.pcapng")
    waits: list[float] = []

    def pause(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            disk.left = 1 << 20

    writer = PcapngWriter(path, on_full="block", pause=pause)
    disk = Disk(500, monkeypatch)
    talk(writer, *[(0, bytes(100)) for _ in range(10)])
    writer.close()
    assert len(waits) == 3
    assert writer.loss.packets == 0
    (session,) = read_sessions([path])
    assert streams(session)[0] == bytes(1000)


def test_a_disk_that_never_recovers_leaves_a_complete_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    Disk(777, monkeypatch)
    talk(writer, *[(0, bytes(100)) for _ in range(10)])
    summary = index_file(writer.close()).summary
    assert summary.status == "whole"
    assert summary.packets == writer.packets > 0
    assert writer.loss.packets == 17 - 1 - writer.packets


class Syncs:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.fail = False
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        self.count += 1
        if self.fail:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize(("policy", "expected"), [("none", 0), ("always", 9), (2.0, 4)])
def test_syncs_follow_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: float, expected: int
) -> None:
    syncs = Syncs(monkeypatch)
    now = [0.0]
    writer = PcapngWriter(str(tmp_path / "written.pcapng"), sync=policy, clock=lambda: now[0])
    for _ in range(8):
        now[0] += 0.75
        writer.packet(START, [b"x"])
    # 6 seconds have passed: at 2.25, 4.5 and, by the tick, 6.75; the first also of the directory
    now[0] += 0.75
    writer.tick()
    assert syncs.count == expected
    writer.close()
    assert syncs.count == expected + 2  # the file and its directory


def test_a_failed_sync_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = Syncs(monkeypatch)
    writer = PcapngWriter(str(tmp_path / "written.pcapng"), sync="none")
    writer.packet(START, [b"x"])
    assert writer.sync()
    syncs.fail = True
    writer.packet(START, [b"x"])
    assert not writer.sync()
    syncs.fail = False
    assert not writer.sync()
    assert writer.sync_error == os.strerror(errno.EIO)


def test_a_file_that_could_not_be_synced_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = Syncs(monkeypatch)
    path = tmp_path / "written.pcapng"
    writer = PcapngWriter(str(path), sync="always")
    syncs.fail = True
    writer.packet(START, [b"x"])
    syncs.fail = False
    writer.packet(START, [b"y"])
    for _ in range(2):
        with pytest.raises(CaptureError, match="could not be synced"):
            writer.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["written.pcapng.part"]
    assert index_file(recover(f"{path}.part")).summary.packets == 2


def test_syncs_of_a_worker_are_not_waited_for_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, may_end = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        began.set()
        assert may_end.wait(5)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(1) as worker:
        writer = PcapngWriter(str(tmp_path / "written.pcapng"), sync=0, worker=worker)
        writer.packet(START, [b"x"])
        assert began.wait(5)
        writer.packet(START, [b"y"])
        assert writer.packets == 2
        assert not writer.sync_error
        may_end.set()
        with pytest.raises(CaptureError, match="could not be synced"):
            writer.close()


def test_a_full_disk_can_be_asked_again_and_nothing_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    burst = PacketBurst(HeaderTemplate(DIALER, ACCEPTOR, 0), START, 0, 0, 24, b"")
    burst.add_payload(b"x", 0, 1)
    disk = Disk(0, monkeypatch)
    for _ in range(3):
        with pytest.raises(DiskFull, match=os.strerror(errno.ENOSPC)):
            writer.offer_burst(burst)
    disk.left = 1 << 20
    writer.offer_burst(burst)
    assert (writer.packets, writer.loss.packets) == (1, 0)
    assert index_file(writer.close()).summary.packets == 1


def test_what_a_missed_packet_said_is_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    disk = Disk(0, monkeypatch)
    scribe = TcpConnectionWriter(
        writer, DIALER, ACCEPTOR, START, comment=hint_comment("mplex", "middle")
    )
    disk.left = 1 << 20
    scribe.data(0, b"hello", START)
    writer.close()
    (session,) = read_sessions([writer.path])
    assert (session.protocol_hint, session.vantage_hint) == ("mplex", "middle")


def test_a_file_that_is_given_up_leaves_nothing_behind(tmp_path: Path) -> None:
    writer = PcapngWriter(str(tmp_path / "written.pcapng"))
    writer.discard()
    writer.packet(START, [b"too late"])
    assert writer.loss.packets == 1
    assert list(tmp_path.iterdir()) == []
