"""What can be named as a capture, and captures that lie elsewhere or are compressed."""

import gzip
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.parquet import read_table
from polymux.analysis.output.table_digest import digest_tables
from polymux.capture import CaptureLimits
from polymux.capture.io import discovery, file_pool, remote
from polymux.capture.io.discovery import find_inputs
from polymux.capture.io.file_pool import UrlFilePool
from polymux.capture.io.remote import RemoteSource, open_capture
from polymux.core.errors import CaptureError, PolymuxError
from polymux.spark.batch.pipeline import analyze

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rotated captures, their tables, and the same captures compressed."""
    folder = tmp_path_factory.mktemp("inputs")
    paths = [folder / "plain" / f"{n}.pcapng" for n in range(3)]
    (folder / "plain").mkdir()
    (folder / "packed").mkdir()
    record(paths, conversations(7, 8), seed=3)
    without_spark(paths, folder / "tables")
    (folder / "packed" / "0.pcapng.gz").write_bytes(gzip.compress(paths[0].read_bytes()))
    zstd = zstandard.ZstdCompressor().compress(paths[1].read_bytes())
    (folder / "packed" / "1.pcapng.zst").write_bytes(zstd)
    (folder / "packed" / "2.pcapng").write_bytes(paths[2].read_bytes())
    return folder


def names(paths: list[str]) -> list[str]:
    return [Path(capture.path).name for capture in find_inputs(paths)]


def test_a_str_or_a_path_is_one_input(folder: Path) -> None:
    one = folder / "plain" / "1.pcapng"
    for path in (one, str(one), [one], (str(one),)):
        assert [capture.path for capture in find_inputs(path)] == [str(one)]


def test_a_capture_that_is_removed_while_its_directory_is_listed_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(paths: list[str]) -> list[str]:
        return [str(folder / "plain" / name) for name in ("0.pcapng", "removed.pcapng")]

    monkeypatch.setattr(discovery, "find_captures", find)
    assert names([str(folder / "plain")]) == ["0.pcapng"]


def test_analyze_takes_one_path_as_text_or_as_a_path(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    one = folder / "plain" / "1.pcapng"
    done = analyze(spark, str(one), tmp_path / "tables")
    assert [capture.file for capture in done.captures] == [str(one)]
    again = analyze(spark, one, str(tmp_path / "tables"))
    assert [capture.file for capture in again.captures] == [str(one)]


def test_files_directories_globs_and_urls_are_found_and_each_once(folder: Path) -> None:
    plain = folder / "plain"
    (plain / ".hidden.pcapng").touch()
    (plain / "0.pcapng.idx").touch()
    assert names([str(plain)]) == ["0.pcapng", "1.pcapng", "2.pcapng"]
    assert names([str(plain / "[12].pcapng"), str(plain)]) == ["1.pcapng", "2.pcapng", "0.pcapng"]
    assert names([f"{folder}/**/2.pcapng"]) == ["2.pcapng", "2.pcapng"]
    assert names([f"file://{plain}/1.pcapng", f"{plain}/1.pcapng"]) == ["1.pcapng"]
    assert names([f"file:{plain}/1.pcapng"]) == ["1.pcapng"]
    assert names([f"fsspec+file://{plain}"]) == ["0.pcapng", "1.pcapng", "2.pcapng"]
    sizes = {Path(each.path).name: each.size for each in find_inputs([f"fsspec+file://{plain}"])}
    assert sizes["1.pcapng"] == (plain / "1.pcapng").stat().st_size


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere/*.pcap", "no such file"),
        ("fsspec+file:///nowhere/x.pcap", "no such file"),
        ("colour://x/y", "cannot be opened: Unrecognized"),
        ("hdfs://nohost:8020/x", "needs libhdfs, a Java and CLASSPATH"),
        ("file://elsewhere/x", "another machine"),
        ("-", "standard input"),
        ("/dev/null", "not a regular file"),
    ],
)
def test_what_names_no_capture_is_said_in_one_line(path: str, words: str) -> None:
    with pytest.raises(PolymuxError, match=words) as raised:
        find_inputs([path])
    assert "\n" not in str(raised.value)


def test_an_empty_directory_holds_no_capture(tmp_path: Path) -> None:
    with pytest.raises(PolymuxError, match="no capture there"):
        find_inputs([str(tmp_path)])


def test_compressed_captures_and_captures_behind_urls_give_the_same_tables(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    expected = digest_tables(folder / "tables")
    packed = f"fsspec+file://{folder}/packed"
    for number, given_path in enumerate([str(folder / "packed"), packed]):
        out = tmp_path / str(number)
        done = analyze(spark, [given_path], str(out), content=True)
        assert done.conserved
        assert not done.unread
        assert digest_tables(out) == expected
        formats = {row["format"] for row in read_table(out, "captures").to_pylist()}
        assert formats == {"pcapng", "pcapng+gzip", "pcapng+zstd"}


def test_a_file_behind_a_url_that_cannot_be_read_is_a_row_and_the_job_goes_on(
    spark: "SparkSession", folder: Path, tmp_path: Path
) -> None:
    captures = tmp_path / "captures"
    captures.mkdir()
    (captures / "good.pcapng").write_bytes((folder / "plain" / "0.pcapng").read_bytes())
    (captures / "bad.pcapng.gz").write_bytes(b"\x1f\x8b not really")
    done = analyze(spark, [f"fsspec+file://{captures}"], str(tmp_path / "t"))
    assert [Path(capture.file).name for capture in done.unread] == ["bad.pcapng.gz"]
    assert done.total.sessions > 0


@given(st.binary(max_size=300), st.integers(1, 64), st.integers(0, 2**32))
def test_a_remote_file_reads_as_the_file_itself(data: bytes, piece: int, seed: int) -> None:
    from tempfile import TemporaryDirectory

    rng = Random(seed)
    patch = pytest.MonkeyPatch()
    patch.setattr(remote, "REQUEST_BYTES", piece)
    with TemporaryDirectory() as name:
        Path(name, "c").write_bytes(data)
        source = RemoteSource("test://c", SubTreeFileSystem(name, LocalFileSystem()), "c")
        for _ in range(10):
            offset, size = rng.randrange(len(data) + 3), rng.randrange(len(data) + 3)
            assert source.window(offset, size) == data[offset : offset + size]
            if offset + size <= len(data):
                assert source.read_at(offset, size) == data[offset : offset + size]
            elif size:
                with pytest.raises(CaptureError, match="shrank"):
                    source.read_at(offset, size)
        source.close()
    patch.undo()


def test_a_bounded_number_of_remote_files_stays_open(tmp_path: Path) -> None:
    urls = []
    for number in range(file_pool.MAX_OPEN_REMOTE_FILES + 5):
        (tmp_path / f"{number}").write_bytes(b"%03d" % number)
        urls.append(f"fsspec+file://{tmp_path}/{number}")
    with UrlFilePool(CaptureLimits()) as files:
        readers = [files.reader(url) for url in urls]
        for _ in range(2):
            assert [read(0, 3) for read in readers] == [b"%03d" % n for n in range(len(urls))]
        assert len(files.remote_sources) == file_pool.MAX_OPEN_REMOTE_FILES


def test_compression_behind_a_url_is_found_by_its_mark(folder: Path) -> None:
    for name, packing in {"0.pcapng.gz": "gzip", "1.pcapng.zst": "zstd", "2.pcapng": ""}.items():
        source = open_capture(f"fsspec+file://{folder}/packed/{name}", CaptureLimits())
        assert source.compression == packing
        assert source.window(0, 4) == b"\x0a\x0d\x0d\x0a"
        source.close()
