"""Kills at any moment: the tables are the old ones or the new ones, row for row.

The steps of publishing are killed one by one in `test_atomic_output`. Here whole processes are: the
driver, in the suite once, on its own; with POLYMUX_SOAK 20 drivers of a cluster, at random moments
of a run and of publishing, with and without symbolic links, and 20 executors.
"""

import errno
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
import json, os, sys, time
from polymux.spark import analyze, spark_session

master, conf, links, capture, out = sys.argv[1:]

def refuse(*_, **__):
    raise OSError(1, "no links here")

if links == "no links":
    os.symlink = refuse
with spark_session(master, conf=json.loads(conf)) as spark:
    def note(stage):
        print(stage, time.time(), flush=True)
    note("started")
    analyze(spark, capture, out, content=True, on_stage=note, max_partition_bytes=30000)
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


def publish_plain(tables: Path, out: Path, links: bool) -> None:
    """Publish tables that were made without Spark."""
    with pytest.MonkeyPatch.context() as patch:
        if not links:
            patch.setattr(os, "symlink", refuse_link)
        output = StagedOutput(str(out))
        shutil.copytree(tables, output.ready, dirs_exist_ok=True)
        output.publish()


def refuse_link(*_: object, **__: object) -> None:
    raise OSError(errno.EPERM, "no links here")


class DriverKills:
    """Drivers that publish `new` over `old` and are killed meanwhile, and what they left.

    `seen` counts the tables that were found afterwards; `usual` and `publishing` are how long a run
    and its last stage take, in seconds.
    """

    def __init__(self, captures: Path, folder: Path, master: str, conf: dict[str, str]) -> None:
        self._captures, self._folder = captures, folder
        self._arguments = [master, json.dumps(conf)]
        self._rng = random.Random(7)
        self._usual, self._publishing = 1.0, 0.2
        (folder / "driver.py").write_text(DRIVER)
        self.seen = {"old": 0, "new": 0}

    def kill_one(self, links: bool, in_publish: bool) -> None:
        """Kill a driver at a random moment of its run, or of publishing."""
        rng = self._rng
        out = self._folder / ("tables" if links else "tables without links")
        publish_plain(self._captures / "old", out, links)
        command = [
            sys.executable, str(self._folder / "driver.py"), *self._arguments,
            "links" if links else "no links", str(self._captures / "new.pcapng"), str(out),
        ]  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": str(package_folder().parent)}
        with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as driver:
            assert driver.stdout is not None
            told = [driver.stdout.readline()]
            while in_publish and told[-1] and not told[-1].startswith("publish"):
                told.append(driver.stdout.readline())
            time.sleep(rng.uniform(0, (self._publishing if in_publish else self._usual) * 1.2))
            java = psutil.Process(driver.pid).children(recursive=True)
            driver.kill()
            for process in java if rng.random() < 0.5 else []:
                process.send_signal(signal.SIGKILL) if process.is_running() else None
            told += driver.stdout.readlines()
        stages = {name: float(at) for name, at in map(str.split, told)}
        assert "started" in stages
        if "done" in stages:
            self._usual = stages["done"] - stages["index"]
            self._publishing = stages["done"] - stages["publish"]
        self._check(out, links, "done" in stages)

    def _check(self, out: Path, links: bool, done: bool) -> None:
        found = digest_tables(out)
        name = next(name for name in self.seen if digest_of(self._captures, name) == found)
        assert name == "new" or not done
        self.seen[name] += 1
        if links:
            plain = {path.name for path in (out / "frames").iterdir()}
            assert plain == {path.name for path in (out / "_current" / "frames").iterdir()}


def check_taken_over(captures: Path, out: Path, links: bool) -> None:
    """The next run takes the lock of the dead driver over and removes what it left."""
    publish_plain(captures / "new", out, links)
    assert digest_tables(out) == digest_of(captures, "new")
    assert len(list((out / "_runs").iterdir()) if links else [1]) == 1
    assert not list(out.glob("_staging*"))


def test_a_driver_killed_at_a_random_moment_leaves_the_old_tables_or_the_new_ones(
    captures: Path, tmp_path: Path
) -> None:
    kills = DriverKills(captures, tmp_path, "local[2]", {})
    kills.kill_one(links=True, in_publish=False)
    check_taken_over(captures, tmp_path / "tables", links=True)


if SOAK:  # a worker is killed in `test_cluster_pipeline` too

    def test_drivers_of_a_cluster_killed_at_random_moments_leave_old_or_new_tables(
        captures: Path, standalone_cluster: Cluster, tmp_path: Path
    ) -> None:
        cluster = standalone_cluster
        kills = DriverKills(captures, tmp_path, cluster.master, cluster.conf)
        for number in range(KILLS):
            kills.kill_one(links=number % 4 < 2, in_publish=bool(number % 2))
        check_taken_over(captures, tmp_path / "tables", links=True)
        check_taken_over(captures, tmp_path / "tables without links", links=False)
        print(f"drivers killed {KILLS} times: {kills.seen}")

    def test_executors_killed_at_random_moments_change_no_row(
        captures: Path, standalone_cluster: Cluster, run_driver: RunDriver, tmp_path: Path
    ) -> None:
        out = tmp_path / "tables"
        told = run_driver(
            CLUSTER_DRIVER, standalone_cluster.master, json.dumps(standalone_cluster.conf),
            str(captures / "new.pcapng"), str(out), str(KILLS),
            loss=("Lost ", "outstanding", "Exception", "\tat ", "Caused by", "Connection",
                  "Failed to send RPC"),
        )  # fmt: skip
        assert told["killed"] >= KILLS // 2
        assert told["outcomes"] == [[True, 16]] * KILLS
        assert digest_tables(out) == digest_of(captures, "new")
        print(told)
