"""One local session for every test of this folder, and one cluster of two workers.

A Spark takes seconds to start, so a test that needs a driver of its own (another master, no
Java, a fresh process) runs it as a child process, and several tests read what the child said.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.spark.local_cluster import Cluster

from polymux.spark.runtime.session import spark_session
from polymux.spark.runtime.spark_home import package_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunDriver = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def kept_cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A cache that belongs to the tests and is kept between runs, as the user's is."""
    patch = pytest.MonkeyPatch()
    folder = pytestconfig.rootpath / ".pytest_cache" / "polymux"
    patch.setenv("POLYMUX_CACHE", str(folder))
    # Sessions start no background process; one test creates the archive if needed.
    patch.setenv("POLYMUX_CLASS_DATA", "use")
    yield folder
    patch.undo()


@pytest.fixture(scope="session")
def spark(kept_cache: Path) -> Iterator["SparkSession"]:
    with spark_session("local[2]", app_name="polymux tests") as session:
        yield session


@pytest.fixture(scope="session")
def run_driver(tmp_path_factory: pytest.TempPathFactory) -> RunDriver:
    """Run a program as a driver of its own; it prints one line of JSON, which is returned.

    The child can import polymux, but only through the path of the driver's own process: what
    it starts has to find or get the package by itself. `loss`: what it may say on standard error,
    in a line that has one of these texts.
    """

    def run(
        program: str, *args: str, environ: dict[str, str] | None = None, loss: tuple[str, ...] = ()
    ) -> Any:
        folder = tmp_path_factory.mktemp("driver")
        script = folder / "driver.py"
        script.write_text(program)
        environ = dict(os.environ) if environ is None else environ
        done = subprocess.run(
            [sys.executable, script, *args],
            cwd=folder,
            env={**environ, "PYTHONPATH": str(package_folder().parent)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=int((os.environ.get("POLYMUX_SOAK") and 3600) or 250),
        )
        assert done.returncode == 0, done.stderr
        lines = done.stderr.splitlines()
        assert [line for line in lines if not any(text in line for text in loss)] == []
        script.unlink()
        told = json.loads(done.stdout)
        told["left behind"] = sorted(path.name for path in folder.iterdir())
        return told

    return run


@pytest.fixture(scope="session")
def standalone_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.close()
