"""One local session for every test of this folder, and one cluster of two workers.

A Spark takes seconds to start, so a test that needs a driver of its own (another master, no
Java, a fresh process) runs it as a child process, and several tests read what the child said.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from polymux.spark import classdata
from polymux.spark.java import find_java
from polymux.spark.session import spark_session
from polymux.spark.settings import QUICK_START
from polymux.spark.spark_home import package_folder, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RunDriver = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def kept_cache(pytestconfig: pytest.Config) -> Iterator[Path]:
    """A cache that belongs to the tests and is kept between runs, as the user's is."""
    patch = pytest.MonkeyPatch()
    folder = pytestconfig.rootpath / ".pytest_cache" / "polymux"
    patch.setenv("POLYMUX_CACHE", str(folder))
    # A run leaves no process behind; one test makes the archive if it is not there.
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
    it starts has to find or get the package by itself.
    """

    def run(program: str, *args: str, environ: dict[str, str] | None = None) -> Any:
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
            timeout=250,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        script.unlink()
        told = json.loads(done.stdout)
        told["left behind"] = sorted(path.name for path in folder.iterdir())
        return told

    return run


@dataclass(frozen=True)
class Cluster:
    """A standalone master with two workers of one core and one GiB each."""

    master: str
    conf: dict[str, str]  # settings with which its executors start quickly and stay small
    folder: Path  # master.log, worker0.log, worker1.log, and what the executors wrote


@pytest.fixture(scope="session")
def standalone_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real master and two real workers on loopback, started from the installed PySpark.

    Their environment holds nothing of ours: no PYTHONPATH, and a folder of their own to run in.
    """
    folder = tmp_path_factory.mktemp("cluster")
    home, java = spark_home(), find_java()
    quick = " ".join([*QUICK_START, *classdata.options(java)])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    environ = {
        "PATH": os.environ["PATH"],
        "JAVA_HOME": str(java.home),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_PUBLIC_DNS": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{quick} -Dspark.master.rest.enabled=false",
        "SPARK_LAUNCHER_OPTS": " ".join(QUICK_START),
    }
    host = ["--host", "127.0.0.1", "--webui-port", "0"]
    commands = {
        "master": ["org.apache.spark.deploy.master.Master", *host, "--port", str(port)],
        **{
            f"worker{number}": [
                "org.apache.spark.deploy.worker.Worker",
                *host,
                *("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work{number}")),
                master,
            ]
            for number in range(2)
        },
    }
    running = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        [home / "bin" / "spark-class", *command],
                        cwd=folder,
                        env=environ,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
            if name == "master":
                # A worker that comes too early tries again only after ten seconds.
                _wait_for("elected leader", 1, folder / "master.log", running)
        _wait_for("Registering worker", 2, folder / "master.log", running)
        conf = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": quick,
        }
        yield Cluster(master, conf, folder)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(words: str, times: int, log: Path, running: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + 100
    while log.read_text().count(words) < times:
        assert all(process.poll() is None for process in running), log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
