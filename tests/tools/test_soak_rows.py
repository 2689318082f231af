"""Rows of the reliability table: their tests exist, and every long form of a test is in one."""

from __future__ import annotations

from pathlib import Path

from tools.soak_rows import ROWS

ROOT = Path(__file__).parents[2]

# Long forms that are in no row.
ALONE = {"tests/e2e/test_omnistreams_tables.py"}  # its long form listens on an interface


def files_of_rows() -> set[str]:
    found = set()
    for row in ROWS:
        ignored = {test.partition("=")[2] for test in row.tests if test.startswith("--ignore=")}
        for test in row.tests:
            path = ROOT / test.partition("::")[0]
            inside = path.rglob("test_*.py") if path.is_dir() else [path]
            found |= {str(file.relative_to(ROOT)) for file in inside} - ignored
    return found


def test_the_tests_of_every_row_exist() -> None:
    for row in ROWS:
        for test in row.tests:
            path, _, name = test.removeprefix("--ignore=").partition("::")
            assert (ROOT / path).exists(), f"{row.name}: {path}"
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{row.name}: {test}"


def test_every_long_form_is_in_a_row() -> None:
    long = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "POLYMUX_SOAK" in path.read_text() and path != Path(__file__)
    }
    assert long - files_of_rows() == ALONE
