"""Tests that share what starts slowly run in one process, and those that take long begin first."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.processes import LONG, SHARED, rank, unit

ROOT = Path(__file__).parents[1]


def units() -> dict[str, list[str]]:
    """The files of each unit."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = str(path.relative_to(ROOT))
        found.setdefault(unit(f"{file}::test_something[tests/spark/x]"), []).append(file)
    return found


def test_a_file_is_a_unit_unless_it_shares_something() -> None:
    shared = {name for name, _, _ in SHARED}
    assert all(files == [name] for name, files in units().items() if name not in shared)
    for name, folder, _ in SHARED:
        assert len(units()[name]) > 1
        assert all(file.startswith(folder) for file in units()[name])


def test_what_is_slow_to_start_is_used_in_its_unit_alone(request: pytest.FixtureRequest) -> None:
    """By all tests that were collected with this one."""
    fixtures = {
        "spark": "Spark session",
        "standalone_cluster": "Spark cluster",
        "open_alone": "browser",
    }
    for item in request.session.items:
        for fixture in fixtures.keys() & getattr(item, "fixturenames", ()):
            assert unit(item.nodeid) == fixtures[fixture], item.nodeid


@pytest.mark.parametrize("name", LONG)
def test_what_is_said_to_take_long_is_there(name: str) -> None:
    assert any(each.startswith(name) for each in units())


def test_units_that_take_long_come_before_all_others_and_a_shared_one_is_not_torn() -> None:
    ranks = {name: {rank(file) for file in files} for name, files in units().items()}
    assert all(len(each) == 1 for each in ranks.values())
    assert ranks["Spark session"] == {0}
    assert ranks["tests/test_layers.py"] == {len(LONG)}
