"""A real standalone master with two workers on loopback, started from the installed PySpark."""

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.java import find_java
from polymux.spark.runtime.settings import FAST_START_OPTIONS
from polymux.spark.runtime.spark_home import spark_home

HOST = ["--host", "127.0.0.1", "--webui-port", "0"]


class Cluster:
    """Workers of one core and one GiB each. Their environment holds nothing of ours: no
    PYTHONPATH, and a folder of their own to run in.

    `master` is its URL. `conf` are settings with which executors start quickly and stay small.
    `folder` holds master.log, worker0.log, worker1.log, and what the executors wrote.
    """

    def __init__(self, folder: Path) -> None:
        java = find_java()
        quick = " ".join([*FAST_START_OPTIONS, *classdata.java_options(java)])
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.folder = folder
        self.master = f"spark://127.0.0.1:{port}"
        self.conf = {
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": quick,
        }
        self._environ = {
            "PATH": os.environ["PATH"],
            "JAVA_HOME": str(java.home),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_PUBLIC_DNS": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{quick} -Dspark.master.rest.enabled=false",
            "SPARK_LAUNCHER_OPTS": " ".join(FAST_START_OPTIONS),
        }
        self._registered = 0
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        try:
            self._launch(
                "master", "org.apache.spark.deploy.master.Master", *HOST, "--port", str(port)
            )
            # A worker that comes too early tries again only after ten seconds.
            self._wait_for("elected leader", 1)
            self.start_worker(0)
            self.start_worker(1)
            self.wait_for_workers()
        except BaseException:
            self.close()
            raise

    def start_worker(self, number: int) -> None:
        """Start a worker; see `wait_for_workers`."""
        self._launch(
            f"worker{number}",
            "org.apache.spark.deploy.worker.Worker",
            *HOST,
            *("--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / f"work{number}")),
            self.master,
        )
        self._registered += 1

    def wait_for_workers(self) -> None:
        self._wait_for("Registering worker", self._registered)

    def kill_worker(self, number: int) -> None:
        """Kill a worker, its executors and their Pythons with SIGKILL, as if its machine died."""
        process = self._running.pop(f"worker{number}")
        doomed = psutil.Process(process.pid).children(recursive=True)
        for each in doomed:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGKILL)
        process.kill()
        process.wait()

    def close(self) -> None:
        for process in reversed(self._running.values()):
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _launch(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._running[name] = subprocess.Popen(
                [Path(self._environ["SPARK_HOME"], "bin", "spark-class"), *command],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for(self, words: str, times: int) -> None:
        log = self.folder / "master.log"
        deadline = time.monotonic() + 100
        while log.read_text().count(words) < times:
            assert all(one.poll() is None for one in self._running.values()), log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
