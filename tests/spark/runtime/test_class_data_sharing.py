"""The class archive: created once, used when it matches, ignored otherwise."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.command_runner import invoke

from polymux.cli.commands.doctor import doctor
from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.class_data_sharing import (
    archive_path,
    create_archive,
    create_archive_in_background,
    failure_reason,
    java_options,
)
from polymux.spark.runtime.java import Java, find_java
from polymux.spark.runtime.spark_home import importable_environ, pyspark_folder, spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("POLYMUX_CACHE", str(folder))
    monkeypatch.setenv("POLYMUX_CLASS_DATA", "on")
    return folder


def fake_training(monkeypatch: pytest.MonkeyPatch, train: Callable[[Path], None]) -> list[Path]:
    """Replace training with `train`. The list that is returned grows with each call."""
    done: list[Path] = []

    def train_archive(java: Java, archive: Path, part: Path) -> None:
        done.append(archive)
        train(part)

    monkeypatch.setattr(classdata, "train_archive", train_archive)
    return done


def fail(part: Path) -> None:
    raise OSError("no room")


def test_without_an_archive_java_is_told_nothing(own_cache: Path) -> None:
    assert java_options(find_java()) == []


def test_an_archive_is_made_once_and_then_used(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = fake_training(monkeypatch, lambda part: part.touch())
    java = find_java()
    assert create_archive(java)
    assert create_archive(java)
    assert done == [archive_path(java)]
    assert java_options(java) == ["-Xshare:auto", f"-XX:SharedArchiveFile={archive_path(java)}"]


def test_an_archive_that_another_user_can_have_written_is_not_used(
    own_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    java = find_java()
    own_cache.mkdir(mode=0o700)
    archive = archive_path(java)
    archive.touch(mode=0o600)
    assert java_options(java) != []
    own_cache.chmod(0o777)
    assert java_options(java) == []
    assert f"{archive} is not used: another user can have written it" in caplog.text
    own_cache.chmod(0o700)
    archive.chmod(0o666)
    assert java_options(java) == []


@pytest.mark.parametrize("said", [None, "use", "off"])
def test_no_session_creates_an_archive_unless_that_was_asked_for(
    said: str | None, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: started.append(args))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    if said is None:
        monkeypatch.delenv("POLYMUX_CLASS_DATA")
    else:
        monkeypatch.setenv("POLYMUX_CLASS_DATA", said)
    create_archive_in_background(find_java())
    assert started == []
    monkeypatch.setenv("POLYMUX_CLASS_DATA", "on")
    create_archive_in_background(find_java())
    assert len(started) == 1


def test_on_request_an_archive_is_created_although_training_failed_before(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POLYMUX_CLASS_DATA")
    fake_training(monkeypatch, fail)
    java = find_java()
    assert not create_archive(java, requested=True)
    assert failure_reason(java) == "no room"
    fake_training(monkeypatch, lambda part: part.touch())
    assert create_archive(java, requested=True)
    assert failure_reason(java) == ""
    assert java_options(java) != []


def test_the_doctor_creates_the_archive_and_says_why_it_cannot(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_training(monkeypatch, fail)
    refused = invoke(doctor, ["--class-archive"])
    assert refused.exit_code == 1
    assert "the archive of Spark's classes was not created: no room" in refused.output
    fake_training(monkeypatch, lambda part: part.touch(mode=0o600))
    made = invoke(doctor, ["--class-archive"])
    assert "class archive of" in made.output
    assert archive_path(find_java()).exists()


def test_another_java_has_another_archive(own_cache: Path) -> None:
    java = find_java()
    assert archive_path(replace(java, version="99")) != archive_path(java)
    assert archive_path(replace(java, runtime=Path("/else"))) != archive_path(java)


def test_a_reinstalled_pyspark_has_another_archive(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jars").mkdir()
    jar = tmp_path / "jars" / "a.jar"
    jar.write_bytes(b"1")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    before = archive_path(find_java())
    os.utime(jar, (1, 1))
    assert archive_path(find_java()) != before


def test_training_that_failed_is_not_repeated_for_a_week(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = fake_training(monkeypatch, fail)
    java = find_java()
    assert not create_archive(java)
    assert not create_archive(java)
    assert len(done) == 1
    note = archive_path(java).with_suffix(".failed")
    assert note.read_text() == "no room\n"
    os.utime(note, (time.time() - 8 * 86400,) * 2)
    assert not create_archive(java)
    assert len(done) == 2


@pytest.mark.parametrize("said", ["off", "use"])
def test_making_archives_can_be_turned_off(
    said: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = fake_training(monkeypatch, lambda part: part.touch())
    monkeypatch.setenv("POLYMUX_CLASS_DATA", said)
    assert not create_archive(find_java())
    assert done == []


def test_a_cache_that_cannot_be_written_means_going_without(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POLYMUX_CACHE", str(tmp_path / "file" / "cache"))
    done = fake_training(monkeypatch, lambda part: part.touch())
    assert not create_archive(find_java())
    assert done == []
    create_archive_in_background(find_java())
    assert spark_home() == pyspark_folder()


def test_only_the_archives_used_last_are_kept(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache.mkdir()
    for age in range(8):
        for suffix in (".jsa", ".base", ".jsa.lock"):
            file = own_cache / f"classes-old{age}{suffix}"
            file.touch()
            os.utime(file, (1000 - age, 1000 - age))
    fake_training(monkeypatch, lambda part: part.touch())
    create_archive(find_java())
    kept = {file.name for file in own_cache.glob("*.jsa")}
    old = {f"classes-old{age}.jsa" for age in range(classdata.MAX_ARCHIVES - 1)}
    assert kept == {archive_path(find_java()).name} | old
    assert len(list(own_cache.glob("*.base"))) == classdata.MAX_ARCHIVES - 1


def test_the_background_process_does_what_it_is_asked(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with a Java whose training fails at once, which the process records."""
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    program = tmp_path / "jdk" / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    java = find_java()
    create_archive_in_background(java)
    note = archive_path(java).with_suffix(".failed")
    deadline = time.monotonic() + 200
    while not note.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not archive_path(java).exists()


@pytest.mark.parametrize("terminal", [True, False])
def test_one_line_announces_the_background_process_and_how_to_turn_it_off(
    terminal: bool,
    own_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On a terminal it is printed, otherwise logged; and only when a process is started."""
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: started.append(args))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    java = find_java()
    with caplog.at_level("INFO", "polymux.spark"):
        create_archive_in_background(java)
        archive_path(java).touch()
        create_archive_in_background(java)
    printed, logged = capsys.readouterr().err, caplog.text
    assert len(started) == 1
    assert (printed if terminal else logged).count(classdata.NOTICE) == 1
    assert classdata.NOTICE not in (logged if terminal else printed)
    assert "POLYMUX_CLASS_DATA=use turns this off" in classdata.NOTICE


def test_a_java_without_classes_of_its_own_gets_a_base(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the one from PyPI; training itself is replaced, because it takes a while."""
    java = find_java({"PATH": "/nowhere"})
    archive = archive_path(java)
    own_cache.mkdir(exist_ok=True)
    seen: list[str] = []

    class Child:
        returncode = 0

        def __init__(self, command: list[str], **_: object) -> None:
            seen.extend(command)

        def communicate(self, timeout: float) -> tuple[str, str]:
            archive.touch()
            return "", ""

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", Child)
        patch.setattr(classdata, "dump_base_archive", lambda java, file: file.touch())
        classdata.train_archive(java, archive, archive)
    base = archive.with_suffix(".base")
    assert f"-XX:SharedArchiveFile={base}" in seen
    assert java_options(java)[1] == f"-XX:SharedArchiveFile={base}:{archive}"


def test_a_base_can_be_made_of_the_java_from_pypi(own_cache: Path, tmp_path: Path) -> None:
    classdata.dump_base_archive(find_java({"PATH": "/nowhere"}), tmp_path / "base")
    assert (tmp_path / "base").stat().st_size > 1 << 20


@pytest.mark.timeout(400)
def test_a_session_maps_the_archive_of_its_training(
    spark: "SparkSession", kept_cache: Path, run_driver: Callable[..., dict[str, object]]
) -> None:
    """Creates the archive in the tests' persistent cache if needed: half a minute, once."""
    java = find_java()
    archive = archive_path(java)
    fresh = not archive.exists()
    if fresh:
        program = (
            "from polymux.spark.runtime.class_data_sharing import create_archive\n"
            "from polymux.spark.runtime.java import find_java\n"
            "raise SystemExit(not create_archive(find_java()))"
        )
        environ = {**importable_environ(), "POLYMUX_CLASS_DATA": "on"}
        subprocess.run([sys.executable, "-c", program], env=environ, check=True, timeout=390)
    assert archive.stat().st_size > 50 << 20
    if not Path("/proc/self/maps").exists():
        return
    if fresh:  # the shared session started before the archive existed
        maps = run_driver(MAPS)["maps"]
    else:
        gateway: Any = spark.sparkContext._gateway
        maps = Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    assert str(archive) in str(maps)


MAPS = """
import json
from pathlib import Path
from polymux.spark import spark_session
with spark_session("local[1]") as spark:
    java = spark.sparkContext._gateway.proc.pid
    print(json.dumps({"maps": Path(f"/proc/{java}/maps").read_text()}))
"""


def test_an_archive_that_is_damaged_does_no_harm(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.jsa"
    damaged.write_bytes(b"not an archive" * 1000)
    program = str(find_java().program)
    command = [program, "-Xshare:auto", f"-XX:SharedArchiveFile={damaged}", "-version"]
    assert subprocess.run(command, capture_output=True, timeout=100).returncode == 0
