"""Power fails: whatever the system had not synced may be there, in part, as zeros or not at all.

Every call of a recording to the disk is logged. Then disks are made up as they may look after a
loss of power behind any call: synced bytes are there, of the others any pages, up to any size.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.capture.capture_builder import MS, START

from polymux.capture import (
    PcapngWriter,
    TcpConnectionWriter,
    index_file,
    recover,
    repair,
    sessions_of,
)
from polymux.capture.io.sources import open_source
from polymux.capture.limits import CaptureLimits
from polymux.core.errors import CaptureError

PAGE = 512  # the least a disk writes
IMAGES = 1000


@dataclass
class Moment:
    """The disk behind one call: what is synced, and what was only written."""

    synced: bytes
    written: bytes
    packets: int
    """Packets that were handed over before the last sync."""
    named: bool
    """The name of the file is synced."""


@dataclass
class Log:
    """Takes the place of the system's calls and keeps what a disk has to show for them."""

    monkeypatch: pytest.MonkeyPatch
    moments: list[Moment] = field(default_factory=list)
    written: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    named: bool = False
    handed: int = 0
    safe: int = 0

    def __post_init__(self) -> None:
        self._pwritev, self._fsync = os.pwritev, os.fsync
        self.monkeypatch.setattr(os, "pwritev", self.pwritev)
        self.monkeypatch.setattr(os, "fsync", self.fsync)

    def pwritev(self, fd: int, parts: list[bytes], offset: int) -> int:
        data = b"".join(parts)
        self.written[offset : offset + len(data)] = data
        self._note()
        return self._pwritev(fd, parts, offset)

    def fsync(self, fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            self.named = True
        else:
            self.synced, self.safe = bytes(self.written), self.handed
        self._note()

    def _note(self) -> None:
        self.moments.append(Moment(self.synced, bytes(self.written), self.safe, self.named))


def image(moment: Moment, chance: Random) -> bytes:
    """One way the file may look when the power comes back."""
    unsynced = len(moment.written) - len(moment.synced)
    size = len(moment.synced) + chance.choice([0, unsynced, chance.randint(0, unsynced)])
    disk = bytearray(moment.synced + bytes(size - len(moment.synced)))
    kept = chance.choice([0.0, 0.5, 0.9, 1.0])
    for start in range(0, size, PAGE):
        if chance.random() < kept:
            disk[start : start + PAGE] = moment.written[start : min(start + PAGE, size)]
    return bytes(disk)


def record(tmp_path: Path, log: Log) -> list[bytes]:
    """A recording that syncs every 100 ms; returns what was said."""
    now = [0.0]
    chance = Random(1)
    writer = PcapngWriter(str(tmp_path / "tap.pcapng"), sync=0.1, clock=lambda: now[0])
    scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ("192.0.2.2", 9000), START)
    said = []
    for n in range(60):
        now[0] += 0.021
        said.append(chance.randbytes(chance.choice([1, 50, 300, 2000])))
        log.handed = writer.packets + 1
        scribe.data(0, said[-1], START + n * MS)
    log.handed = writer.packets
    writer.close()
    return said


def accepted(path: Path) -> tuple[int, bytes]:
    """Packets of a file whose checksums are right, and the bytes they carry, `?` for gaps."""
    limits = CaptureLimits()
    found = index_file(str(path), verify=True)
    data = bytearray()
    source = open_source(str(path), limits)
    for session in sessions_of(found.rows, lambda _: source.read_at):
        for piece in session.pieces():
            data += b"?" * piece.size if piece.is_gap else piece.data
    source.close()
    return found.summary.packets, bytes(data)


def test_after_a_loss_of_power_everything_synced_is_there_and_nothing_else_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(monkeypatch)
    said = b"".join(record(tmp_path, log))
    monkeypatch.undo()
    # Only between the first sync of the file and that of its directory the name may be lost.
    assert sum(1 for moment in log.moments if moment.synced and not moment.named) == 1
    chance = Random(2)
    path = tmp_path / "image.pcapng.part"
    damaged = 0
    for number in range(IMAGES):
        moment = chance.choice(log.moments)
        path.write_bytes(image(moment, chance))
        packets, data = accepted(path)
        assert packets >= moment.packets, "a packet that was synced is not read"
        assert len(data) <= len(said)
        if data != said[: len(data)]:
            assert all(a in (b, ord("?")) for a, b in zip(data, said, strict=False))
        if number % 10 == 0:
            damaged += recovers(path, moment.packets)
    assert damaged > 0


def recovers(path: Path, least: int) -> bool:
    """Recovery publishes the file, or says that only repair can; True for the latter."""
    target = path.with_name("repaired.pcapng")
    problem = ""
    try:
        target = Path(recover(str(path)))
    except CaptureError as failure:
        problem = str(failure)
    if "no complete block" in problem or "not a capture" in problem:
        assert least == 0
        return False
    if problem:
        assert "repair may save the rest" in problem
        repair(str(path), str(target))
    summary = index_file(str(target)).summary
    assert summary.status == "whole"
    assert summary.packets >= least
    target.unlink()
    return bool(problem)
