"""Programs that bring their own session: started by `spark-submit`, or by stock PySpark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.random_captures import conversations, record, without_spark

from polymux.analysis.output.table_digest import digest_tables
from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.java import find_java
from polymux.spark.runtime.settings import FAST_START_OPTIONS
from polymux.spark.runtime.spark_home import importable_environ, spark_home

pytestmark = pytest.mark.timeout(300)  # a Java of its own, on a machine that may be busy

REFUSED = "spark-submit has chosen the master local[2], not local[7]: leave --master to it"
PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession
from polymux.cli import cli
from polymux.core.errors import PolymuxError
from polymux.spark import analyze, spark_session

spark = SparkSession.builder.getOrCreate()
done = analyze(spark, [sys.argv[1]], sys.argv[2], content=True)
told = {"sessions": done.total.sessions, "conserved": done.conserved}
with spark_session() as same:
    told["same"] = same.sparkContext is spark.sparkContext
told["rows"] = spark.read.parquet(sys.argv[2] + "/sessions").count()
rows = spark.read.format("polymux").option("columns", "session_id").load(sys.argv[1])
told["found by itself"] = rows.distinct().count()
told["master"] = spark.sparkContext.master
spark.stop()

# A session that polymux makes has the settings of the launcher, as has the command.
with spark_session(conf={"spark.polymux.own": "1"}) as made:
    conf = made.sparkContext.getConf()
    names = ("spark.master", "spark.polymux.set", "spark.polymux.own")
    told["made"] = [conf.get(name) for name in names]
    told["again"] = analyze(made, [sys.argv[1]], sys.argv[2] + "-again").total.sessions
try:
    with spark_session("local[7]"):
        pass
except PolymuxError as refused:
    told["refused"] = str(refused)
out = sys.argv[2] + "-command"
code = cli(["analyze", sys.argv[1], "--out", out, "--no-report"], standalone_mode=False)
told["command"] = [code, os.path.exists(out + "/manifest.json")]
print("TOLD " + json.dumps(told))
"""


def test_a_program_under_spark_submit_keeps_its_session(tmp_path: Path) -> None:
    capture, program = tmp_path / "all.pcapng", tmp_path / "job.py"
    record([capture], conversations(21, 6))
    without_spark([capture], tmp_path / "plain")
    program.write_text(PROGRAM)
    quick = " ".join([*FAST_START_OPTIONS, *classdata.java_options(find_java())])
    done = subprocess.run(
        [
            spark_home() / "bin" / "spark-submit", "--master", "local[2]",
            "--conf", "spark.ui.enabled=false", "--conf", "spark.polymux.set=yes",
            "--driver-java-options", quick,
            program, str(capture), str(tmp_path / "t"),
        ],
        cwd=tmp_path,
        env={
            **importable_environ(),
            "JAVA_HOME": str(find_java().home),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("TOLD "))
    assert json.loads(line[5:]) == {
        "sessions": 6, "conserved": True, "same": True, "rows": 6, "found by itself": 6,
        "master": "local[2]", "made": ["local[2]", "yes", "1"], "again": 6,
        "refused": REFUSED,
        "command": [0, True],
    }  # fmt: skip
    # A worker of PySpark may find its pipe closed when the session stops; nothing else fails.
    tracebacks = done.stderr.split("Traceback (most recent call last):\n")[1:]
    assert all("pyspark/daemon.py" in text.splitlines()[0] for text in tracebacks), done.stderr
    assert digest_tables(tmp_path / "t") == digest_tables(tmp_path / "plain")
