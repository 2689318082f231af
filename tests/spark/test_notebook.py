"""The cells of docs/spark.md, run one after another in one session as in a notebook."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_cells_run_and_show_what_they_say(
    spark: "SparkSession",
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.S)
    assert len(cells) == 7
    # The session of the tests was started elsewhere, and relative paths are its folder's.
    place = {
        '"late.pcapng"': f'"{tmp_path}/late.pcapng"',
        "'late.pcapng'": f"'{tmp_path}/late.pcapng'",
        'load(".")': f'load("{tmp_path}")',
    }
    names: dict[str, object] = {"spark": spark}
    said = []
    for number, cell in enumerate(cells, 1):
        for written, meant in place.items():
            cell = cell.replace(written, meant)
        exec(compile(cell, f"{PAGE.name} cell {number}", "exec"), names)
        said.append(capsys.readouterr().out)
    for table in ("late", "talks"):
        spark.sql(f"DROP TABLE {table}")
    frames, violations, joined, counted, from_catalog, selected = said[1:]
    assert frames.count("violation") == 1
    assert "MessageInitiator" in frames
    assert violations.split() == ["dialer", "d1", "mplex.write-after-close", "error"]
    assert "192.0.2.1:40000" in joined
    assert "NewStream" in counted
    assert from_catalog.count("192.0.2.1:40000") == 6
    assert re.fullmatch(r"\[\('\w+', 'd1'\)\]\n", selected)
    assert spark.range(3).count() == 3
