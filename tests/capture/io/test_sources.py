"""Sources of captures: compressed files, decompression bombs, pipes, stdin, growing files."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import zstandard
from tests.capture import capture_builder as build
from tests.capture.conftest import streams

from polymux.capture import (
    CaptureLimits,
    FileIndex,
    index_file,
    index_range,
    plan_ranges,
    read_sessions,
)
from polymux.core.errors import MissingExtra

TALK = build.talk((0, b"hello" * 100), (1, b"welcome" * 50))
DATA = build.pcapng(TALK)


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def same(found: FileIndex, path: str) -> None:
    plain = index_file(path)
    assert [(r.flow, r.direction, r.refs) for r in found.rows] == [
        (r.flow, r.direction, r.refs) for r in plain.rows
    ]


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gzip"), (zstd, "zstd")])
def test_compressed_captures_are_the_same_as_plain_ones(
    write: Callable[..., str], pack: Callable[[bytes], bytes], name: str
) -> None:
    path = write(pack(DATA), "packed")
    found = index_file(path)
    assert (found.summary.format, found.summary.status) == (f"pcapng+{name}", "whole")
    assert found.summary.bytes == len(DATA)
    same(found, write(DATA))
    with read_sessions([path]) as reading:
        (session,) = reading
        assert streams(session) == (b"hello" * 100, b"welcome" * 50)
        assert streams(session) == (b"hello" * 100, b"welcome" * 50)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_members_and_frames_follow_one_another(
    write: Callable[..., str], pack: Callable[[bytes], bytes]
) -> None:
    parts = b"".join(pack(DATA[n : n + 500]) for n in range(0, len(DATA), 500))
    found = index_file(write(parts, "packed"))
    assert found.summary.status == "whole"
    same(found, write(DATA))


def test_zstd_frames_that_are_skipped_do_no_harm(write: Callable[..., str]) -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"
    found = index_file(write(skipped + zstd(DATA), "packed"))
    assert found.summary.status == "whole"
    same(found, write(DATA))


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_a_truncated_compressed_file_is_read_as_far_as_it_goes(
    write: Callable[..., str], pack: Callable[[bytes], bytes]
) -> None:
    noise = [build.Packet(p.at, p.data + os.urandom(900)) for p in TALK]
    packed = pack(build.pcapng(noise))
    summary = index_file(write(packed[: len(packed) // 2], "packed")).summary
    assert summary.status == "truncated"
    assert "ends early" in (summary.error or "")
    # complete but for the last bytes, the trailer of the compressed stream
    summary = index_file(write(gzip.compress(DATA)[:-3], "packed")).summary
    assert (summary.status, summary.error_offset) == ("truncated", len(DATA))
    assert summary.packets == len(TALK)


@pytest.mark.parametrize("pack", [gzip.compress, zstd])
def test_damaged_compression_is_reported_with_the_offset(
    write: Callable[..., str], pack: Callable[[bytes], bytes]
) -> None:
    packed = bytearray(pack(DATA))
    packed[len(packed) // 2] ^= 0xFF
    packed[len(packed) // 2 + 1] ^= 0xFF
    summary = index_file(write(bytes(packed), "packed")).summary
    assert summary.status in ("damaged", "truncated")
    assert summary.error
    assert summary.error_offset is not None
    rubbish = index_file(write(pack(DATA) + b"rubbish behind it", "packed")).summary
    assert rubbish.status == "damaged"
    assert rubbish.packets == len(TALK)


def bomb_gzip(size: int) -> bytes:
    """pcap headers and then `size` zeros, made without holding them in memory."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(build.pcap([]))]
    zeros = bytes(1 << 20)
    parts += [packer.compress(zeros) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


def bomb_zstd(size: int) -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    zeros = bytes(1 << 20)
    parts = [packer.compress(build.section())]
    block = build.block(0xBAD, zeros)
    parts += [packer.compress(block) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


@pytest.mark.parametrize("bomb", [bomb_gzip, bomb_zstd])
def test_a_bomb_stops_at_its_limit_and_leaves_nothing_on_disk(
    write: Callable[..., str],
    bomb: Callable[[int], bytes],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: pytest.fail("spooled a bomb"))
    path = write(bomb(12 << 20), "bomb")
    ratio = index_file(path, limits=CaptureLimits(ratio_check_min_bytes=4 << 20)).summary
    assert ratio.status == "damaged"
    assert "limit max_compression_ratio=200" in (ratio.error or "")
    assert "CaptureLimits(max_compression_ratio=...)" in (ratio.error or "")
    size = index_file(path, limits=CaptureLimits(max_decompressed_bytes=4 << 20)).summary
    assert "limit max_decompressed_bytes=4194304" in (size.error or "")
    assert size.error_offset is not None
    assert size.error_offset < 24 << 20


def test_a_bomb_behind_a_session_costs_no_more_disk_than_the_session(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spooled: list[IO[bytes]] = []
    real = tempfile.TemporaryFile

    def watched(prefix: str) -> IO[bytes]:
        spooled.append(real(prefix=prefix))
        return spooled[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", watched)
    packed = zstd(DATA) + zstd(build.block(0xBAD, bytes(1 << 20)) * 60)
    assert len(packed) < 64 << 10
    path = write(packed, "bomb")
    with read_sessions([path], limits=CaptureLimits(ratio_check_min_bytes=4 << 20)) as reading:
        assert "limit max_compression_ratio=200" in (reading.files[0].error or "")
        (session,) = reading
        assert streams(session) == (b"hello" * 100, b"welcome" * 50)
        (file,) = spooled
        assert os.fstat(file.fileno()).st_size <= 2 << 20
    assert file.closed


def test_missing_zstandard_names_the_extra(
    write: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtra, match=r"polymux\[captures\]"):
        index_file(write(zstd(DATA), "packed"))


def test_stdin_is_read_once_and_iterated_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(gzip.compress(DATA))))
    with read_sessions(["-"]) as reading:
        assert reading.files[0].status == "whole"
        for session in [*reading, *reading]:
            assert streams(session)[0] == b"hello" * 100


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=lambda: path.write_bytes(DATA))
    writer.start()
    with read_sessions([str(path)]) as reading:
        (session,) = reading
        assert streams(session)[1] == b"welcome" * 50
    writer.join()


def test_a_pipe_longer_than_the_limit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def pour() -> None:
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(b"\n\r\r\n" + bytes(1 << 20))

    writer = threading.Thread(target=pour)
    writer.start()
    with read_sessions([str(path)], limits=CaptureLimits(max_decompressed_bytes=1000)) as reading:
        assert reading.files[0].status == "unreadable"
        assert "limit max_decompressed_bytes=1000" in (reading.files[0].error or "")
    writer.join()


def test_a_growing_file_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "growing.pcapng"
    whole = index_file_of(path, DATA)
    blobs: dict[int, bytes] = {}
    span = None
    for size in (400, 401, 700, len(DATA)):
        path.write_bytes(DATA[:size])
        part = index_file(str(path)) if span is None else index_range(str(path), span)
        for row in part.rows:
            blobs[row.direction] = blobs.get(row.direction, b"") + row.refs
        span = part.resume
        assert span is not None
    assert blobs == {row.direction: row.refs for row in whole.rows}


def index_file_of(path: Path, data: bytes) -> FileIndex:
    path.write_bytes(data)
    return index_file(str(path))


def test_a_compressed_file_is_one_range(write: Callable[..., str]) -> None:
    path = write(gzip.compress(DATA), "packed")
    (span,) = plan_ranges(path, target=100)
    same(index_range(path, span), write(DATA))


@pytest.mark.parametrize(
    "change",
    [{"max_block_bytes": 0}, {"max_packet_bytes": 1 << 20}, {"hole_timeout_ns": -1}],
    ids=str,
)
def test_an_invalid_limit_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="limit"):
        CaptureLimits(**change)
