"""polymux on a real standalone cluster: the package travels with the session."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import RunDriver
from tests.spark.local_cluster import Cluster

from polymux.core import errors
from polymux.spark.runtime.spark_home import package_folder

pytestmark = pytest.mark.timeout(300)  # six Javas, on a machine that may be busy

DRIVER = """
import json, sys
from pyspark import SparkContext
from polymux.spark import checks, spark_session

def look(_):
    import os, platform
    import polymux.core.errors as errors
    from pyspark import BarrierTaskContext
    BarrierTaskContext.get().barrier()  # both tasks run at the same time, so on both workers
    import mypy_extensions
    from librt import vecs
    yield {
        "folder": os.getcwd(),
        "errors": errors.__file__,
        "librt": vecs.__file__,
        "mypy_extensions": mypy_extensions.__file__,
        "raised": str(errors.CaptureError("torn", "a.pcap", 7)),
        "PYTHONPATH": os.environ["PYTHONPATH"],
    }

told = {}
try:
    with spark_session(sys.argv[1], conf=json.loads(sys.argv[2])) as spark:
        context = spark.sparkContext
        told["tasks"] = context.parallelize(range(2), 2).barrier().mapPartitions(look).collect()
        told["workers"] = [
            (check.name, check.ok, check.text)
            for check in checks(sys.argv[1])
            if check.name.startswith("worker")
        ]
        told["host"] = spark.conf.get("spark.driver.host")
        told["options"] = spark.conf.get("spark.driver.extraJavaOptions")
        context.parallelize([0], 1).map(lambda zero: 1 // zero).collect()
except Exception as failure:
    told["failure"] = str(failure)
with spark_session("local[1]", memory="600m") as again:
    told["heap"] = again._jvm.java.lang.Runtime.getRuntime().maxMemory()
    told["rows"] = again.range(3).count()
    java = again.sparkContext._gateway.proc
    java.kill()
    java.wait()
told["context"] = SparkContext._active_spark_context is None and SparkContext._gateway is None
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(standalone_cluster: Cluster, run_driver: RunDriver) -> Any:
    return run_driver(DRIVER, standalone_cluster.master, json.dumps(standalone_cluster.conf))


def test_both_workers_run_the_polymux_that_was_shipped(told: Any) -> None:
    """Compiled where it is compiled here."""
    folders = {task["folder"] for task in told["tasks"]}
    assert len(folders) == 2
    for task in told["tasks"]:
        shipped = Path(task["folder"], "polymux_pkg")
        assert Path(task["errors"]).resolve().is_relative_to(shipped.resolve())
        assert Path(task["errors"]).name == Path(str(errors.__file__)).name
        assert task["raised"] == "a.pcap at byte 7: torn"


def test_what_the_core_imports_is_shipped_with_it(told: Any) -> None:
    for task in told["tasks"]:
        assert "/polymux_pkg/librt/" in task["librt"]
        assert task["mypy_extensions"].endswith("/polymux_pkg/mypy_extensions.py")


def test_the_workers_do_not_see_the_path_of_the_driver(told: Any) -> None:
    for task in told["tasks"]:
        assert str(package_folder().parent) not in task["PYTHONPATH"].split(":")


def test_the_doctor_finds_both_workers_and_polymux_on_them(told: Any) -> None:
    assert len(told["workers"]) == 2
    for _, ok, text in told["workers"]:
        assert ok
        assert "polymux_pkg" in text


def test_a_cluster_on_loopback_is_served_on_loopback_by_a_thorough_compiler(told: Any) -> None:
    assert told["host"] == "127.0.0.1"
    assert "TieredStopAtLevel" not in told["options"]


def test_a_task_that_failed_can_be_read_after_the_session(told: Any) -> None:
    assert "ZeroDivisionError" in told["failure"]


def test_after_a_failed_session_the_next_has_a_java_of_its_own(told: Any) -> None:
    assert told["rows"] == 3
    assert told["heap"] <= 600 << 20


def test_a_session_whose_java_was_killed_ends_without_a_word(told: Any) -> None:
    assert told["context"]
