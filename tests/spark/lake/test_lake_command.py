"""`polymux lake` lists and maintains lakes, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.command_runner import invoke
from tests.spark.lake.lake_runs import ROWS, append
from tools.json_page import lines

from polymux.cli.commands.lake import lake as command
from polymux.core.errors import UnreadableInput
from polymux.core.urls import without_credentials
from polymux.spark.lake.lake import open_lake


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A lake with two versions and two days."""
    lake = open_lake(str(tmp_path / "lake"))
    append(lake, 1, ["2026-11-01"])
    append(lake, 2, ["2026-11-01", "2026-11-02"])
    return lake.url


def printed(*arguments: str) -> list[dict[str, Any]]:
    ran = invoke(command, arguments, catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    for row in rows:
        assert set(row) == {key for key, _, _ in lines()[f"lake {arguments[0]}"][0][1]}
    return rows


def test_its_commands_do_what_they_say(place: str) -> None:
    versions = printed("history", place)
    assert [(row["version"], row["operation"]) for row in versions] == [
        (1, "append"),
        (2, "append"),
    ]
    assert (versions[1]["added"], versions[1]["removed"]) == (6, 0)

    (plan,) = printed("compact", place, "--dry-run")
    assert (plan["joined_files"], plan["made_files"], plan["version"]) == (7, 0, None)
    (other_day,) = printed("compact", place, "--date", "2026-11-02")
    assert other_day["version"] is None
    (done,) = printed("compact", place)
    assert (done["joined_files"], done["made_files"], done["version"]) == (7, 3, 3)
    assert done["joined_rows"] == done["made_rows"] == 7 * ROWS

    expire = ("expire", place, "--keep", "1", "--today", "2026-11-02")
    assert printed(*expire, "--dry-run")[0]["days"] == ["2026-11-01"]
    assert len(printed("history", place)) == 3
    assert printed(*expire)[0]["removed_rows"] == 4 * ROWS

    assert printed("vacuum", place) == []
    planned = printed("vacuum", place, "--grace", "0", "--dry-run")
    assert printed("vacuum", place, "--grace", "0") == planned
    assert [row["version"] for row in printed("history", place)] == [4]
    assert {row["file"].partition("/")[0] for row in planned} >= {"frames", "sessions", "_lake"}


def test_a_place_without_a_lake_is_an_unreadable_input(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="there is no lake"):
        invoke(command, ["history", str(tmp_path)], catch_exceptions=False)
    assert not list(tmp_path.iterdir())


def test_a_size_that_is_too_small_is_refused(place: str) -> None:
    ran = invoke(command, ["compact", place, "--target", "1kB"])
    assert ran.exit_code == 2
    assert "at least 1MB" in ran.output


def test_credentials_in_a_url_are_not_printed() -> None:
    assert without_credentials("s3://key:secret@bucket/lake?x=y") == "s3://bucket/lake"
    assert without_credentials("/data/lake") == "/data/lake"
