"""Files that hold traffic are for their owner only, and no link leads a writer elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.record.collector.test_collector import push_duplex

from polymux.analysis.output.parquet import TableWriter
from polymux.capture import PcapngWriter, RotatingWriter, recover, repair, write_index
from polymux.capture.io.atomic_write import write_atomically
from polymux.cli.support.stream_files import StreamFolder
from polymux.core.errors import CaptureError, PolymuxError
from polymux.record import Collector


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """A umask that hides nothing, as in many containers."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of everything below a directory, by relative path."""
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777
        for path in sorted(folder.rglob("*"))
    }


def recording(path: Path) -> Path:
    writer = PcapngWriter(path)
    writer.packet(1, [b"x"])
    writer.close()
    return path


def test_rotated_recordings_and_their_indexes_are_private(tmp_path: Path) -> None:
    with RotatingWriter(tmp_path / "tap.pcapng", max_bytes=500, index=True) as writer:
        for number in range(20):
            writer.packet(number, [bytes(100)])
    found = modes(tmp_path)
    assert len(found) > 6
    assert set(found.values()) == {0o600}


def test_recovered_and_repaired_recordings_are_private(tmp_path: Path) -> None:
    source = recording(tmp_path / "tap.pcapng")
    source.chmod(0o644)
    repair(source, tmp_path / "repaired.pcapng")
    assert modes(tmp_path)["repaired.pcapng"] == 0o600
    left = PcapngWriter(tmp_path / "left.pcapng")
    left.packet(1, [b"x"])
    os.close(left.fd)
    recover(tmp_path / "left.pcapng.part")
    assert modes(tmp_path)["left.pcapng"] == 0o600


def test_an_index_is_as_readable_as_its_capture_and_no_more(tmp_path: Path) -> None:
    public, private = recording(tmp_path / "public"), recording(tmp_path / "private")
    public.chmod(0o644)
    for path in (public, private):
        write_index(path)
    assert modes(tmp_path) == {
        "private": 0o600, "private.idx": 0o600, "public": 0o644, "public.idx": 0o644,
    }  # fmt: skip


async def test_what_a_collector_creates_is_private(tmp_path: Path) -> None:
    out = tmp_path / "new" / "captures"
    async with Collector(out) as collector:
        url = await collector.listen("tcp://127.0.0.1:0", "mplex")
        await push_duplex(url, "mplex")
    found = modes(tmp_path)
    assert found.pop("new") == found.pop("new/captures") == 0o700
    assert len(found) == 2
    assert set(found.values()) == {0o600}


def test_streams_saved_as_files_are_private_and_so_are_the_directories(tmp_path: Path) -> None:
    folder = StreamFolder(str(tmp_path / "new" / "streams"))
    file = folder.create_file()
    file.write(b"secret")
    folder.add_to_manifest(file, {})
    found = modes(tmp_path)
    assert found.pop("new") == found.pop("new/streams") == 0o700
    assert set(found.values()) == {0o600}


def test_a_table_with_payload_is_private_and_so_is_its_directory(tmp_path: Path) -> None:
    import pyarrow as pa

    from polymux.analysis.output.arrow_batches import SCHEMAS

    with TableWriter(tmp_path / "tables") as tables:
        for table in ("content", "frames"):
            texts = ("session_id", "stream", "sender", "kind", "verdict")
            row: dict[str, object] = {
                name: b"secret" if name == "data" else "x" if name in texts else 0
                for name in SCHEMAS[table].names
            }
            tables.emit(table, pa.RecordBatch.from_pylist([row], SCHEMAS[table]))
    found = modes(tmp_path / "tables")
    assert found["content"] == 0o700
    assert {mode for name, mode in found.items() if name.startswith("content/")} == {0o600}
    assert found["frames"] & 0o055 == 0o055


def test_files_are_not_written_through_links(tmp_path: Path) -> None:
    """Another user may have put links under the names of temporary files."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep this")
    path = recording(tmp_path / "tap.pcapng")
    for name in ("tap.pcapng.idx.part", ".tap.pcapng.idx.part", "other.pcapng.part",
                 "copy.pcapng.part", "left.pcapng.part", "page.html.part"):  # fmt: skip
        (tmp_path / name).symlink_to(victim)
    write_index(path)
    write_atomically(tmp_path / "page.html", b"page")
    with pytest.raises(CaptureError):
        PcapngWriter(tmp_path / "other.pcapng")
    with pytest.raises(CaptureError):
        repair(path, tmp_path / "copy.pcapng")
    with pytest.raises(CaptureError):
        recover(tmp_path / "left.pcapng.part")
    assert victim.read_bytes() == b"keep this"
    assert not (tmp_path / "tap.pcapng.idx").is_symlink()


def test_a_recording_behind_a_link_is_not_recovered(tmp_path: Path) -> None:
    """It would cut off the end of a file elsewhere, and publish the link."""
    whole = recording(tmp_path / "elsewhere")
    torn = whole.read_bytes() + bytes.fromhex("06000000 64000000 0000")
    whole.write_bytes(torn)
    part = tmp_path / "left.pcapng.part"
    part.symlink_to(whole)
    with pytest.raises(CaptureError, match="is a symbolic link"):
        recover(part)
    assert whole.read_bytes() == torn
    assert part.is_symlink()


def test_a_stream_is_not_saved_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep this")
    folder = StreamFolder(str(tmp_path / "streams"))
    (tmp_path / "streams" / "stream-000001.bin").symlink_to(victim)
    with pytest.raises(PolymuxError):
        folder.create_file().write(b"secret")
    assert victim.read_bytes() == b"keep this"
