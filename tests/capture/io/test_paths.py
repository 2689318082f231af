"""Path arguments: one or several, `str` or `Path`, with wildcards; and compressed captures."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from polymux.capture import (
    PcapngWriter,
    RotatingWriter,
    TcpConnectionWriter,
    find_captures,
    index_file,
    plan_ranges,
    read_sessions,
    recover,
    repair,
    write_index,
)
from polymux.capture.io.pipes import CapturePipe
from polymux.core.errors import CaptureError

START = 1_700_000_000_000_000_000


def recorded(path: Path, payload: bytes = b"\x08\x04good", repeats: int = 1) -> Path:
    """A capture of one session that carries `payload`, `repeats` times."""
    with PcapngWriter(path, sync="none") as writer:
        scribe = TcpConnectionWriter(writer, ("192.0.2.1", 40000), ("198.51.100.2", 9000), START)
        for number in range(repeats):
            scribe.data(0, payload, START + number + 1)
        scribe.close(START + repeats + 1)
    return path


def payloads(paths: object) -> list[bytes]:
    with read_sessions(paths) as reading:  # type: ignore[arg-type]  # every form a caller may use
        return [b"".join(piece.data for piece in session.pieces()) for session in reading]


@pytest.mark.parametrize("form", [str, Path, lambda path: [str(path)], lambda path: (path,)])
def test_a_str_or_a_path_is_one_capture(form: Callable[[Path], object], tmp_path: Path) -> None:
    path = recorded(tmp_path / "talk.pcapng")
    recorded(tmp_path / "t")  # a file named like the first letter of the path
    assert payloads(form(path)) == [b"\x08\x04good"]
    assert find_captures(str(path)) == [str(path)]


def test_bytes_are_refused_and_not_taken_for_numbers() -> None:
    with pytest.raises(TypeError, match="not as bytes"):
        read_sessions(b"talk.pcapng")  # type: ignore[arg-type]


def test_every_function_on_one_capture_takes_a_path(tmp_path: Path) -> None:
    path = recorded(tmp_path / "talk.pcapng")
    assert index_file(path).summary.file == str(path)
    assert len(plan_ranges(path)) == 1
    assert write_index(path) == f"{path}.idx"
    assert repair(path, tmp_path / "copy.pcapng").packets == index_file(path).summary.packets
    part = path.rename(tmp_path / "left.pcapng.part")
    assert recover(part) == str(tmp_path / "left.pcapng")
    with RotatingWriter(tmp_path / "turns.pcapng", max_bytes=1 << 20) as writer:
        TcpConnectionWriter(writer, ("192.0.2.1", 1), ("192.0.2.2", 2), START).close(START + 1)
    assert len(find_captures(tmp_path / "turns*")) == 1


def test_wildcards_name_every_capture_they_match(tmp_path: Path) -> None:
    for name in ("b.pcapng", "a.pcapng", "deep/c.pcapng", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        recorded(tmp_path / name)
    found = find_captures(str(tmp_path / "*.pcapng"))
    assert found == [str(tmp_path / "a.pcapng"), str(tmp_path / "b.pcapng")]
    assert len(find_captures(tmp_path / "**" / "*.pcapng")) == 3


def test_a_file_whose_own_name_has_wildcards_is_that_file(tmp_path: Path) -> None:
    odd = recorded(tmp_path / "talk[1].pcapng")
    recorded(tmp_path / "talk1.pcapng")
    assert find_captures(odd) == [str(odd)]


def test_wildcards_that_match_nothing_are_reported(tmp_path: Path) -> None:
    with read_sessions(tmp_path / "*.pcapng") as reading:
        assert list(reading) == []
        assert "no file matches" in str(reading.files[0].error)
    with pytest.raises(CaptureError, match="no file matches"):
        write_index(tmp_path / "*.pcapng")


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("streams", [1, 3])
def test_compressed_captures_are_read_whole(packing: str, streams: int, tmp_path: Path) -> None:
    plain = recorded(tmp_path / "plain.pcapng", b"\0" * 1000, repeats=3000).read_bytes()
    cut = -(-len(plain) // streams)
    parts = [PACKERS[packing](plain[at : at + cut]) for at in range(0, len(plain), cut)]
    packed = tmp_path / "packed"
    packed.write_bytes(b"".join(parts))
    summary = index_file(packed).summary
    assert (summary.status, summary.format) == ("whole", f"pcapng+{packing}")
    assert summary.bytes == len(plain)
    assert payloads(packed) == [b"\0" * 3_000_000]


@pytest.mark.parametrize("zeros", [4, 65536, 200_000])
def test_zeros_may_pad_the_streams_of_an_xz_file(zeros: int, tmp_path: Path) -> None:
    plain = recorded(tmp_path / "plain.pcapng", b"\0" * 1000, repeats=30).read_bytes()
    parts = [lzma.compress(part) + bytes(zeros) for part in (plain[:5000], plain[5000:])]
    packed = tmp_path / "packed"
    packed.write_bytes(b"".join(parts))
    summary = index_file(packed).summary
    assert (summary.status, summary.bytes) == ("whole", len(plain))
    with packed.open("rb") as file:
        pipe = CapturePipe("-", file.fileno())
        assert b"".join(iter(pipe.read, b"")) == plain  # type: ignore[arg-type]  # never silent
    assert pipe.decompression_error == ""


@pytest.mark.parametrize("packing", ["xz", "bzip2"])
def test_a_compressed_capture_that_ends_early_is_read_as_far_as_it_goes(
    packing: str, tmp_path: Path
) -> None:
    plain = recorded(tmp_path / "plain.pcapng", bytes(range(256)) * 4, repeats=3000).read_bytes()
    packed = tmp_path / "packed"
    packed.write_bytes(PACKERS[packing](plain)[:-20])
    summary = index_file(packed).summary
    assert summary.status == "truncated"
    assert "ends early" in str(summary.error)


def test_the_output_of_the_last_few_bytes_of_zstd_is_not_lost(tmp_path: Path) -> None:
    """Less than one feed of input can become more than one window of output."""
    head = recorded(tmp_path / "plain.pcapng").read_bytes()
    size = 4 << 20
    block = (0x0BAD).to_bytes(4, "little") + size.to_bytes(4, "little")
    plain = head + block + bytes(size - 12) + size.to_bytes(4, "little")
    packed = tmp_path / "packed"
    packed.write_bytes(zstandard.ZstdCompressor().compress(plain))
    assert index_file(packed).summary.bytes == len(plain)
