"""Tables put in place: what a run removes beside its output, and what it refuses to publish."""

from pathlib import Path

import pytest

from polymux.core.errors import PolymuxError
from polymux.spark.batch.atomic_output import StagedOutput, check_output


@pytest.mark.parametrize("name", ["tables-new", "tables-ready", "tables-" + "0" * 32, "tables[1]"])
def test_a_run_leaves_what_another_output_with_a_longer_name_has_staged(
    tmp_path: Path, name: str
) -> None:
    other = StagedOutput(str(tmp_path / name))
    StagedOutput(str(tmp_path / "tables")).discard()
    assert other.staging.is_dir()
    assert other.ready.is_dir()


@pytest.mark.parametrize("name", ["tables", "tables[1]"])
def test_a_run_removes_what_a_killed_run_of_the_same_output_has_left(
    tmp_path: Path, name: str
) -> None:
    killed = StagedOutput(str(tmp_path / name))
    (killed.staging / "sessions").mkdir()
    killed.ready.with_name(killed.ready.name + "-old").mkdir()
    StagedOutput(str(tmp_path / name)).discard()
    assert list(tmp_path.iterdir()) == []


def test_looking_whether_an_output_can_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    check_output(str(tmp_path / "tables"))
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_staging_was_removed_says_so_and_publishes_nothing(tmp_path: Path) -> None:
    first = StagedOutput(str(tmp_path / "tables"))
    second = StagedOutput(str(tmp_path / "tables"))
    (first.staging / "sessions").mkdir(parents=True)  # a worker that was still writing
    with pytest.raises(PolymuxError, match="were removed during the run"):
        first.collect_files([])
    assert not first.final.exists()
    assert second.ready.is_dir()
