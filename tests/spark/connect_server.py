"""A real server of Spark Connect on loopback, started from the installed PySpark."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.java import find_java
from polymux.spark.runtime.settings import FAST_START_OPTIONS
from polymux.spark.runtime.spark_home import link_home, pyspark_home

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 200


class ConnectServer:
    """A server that runs its tasks on `master`. Its environment holds nothing of ours: no
    PYTHONPATH, and a folder of its own to run in. `url` is its address for clients."""

    def __init__(self, folder: Path, master: str) -> None:
        java = find_java()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"sc://127.0.0.1:{port}"
        self._port = port
        self._log = folder / "server.log"
        # Not the shared home without PySpark's archive, which a server gives to its workers.
        home = link_home(pyspark_home(), folder / "home")
        quick = " ".join([*FAST_START_OPTIONS, *classdata.java_options(java)])
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": quick,
            "spark.executor.extraJavaOptions": quick,
            "spark.sql.warehouse.dir": (folder / "warehouse").as_uri(),
            "spark.ui.enabled": "false",
        }
        settings = [f"--conf={name}={value}" for name, value in conf.items()]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    home / "bin" / "spark-class", "org.apache.spark.deploy.SparkSubmit",
                    "--master", master, "--class", SERVER,
                    *settings, "spark-internal",
                ],
                cwd=folder,
                env={
                    "PATH": os.environ["PATH"],
                    "JAVA_HOME": str(java.home),
                    "SPARK_HOME": str(home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
