"""The report stays small and opens quickly, however large the capture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.report.conftest import Opener
from tests.report.scenes import crowd

from polymux.report import ReportInfo, write_report

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
SIZES = [10_000, 1_000_000, *([10_000_000] if SOAK else [])]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[int, ReportInfo]:
    folder = tmp_path_factory.mktemp("sizes")
    return {
        size: write_report(crowd(folder / str(size), size), folder / f"{size}.html")
        for size in SIZES
    }


@pytest.mark.timeout(900 if SOAK else 300)
def test_size_hardly_grows_with_the_capture(reports: dict[int, ReportInfo]) -> None:
    sizes = [info.size_bytes for info in reports.values()]
    assert max(sizes) <= 5_000_000
    assert max(sizes) <= 2 * min(sizes)


def test_the_number_of_frames_and_a_selection_are_shown(
    reports: dict[int, ReportInfo],
) -> None:
    for size, info in reports.items():
        assert size - 6 <= info.frames <= size
        assert 8_000 <= info.frames_shown <= 9_000


def test_streams_that_grow_with_the_frames_do_not_break_the_size(tmp_path: Path) -> None:
    few = write_report(crowd(tmp_path / "few", 10_000, streams=120), tmp_path / "few.html")
    many = write_report(
        crowd(tmp_path / "many", 200_000, streams=6_000, sessions=60), tmp_path / "many.html"
    )
    assert many.size_bytes <= 5_000_000
    assert many.size_bytes <= 2 * few.size_bytes


MEASURED = """
import resource, sys
from polymux.report import write_report
write_report(sys.argv[1], sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_memory(tables: Path) -> int:
    """The peak memory of a process that writes a report, in the system's unit."""
    command = [sys.executable, "-c", MEASURED, str(tables), str(tables.with_suffix(".html"))]
    return int(subprocess.run(command, capture_output=True, check=True, timeout=300).stdout)


def test_memory_hardly_grows_with_the_capture(tmp_path: Path) -> None:
    small = peak_memory(crowd(tmp_path / "small", 100_000))
    large = peak_memory(crowd(tmp_path / "large", SIZES[-1]))
    assert large <= 1.4 * small


@pytest.mark.parametrize("size", SIZES)
def test_the_page_of_any_size_is_ready_in_two_seconds_and_little_memory(
    reports: dict[int, ReportInfo], open_alone: Opener, size: int
) -> None:
    pages = [open_alone(reports[size].path) for _ in range(3)]
    times = [int(page.run("document.documentElement.dataset.ready")) for page in pages]
    assert min(times) <= 2000, times
    assert pages[0].call("Runtime.getHeapUsage")["usedSize"] <= 300_000_000
    assert pages[0].troubles() == []
