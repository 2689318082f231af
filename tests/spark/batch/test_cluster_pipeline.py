"""The pipeline on a real standalone cluster, with a worker that dies in the middle of it."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import RunDriver
from tests.spark.local_cluster import Cluster
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables

pytestmark = pytest.mark.timeout(300)  # six Javas, on a machine that may be busy

TASKS = 24

BARE = """
import sys

class HidePolymux:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "polymux":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, HidePolymux())
"""

DRIVER = """
import json, os, shutil, sys, threading, time
from polymux.spark import analyze, progress, spark_session
from polymux.core.errors import CaptureUnavailable, PolymuxError

master, conf, capture, small, out, flag = sys.argv[1:]
told = {"walked": []}
size = os.path.getsize(capture) // TASKS

def moved(row):
    if stage[-1] in ("analyze", "publish"):  # publish runs no tasks: these are the last of analyze
        told["walked"].append([row.done, row.total])
        if 2 <= row.done < row.total - 8:
            open(flag, "w").close()  # the test kills a worker now

def place(_):
    time.sleep(1)  # so that both workers have a task
    return os.getcwd()

stage = [""]
with spark_session(master, conf=json.loads(conf)) as spark:
    options = dict(content=True, max_partition_bytes=size)
    done = analyze(spark, [capture], out, **options)
    told["conserved"] = done.conserved
    told["sessions"] = done.total.sessions
    told["cores"] = spark.sparkContext.defaultParallelism
    # A file that one of the workers sees: each has a working directory of its own. It is one of
    # more files than are looked for before the work begins.
    os.mkdir("many")
    for number in range(21):
        shutil.copy(small, f"many/{number:02}.pcapng")
    many = os.path.abspath("many")
    folders = sorted(set(spark.sparkContext.parallelize(range(2), 2).map(place).collect()))
    told["folders"] = len(folders)
    for folder in (".", folders[0]):
        shutil.copy(capture, os.path.join(folder, "half.pcapng"))
    half, told["half"] = out + "-half", []
    told["before half"] = analyze(spark, [many], half, **options).total.sessions
    for _ in range(3):
        try:
            done = analyze(spark, [many, "/proc/self/cwd/half.pcapng"], half, **options)
            found = done.total.sessions
        except CaptureUnavailable as lost:
            found = str(lost)
        told["half"].append([found, spark.read.parquet(half + "/sessions").count()])
    os.remove("half.pcapng")
    with progress(spark, moved, interval=0.02):
        done = analyze(spark, [capture], out + "-killed", **options, on_stage=stage.append)
    told["sessions again"] = done.total.sessions
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    told["executors"] = executors
    told["session goes on"] = spark.range(3).count()
    # A file that the driver sees and no worker does.
    shutil.copy(small, "z-unseen.pcapng")
    try:
        unseen = "/proc/self/cwd/z-unseen.pcapng"
        analyze(spark, [many, unseen], out, content=True)
    except CaptureUnavailable as lost:
        told["lost"] = str(lost)
    shutil.rmtree("many")
    os.remove("z-unseen.pcapng")
# Workers on a machine without polymux.
bare = os.path.join(os.path.dirname(flag), "bare")
os.mkdir(bare)
with open(os.path.join(bare, "sitecustomize.py"), "w") as file:
    file.write(BARE)
conf = {**json.loads(conf), "spark.executorEnv.PYTHONPATH": bare}
with spark_session(master, conf=conf, ship=False) as spark:
    try:
        analyze(spark, [capture], out + "-none")
    except PolymuxError as refused:
        told["refused"] = str(refused)
print(json.dumps(told))
""".replace("TASKS", str(TASKS)).replace("BARE", repr(BARE))


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captures")
    path = folder / "all.pcapng"
    record([path], conversations(300, 40))
    record([folder / "small.pcapng"], conversations(900, 1))
    return path


@pytest.fixture(scope="module")
def told(standalone_cluster: Cluster, run_driver: RunDriver, capture: Path) -> Any:
    """The results of the driver; one worker is killed during the second analysis."""
    cluster, flag = standalone_cluster, capture.parent / "now"
    killed = threading.Event()

    def kill() -> None:
        deadline = time.monotonic() + 200
        while not flag.exists():
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        cluster.kill_worker(1)
        killed.set()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    out = capture.parent / "tables"
    told = run_driver(
        DRIVER, cluster.master, json.dumps(cluster.conf), str(capture),
        str(capture.parent / "small.pcapng"), str(out), str(flag),
        loss=("Lost executor", "requests outstanding when connection"),
    )  # fmt: skip
    told["killed"] = killed.is_set()
    cluster.start_worker(1)
    cluster.wait_for_workers()
    return told


def test_the_cluster_gives_the_tables_of_the_walk_without_spark(told: Any, capture: Path) -> None:
    without_spark([capture], capture.parent / "plain")
    assert told["conserved"]
    assert told["sessions"] == 40
    assert told["cores"] == 2
    assert digest_tables(capture.parent / "tables") == digest_tables(capture.parent / "plain")


def test_a_worker_killed_during_the_walk_changes_no_row_and_doubles_none(
    told: Any, capture: Path
) -> None:
    assert told["killed"]
    assert told["executors"] == 1
    assert told["walked"][-1][0] == told["walked"][-1][1]
    assert told["sessions again"] == 40
    out = capture.parent / "tables-killed"
    assert digest_tables(out) == digest_tables(capture.parent / "tables")
    assert not [path.name for path in out.rglob("*") if path.name.startswith(".")]
    assert told["session goes on"] == 3


def test_a_file_that_one_of_two_workers_sees_is_read_by_it_or_named(told: Any) -> None:
    """Spark tries a task again, but not always on the other worker."""
    assert told["folders"] == 2
    published = told["before half"]
    for found, rows in told["half"]:
        if isinstance(found, int):
            published = found
            assert found == told["before half"] + 40
        else:
            assert "half.pcapng: cannot be opened: No such file" in found
        assert rows == published, "the tables are the old ones or the new ones"


def test_a_file_that_no_worker_sees_fails_the_run_which_names_it(told: Any, capture: Path) -> None:
    assert "z-unseen.pcapng: cannot be opened: No such file" in told["lost"]
    # The tables are those of the run before.
    assert digest_tables(capture.parent / "tables") == digest_tables(capture.parent / "plain")


def test_workers_without_the_package_are_named_before_any_work(told: Any, capture: Path) -> None:
    assert "cannot run polymux: No module named 'polymux'" in told["refused"]
    assert "install polymux[spark]" in told["refused"]
    assert not (capture.parent / "tables-none").exists()
