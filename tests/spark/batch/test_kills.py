"""Kills at any moment: the tables are the old ones or the new ones, row for row.

The steps of publishing are killed one by one in `test_atomic_output`. Here whole processes are:
the driver, on its own, and executors of a cluster, at random moments of a run. One of each in the
suite; POLYMUX_SOAK kills each 20 times.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest
from tests.spark.conftest import RunDriver
from tests.spark.local_cluster import Cluster
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.spark.batch.atomic_output import StagedOutput
from polymux.spark.runtime.spark_home import package_folder

SOAK = bool(os.environ.get("POLYMUX_SOAK"))
KILLS = 20 if SOAK else 1
pytestmark = pytest.mark.timeout(3000 if SOAK else 300)

DRIVER = """
import sys, time
from polymux.spark import analyze, spark_session
with spark_session("local[2]") as spark:
    def note(stage):
        print(stage, time.time(), flush=True)
    note("started")
    analyze(spark, sys.argv[1], sys.argv[2], content=True, on_stage=note, max_partition_bytes=30000)
    note("done")
"""

CLUSTER_DRIVER = """
import json, os, random, signal, sys, threading, time
import psutil
from polymux.spark import analyze, spark_session

master, conf, capture, out, kills = sys.argv[1:]
told = {"killed": 0, "outcomes": []}
rng = random.Random(4)

def executors():
    # Those of this driver, and of no other on this machine.
    url = f"spark://CoarseGrainedScheduler@127.0.0.1:{spark.conf.get('spark.driver.port')}"
    every = psutil.process_iter(["cmdline"])
    return [process for process in every if url in (process.info["cmdline"] or [])]

with spark_session(master, conf=json.loads(conf)) as spark:
    analyze(spark, [capture], out, content=True, max_partition_bytes=30000)
    begun = time.monotonic()
    analyze(spark, [capture], out, content=True, max_partition_bytes=30000)
    usual = time.monotonic() - begun
    for number in range(int(kills)):
        def kill():
            running = executors()
            if running:
                rng.choice(running).send_signal(signal.SIGKILL)
                told["killed"] += 1
        timer = threading.Timer(rng.uniform(0, usual), kill)
        timer.start()
        done = analyze(spark, [capture], out, content=True, max_partition_bytes=30000)
        timer.join()
        told["outcomes"].append([done.conserved, done.total.sessions])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures, `old` and `new`, and the digests of their tables beside them."""
    folder = tmp_path_factory.mktemp("kills")
    for number, name in enumerate(("old", "new")):
        record([folder / f"{name}.pcapng"], conversations(500 + 50 * number, 16))
        without_spark([folder / f"{name}.pcapng"], folder / name)
        (folder / f"{name}.json").write_text(json.dumps(digest_tables(folder / name)))
    return folder


def digest_of(captures: Path, name: str) -> dict[str, str]:
    found: dict[str, str] = json.loads((captures / f"{name}.json").read_text())
    return found


def publish_plain(tables: Path, out: Path) -> None:
    """Publish tables that were made without Spark."""
    output = StagedOutput(str(out))
    shutil.copytree(tables, output.ready, dirs_exist_ok=True)
    output.publish()


def test_a_driver_killed_at_a_random_moment_leaves_the_old_tables_or_the_new_ones(
    captures: Path, tmp_path: Path
) -> None:
    rng = random.Random(7)
    out = tmp_path / "tables"
    old, new = digest_of(captures, "old"), digest_of(captures, "new")
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environ = {**os.environ, "PYTHONPATH": str(package_folder().parent)}
    seen = {"old": 0, "new": 0}
    usual = 1.0
    for _ in range(KILLS):
        publish_plain(captures / "old", out)
        command = [sys.executable, str(script), str(captures / "new.pcapng"), str(out)]
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline().startswith("started")
            time.sleep(rng.uniform(0, usual * 1.2))
            java = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            for process in java if rng.random() < 0.5 else []:
                process.send_signal(signal.SIGKILL) if process.is_running() else None
            stages = dict(line.split() for line in driver.stdout.read().splitlines())
        if "done" in stages:
            usual = float(stages["done"]) - float(stages["index"])
        found = digest_tables(out)
        assert found in (old, new)
        assert "done" not in stages or found == new
        seen["old" if found == old else "new"] += 1
        plain = {path.name for path in (out / "frames").iterdir()}
        assert plain == {path.name for path in (out / "_current" / "frames").iterdir()}
    publish_plain(captures / "new", out)  # the lock of the dead driver is taken over
    assert digest_tables(out) == new
    assert len(list((out / "_runs").iterdir())) == 1
    print(f"killed {KILLS} times: {seen}")


if SOAK:  # a worker is killed in `test_cluster_pipeline` too

    def test_executors_killed_at_random_moments_change_no_row(
        captures: Path, standalone_cluster: Cluster, run_driver: RunDriver, tmp_path: Path
    ) -> None:
        out = tmp_path / "tables"
        told = run_driver(
            CLUSTER_DRIVER, standalone_cluster.master, json.dumps(standalone_cluster.conf),
            str(captures / "new.pcapng"), str(out), str(KILLS),
            loss=("Lost ", "outstanding", "Exception", "\tat ", "Caused by", "Connection"),
        )  # fmt: skip
        assert told["killed"] >= KILLS // 2
        assert told["outcomes"] == [[True, 16]] * KILLS
        assert digest_tables(out) == digest_of(captures, "new")
        print(told)
