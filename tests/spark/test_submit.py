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

PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
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
print("TOLD " + json.dumps(told))
spark.stop()
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
            "--conf", "spark.ui.enabled=false", "--driver-java-options", quick,
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
        "master": "local[2]",
    }  # fmt: skip
    assert digest_tables(tmp_path / "t") == digest_tables(tmp_path / "plain")
