"""polymux on a server of Spark Connect, with a client that has no way to Java."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import RunDriver
from tests.spark.connect_server import ConnectServer
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_rows, digest_tables
from polymux.spark.lake.lake import open_lake
from polymux.spark.runtime.spark_home import package_folder

pytestmark = pytest.mark.timeout(400)  # two or four Javas, on a machine that may be busy

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
MASTER = "local-cluster[2,1,1024]" if SOAK else "local[2]"
DRIVER_NAMES = {"sparkContext", "_sc", "_jvm", "_jsc", "_jsparkSession", "SparkContext", "py4j"}

DRIVER = """
import sys

class ClientOnly:
    '''PySpark as the package pyspark-client installs it.'''

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "py4j" or name.startswith("pyspark.core"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, ClientOnly())

import json, os, shutil, threading, time
from polymux.spark import analyze, progress, register, spark_session
from polymux.core.errors import CaptureUnavailable, PolymuxError
from polymux.spark.incremental import follow
from polymux.spark.runtime.stages import run_stage

remote, capture, out = sys.argv[1:]
told = {"stages": []}
size = os.path.getsize(capture) // 6
with spark_session(remote=remote) as spark:
    done = analyze(spark, [capture], out, content=True, max_partition_bytes=size)
    told["sessions"], told["conserved"] = done.total.sessions, done.conserved

    def look(number):
        import polymux.core.errors as errors
        import os
        return os.path.relpath(errors.__file__), errors.__file__

    told["workers"] = list(run_stage(spark, look, [1, 2], os.path.dirname(out)))

    register(spark)
    rows = spark.read.format("polymux").option("table", "streams").load(capture)
    told["streams"] = rows.count()
    told["reused"] = [rows.where("ending = 'clean'").count(), rows.count()]

    stream = spark.readStream.format("polymux").option("table", "streams")
    folder = os.path.dirname(capture) + "/inbox"
    query = (
        stream.load(folder).writeStream.format("parquet").trigger(availableNow=True)
        .option("checkpointLocation", out + "-checkpoint").start(out + "-stream")
    )
    query.awaitTermination()
    told["followed"] = spark.read.parquet(out + "-stream").count()

    parts, lake = os.path.dirname(capture) + "/parts", out + "-lake"
    told["versions"], kept = [], parts + "/../two.pcapng"
    os.rename(parts + "/two.pcapng", kept)

    def more():
        os.rename(kept, parts + "/two.pcapng")
        return False

    waits = iter([more, lambda: True])
    with follow.jobs_cancelled_by(spark, lambda: False):
        follow.follow_into_lake(
            follow.GrowingFolder(parts), lambda paths: analyze(spark, paths, lake, append=True),
            wait=lambda: next(waits)(), on_retry=print,
            on_batch=lambda done: told["versions"].append([done.lake.version, len(done.captures)]),
        )

    def lose(path):
        from polymux.capture.io.sources import LostInput
        raise LostInput(f"{path}: is gone")

    try:
        list(run_stage(spark, lose, ["/captures/a.pcapng"], os.path.dirname(out)))
    except CaptureUnavailable as lost:
        told["lost"] = str(lost)
    with spark_session() as same:
        told["same"] = same is spark

    def slow(number):
        import time
        time.sleep(0.5)

    begun = []
    def cancel(group):
        while not any(stage.done for stage in group.stages()):
            time.sleep(0.05)
        begun.append(time.monotonic())
        group.cancel()

    try:
        with progress(spark, lambda stage: told["stages"].append(stage[1:])) as group:
            threading.Thread(target=cancel, args=(group,)).start()
            list(run_stage(spark, slow, range(400), os.path.dirname(out)))
    except Exception as cancelled:
        told["cancelled"] = [type(cancelled).__name__, time.monotonic() - begun[0]]
    told["goes on"] = spark.range(3).count()
    told["tags"] = sorted(spark.getTags())
told["modules"] = [name for name in sys.modules if name.partition(".")[0] == "polymux"]
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    server = ConnectServer(tmp_path_factory.mktemp("server"), MASTER)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    (folder / "inbox").mkdir()
    path = folder / "all.pcapng"
    record([path], conversations(300, 20))
    (folder / "inbox" / "all.pcapng").symlink_to(path)
    (folder / "parts").mkdir()
    without_spark([path], folder / "plain")
    record([folder / "parts" / f"{name}.pcapng" for name in ("one", "two")], conversations(300, 20))
    return path


@pytest.fixture(scope="module")
def told(server: ConnectServer, run_driver: RunDriver, capture: Path) -> Any:
    return run_driver(DRIVER, server.url, str(capture), str(capture.parent / "tables"))


def test_the_server_gives_the_tables_of_the_walk_without_spark(told: Any, capture: Path) -> None:
    assert told["conserved"]
    assert told["sessions"] == 20
    assert digest_tables(capture.parent / "tables") == digest_tables(capture.parent / "plain")


def test_the_workers_run_the_polymux_that_was_sent(told: Any) -> None:
    """The server's own Python has another copy, or none."""
    for relative, place in told["workers"]:
        assert relative.split("/")[:2] == ["polymux", "core"]
        assert not Path(place).is_relative_to(package_folder())


def test_captures_are_read_as_dataframes_more_than_once(told: Any, capture: Path) -> None:
    assert told["streams"] > 20
    assert told["reused"][1] == told["streams"] >= told["reused"][0]


def test_a_folder_is_followed_as_a_stream(told: Any) -> None:
    assert told["followed"] == told["streams"]


def test_a_directory_is_followed_into_a_lake(told: Any, capture: Path) -> None:
    assert told["versions"] == [[1, 1], [2, 1]]
    expected = digest_tables(capture.parent / "plain")
    lake = open_lake(str(capture.parent / "tables-lake"))
    now = lake.current()
    assert now is not None
    for table in ("sessions", "streams", "frames", "violations", "stalls", "timeline"):
        assert digest_rows(table, lake.batches(now.files_of(table))) == expected[table]


def test_the_error_of_a_task_keeps_its_type_and_its_file(told: Any) -> None:
    assert told["lost"] == "/captures/a.pcapng: is gone"


def test_the_session_that_runs_is_the_one_that_is_used(told: Any) -> None:
    assert told["same"]
    assert told["goes on"] == 3


def test_a_cancelled_stage_ends_and_had_told_its_progress(told: Any) -> None:
    kind, seconds = told["cancelled"]
    assert kind != "KeyboardInterrupt"
    assert seconds < (5 if SOAK else 60)  # 100 s if it ran to its end
    assert told["stages"][-1][1] == 400
    assert told["tags"] == []


def test_no_module_of_a_run_reaches_for_the_driver(told: Any) -> None:
    """The modules that were imported, whatever they do with it."""
    assert len(told["modules"]) > 50
    for name in told["modules"]:
        path = package_folder().parent / Path(*name.split("."))
        source = (
            path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        )
        if not source.exists():
            continue  # a part of a module that mypyc has made
        for node in ast.walk(ast.parse(source.read_text())):
            used = {
                ast.Attribute: lambda n: n.attr,
                ast.Name: lambda n: n.id,
                ast.alias: lambda n: n.name.partition(".")[0],
            }.get(type(node))
            assert used is None or used(node) not in DRIVER_NAMES, f"{name}: {ast.unparse(node)}"
