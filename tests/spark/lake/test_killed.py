"""A run that is killed while it commits: nothing is lost, and the next run completes it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.spark.lake.killed_runs import DAY
from tests.spark.lake.lake_runs import ROWS, append, in_order, sorted_rows
from tests.spark.lake.object_store_process import ObjectStoreProcess, object_store_process
from tests.spark.lake.test_formats import read_as_format

from polymux.spark.lake.lake import open_lake
from polymux.spark.lake.store import FORMATS

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
MOMENTS = 20 if SOAK else 4
ROOT = Path(__file__).parent.parent.parent.parent
Kill = Callable[[str, int, float], bool]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStoreProcess]:
    with object_store_process() as found:
        yield found


@pytest.fixture(scope="module")
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def run_and_kill(data_home: Path) -> Iterator[Kill]:
    """Makes a run and kills it after so many seconds. Returns whether it has ended before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.lake.killed_runs"],
        cwd=ROOT,
        env={**os.environ, "XDG_DATA_HOME": str(data_home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def run(place: str, seed: int, seconds: float) -> bool:
        stdin.write(json.dumps([place, seed, seconds]) + "\n")
        stdin.flush()
        code = int(stdout.readline())
        assert code in (0, -signal.SIGKILL)
        return code == 0

    with process:
        yield run
        stdin.close()


@pytest.fixture(params=["directory", "s3"])
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    data_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    monkeypatch.setenv("XDG_DATA_HOME", str(data_home))
    if request.param == "directory":
        return str(tmp_path / "lake")
    found: ObjectStoreProcess = request.getfixturevalue("store")
    return found.lake(tmp_path.name)


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_killed_at_any_moment_leaves_one_version_and_the_next_completes_it(
    place: str, format: str, run_and_kill: Kill
) -> None:
    moments = MOMENTS if SOAK or "://" not in place else 1
    lake = open_lake(place, format)
    append(lake, 1, [DAY])
    started = time.perf_counter()
    append(lake, 2, [DAY])
    whole = time.perf_counter() - started
    last = 2
    randomness = random.Random(None if SOAK else format)
    for seed in range(3, 3 + moments):
        done = run_and_kill(place, seed, randomness.uniform(0, 1.2) * whole)
        now = open_lake(place).current()
        assert now is not None
        assert now.number in ((last + 1,) if done else (last, last + 1))
        if now.number > last:
            assert now.options["seed"] == str(seed)
        counts = {table: sum(file.rows for file in files) for table, files in now.files.items()}
        assert counts == dict.fromkeys(("captures", "frames", "sessions"), now.number * ROWS)
        assert len(sorted_rows(lake, now, "frames")) == now.number * ROWS
        last = now.number

    after = append(open_lake(place), 99, [DAY])
    assert after.number == last + 1
    for table in after.files:
        rows = sorted_rows(lake, after, table)
        assert len(rows) == after.number * ROWS
        assert in_order(read_as_format(lake, after, table)) == rows
