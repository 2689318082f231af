"""The shared session: its settings, and that only its owner ends it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from polymux.core.errors import PolymuxError
from polymux.spark.runtime.session import spark_session
from polymux.spark.runtime.spark_home import importable_environ

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.python.unix.domain.socket.enabled", "true"),
        ("spark.python.worker.reuse", "true"),
        ("spark.python.worker.faulthandler.enabled", "true"),
        ("spark.sql.execution.pyspark.udf.faulthandler.enabled", "true"),
        ("spark.ui.enabled", "false"),
        ("spark.sql.adaptive.enabled", "true"),
        ("spark.sql.shuffle.partitions", "4"),
        ("spark.driver.memory", "1g"),
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.authenticate", "true"),
        ("spark.sql.session.timeZone", "UTC"),
    ],
)
def test_the_session_has_the_measured_settings(
    spark: "SparkSession", name: str, value: str
) -> None:
    assert spark.conf.get(name) == value


def test_java_listens_on_the_loopback_interface_only(spark: "SparkSession") -> None:
    gateway: Any = spark.sparkContext._gateway
    spark.sparkContext.parallelize(range(2), 2).collect()
    ports = [
        each.laddr
        for each in psutil.Process(gateway.proc.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert ports
    assert {each.ip for each in ports} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_java_starts_with_the_quick_compiler_and_the_simple_collector(
    spark: "SparkSession",
) -> None:
    options = str(spark.conf.get("spark.driver.extraJavaOptions")).split()
    assert {"-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"} <= set(options)


def test_the_workers_run_this_interpreter_and_import_this_polymux(spark: "SparkSession") -> None:
    def look(_: Iterable[int]) -> Iterator[tuple[str, str, str]]:
        import sys

        import pyspark

        from polymux.core import errors

        yield sys.executable, str(errors.__file__), pyspark.__file__

    from polymux.core import errors

    rows = spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect()
    assert {row[:2] for row in rows} == {(sys.executable, errors.__file__)}
    # Not from the archive in SPARK_HOME, which every worker would compile again.
    assert all(row[2].endswith(f"pyspark{os.sep}__init__.py") for row in rows)
    assert not any(".zip" in row[2] for row in rows)


def test_workers_and_java_talk_over_unix_sockets(spark: "SparkSession") -> None:
    def enabled(_: Iterable[int]) -> Iterator[str | None]:
        import os

        yield os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED")

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(enabled).collect() == ["True"]


def test_arrow_functions_run(spark: "SparkSession") -> None:
    rows = spark.range(1000).mapInArrow(lambda batches: batches, "id bigint")
    assert rows.groupBy("id").count().count() == 1000


def test_a_running_session_is_used_and_left_running(spark: "SparkSession") -> None:
    with spark_session("local[1]", memory="512m", app_name="another") as second:
        assert second.sparkContext is spark.sparkContext
        assert second.conf.get("spark.app.name") == "polymux tests"
    assert spark.range(3).count() == 3


def test_a_running_session_survives_an_exception_in_the_block(spark: "SparkSession") -> None:
    with pytest.raises(ZeroDivisionError), spark_session():
        _ = 1 // 0
    assert spark.range(3).count() == 3


def refused(call: str, **environ: str) -> str:
    """The last line of a fresh process that tries to start a session this way."""
    program = f"from polymux.spark import spark_session\nwith {call}: pass"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**importable_environ(), **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_without_pyspark_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("raise ImportError('not installed')\n")
    path = os.pathsep.join([str(tmp_path), importable_environ().get("PYTHONPATH", "")])
    line = refused("spark_session()", PYTHONPATH=path)
    assert "MissingExtra" in line
    assert "pip install 'polymux[spark]'" in line


def test_too_much_memory_is_refused_before_java_starts() -> None:
    assert "but only" in refused("spark_session(memory='900t')")


def test_a_remote_client_is_told_to_unset_the_variable() -> None:
    line = refused("spark_session('local[1]')", SPARK_REMOTE="sc://head:15002")
    assert "SPARK_REMOTE is set" in line


def test_a_server_of_spark_connect_that_does_not_answer_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"sc://127.0.0.1:{free.getsockname()[1]}/;token=hidden"
        lines = [
            refused(f"spark_session(remote={url!r})"),
            refused("spark_session()", SPARK_REMOTE=url),
        ]
    for line in lines:
        assert "no Spark Connect server answers at sc://127.0.0.1:" in line
        assert "hidden" not in line


@pytest.mark.parametrize("url", ["head:15002", "sc://", "http://head", "sc://head:x"])
def test_what_is_no_server_of_spark_connect_is_refused_with_how_to_write_it(url: str) -> None:
    with pytest.raises(PolymuxError, match=r"write sc://host:port"), spark_session(remote=url):
        pass


def test_a_master_and_a_server_are_not_given_together() -> None:
    both = spark_session("local[1]", remote="sc://head:15002")
    with pytest.raises(PolymuxError, match="give one of them"), both:
        pass


def test_a_java_that_does_not_start_is_quoted() -> None:
    call = "spark_session(conf={'spark.driver.extraJavaOptions': '-agentlib:nosuchagent'})"
    line = refused(call)
    assert "SparkStartError: Spark did not start with Java" in line
    assert "nosuchagent" in line


def test_a_master_that_is_not_known_is_refused_even_beside_a_cluster() -> None:
    assert "is not known" in refused("spark_session('mesos://head')")


def test_errors_are_polymux_errors() -> None:
    from polymux.spark.runtime.session import SparkStartError

    assert issubclass(SparkStartError, PolymuxError)
