"""The notebook and the daily jobs of the documentation, run for real."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.spark.random_captures import conversations, record

from polymux.spark.lake.lake import open_lake
from polymux.spark.runtime.spark_home import importable_environ

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "howto" / "captures.ipynb"
DAGS = ROOT / "deploy" / "airflow"
DAY = "2026-11-18"

pytestmark = pytest.mark.timeout(300)  # a Java of its own, on a machine that may be busy


def test_the_notebook_runs_from_its_first_cell_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", importable_environ().get("PYTHONPATH", ""))
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call] # theirs
    client = NotebookClient(
        notebook,
        timeout=200,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = ["".join(str(output) for output in cell.outputs) for cell in cells]
    assert "violation" in said[2]
    assert "mplex.write-after-close" in said[3]
    assert "1 session, conserved" in said[4]
    assert (tmp_path / "tables" / "manifest.json").exists()


class Dag:
    """Stands in for Airflow's DAG; `now` is the one whose block was entered last."""

    now: "Dag"

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.operators: list[Operator] = []

    def __enter__(self) -> "Dag":
        Dag.now = self
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Operator:
    """Stands in for Airflow's operator of a command."""

    def __init__(self, **options: Any) -> None:
        self.options = {**Dag.now.options.get("default_args", {}), **options}
        self.after: list[Operator] = []
        Dag.now.operators.append(self)

    def __rshift__(self, later: "Operator") -> "Operator":
        later.after.append(self)
        return later


Load = Callable[[str], Dag]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Load:
    """Run a file of `deploy/airflow` with stand-ins for Airflow; return its DAG."""
    for name in (
        "airflow", "airflow.providers", "airflow.providers.standard",
        "airflow.providers.standard.operators", "airflow.providers.standard.operators.bash",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["airflow"], "DAG", Dag, raising=False)
    bash = sys.modules["airflow.providers.standard.operators.bash"]
    monkeypatch.setattr(bash, "BashOperator", Operator, raising=False)
    for name in ("captures", "tables", "lake"):
        monkeypatch.setenv(f"POLYMUX_{name.upper()}", str(tmp_path / name))
    monkeypatch.setenv("POLYMUX_MASTER", "local[2]")

    def run(name: str) -> Dag:
        dag: Dag = runpy.run_path(str(DAGS / f"{name}.py"))["dag"]
        assert dag.options["dag_id"] == name
        return dag

    return run


@pytest.fixture
def operator(load: Load) -> dict[str, Any]:
    """The arguments of the one operator of the job with a folder for each day."""
    (operator,) = load("polymux_daily").operators
    return operator.options


def run_job(operator: dict[str, Any], tmp_path: Path, polymux: str) -> tuple[int, str]:
    """Run the job's command as Airflow does, with a command `polymux` of these lines of shell."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    command = tmp_path / "bin" / "polymux"
    command.write_text(f"#!/bin/sh\n{polymux}\n")
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", operator["bash_command"].replace("{{ ds }}", DAY)],
        env={
            **importable_environ(),
            **operator["env"],
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=250,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_daily_job_writes_the_tables_of_its_day(
    operator: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "captures" / DAY).mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    record([tmp_path / "captures" / DAY / "a.pcapng"], conversations(21, 2))
    (tmp_path / "captures" / DAY / "b.pcapng").write_bytes(b"this is not a capture at all")
    code, said = run_job(operator, tmp_path, f'exec {sys.executable} -m polymux "$@"')
    assert (code, "could not be read to their end" in said) == (0, True), said
    assert (tmp_path / "tables" / DAY / "manifest.json").exists()
    assert (tmp_path / "tables" / DAY / "report.html").exists()


def test_the_daily_job_is_skipped_without_captures(
    operator: dict[str, Any], tmp_path: Path
) -> None:
    code, said = run_job(operator, tmp_path, "exit 1")
    assert code == operator["skip_on_exit_code"]
    assert f"no captures of {DAY}" in said


@pytest.mark.parametrize("code", [1, 3, 5, 130])
def test_the_daily_job_fails_where_nothing_was_published(
    operator: dict[str, Any], tmp_path: Path, code: int
) -> None:
    (tmp_path / "captures" / DAY).mkdir(parents=True)
    found, _ = run_job(operator, tmp_path, f"exit {code}")
    assert found == code


def test_the_job_of_a_lake_adds_what_is_new_and_then_keeps_the_lake(
    load: Load, tmp_path: Path
) -> None:
    append, maintain = load("polymux_lake").operators
    assert maintain.after == [append]
    (tmp_path / "captures").mkdir()
    record([tmp_path / "captures" / "a.pcapng"], conversations(21, 2))
    (tmp_path / "captures" / "b.pcapng").write_bytes(b"this is not a capture at all")
    whole = f'exec {sys.executable} -m polymux "$@"'
    code, told = run_job(append.options, tmp_path, whole)
    assert (code, "could not be read to their end" in told) == (0, True), told
    lake = open_lake(str(tmp_path / "lake"))
    version = lake.current()
    assert version is not None
    assert version.number == 1
    assert sum(file.rows for file in version.files_of("sessions")) == 2
    code, told = run_job(maintain.options, tmp_path, whole)
    assert code == 0, told
    assert [each.operation for each in lake.history()] == ["append", "expire"]  # it was of 2023


@pytest.mark.parametrize("code", [1, 3, 5, 130])
def test_the_job_of_a_lake_fails_where_nothing_was_committed(
    load: Load, tmp_path: Path, code: int
) -> None:
    append, _ = load("polymux_lake").operators
    found, _ = run_job(append.options, tmp_path, f'[ "$1" = lake ] || exit {code}')
    assert found == code


def test_the_job_of_a_lake_names_the_exchange_the_catalog_and_the_keys(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("exchange", "catalog", "keys"):
        monkeypatch.setenv(f"POLYMUX_{name.upper()}", f"of {name}")
    append, maintain = load("polymux_lake").operators
    print_words = "for word; do printf '<%s>' \"$word\"; done; echo"
    _, told = run_job(append.options, tmp_path, print_words)
    assert "<--exchange><of exchange><--catalog><of catalog><--keys><of keys>" in told
    _, told = run_job(maintain.options, tmp_path, print_words)
    assert told.count("<--catalog><of catalog>") == len(told.splitlines()) == 3
