"""The notebook and the daily job of the documentation, run for real."""

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.spark.random_captures import conversations, record

from polymux.spark.runtime.spark_home import importable_environ

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "howto" / "captures.ipynb"
DAG = ROOT / "deploy" / "airflow" / "polymux_daily.py"
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
    """Stands in for Airflow's DAG."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> "Dag":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The arguments of the job's one operator, with stand-ins for Airflow."""
    found: list[dict[str, Any]] = []

    def bash_operator(**options: Any) -> None:
        found.append(options)

    for name in (
        "airflow", "airflow.providers", "airflow.providers.standard",
        "airflow.providers.standard.operators", "airflow.providers.standard.operators.bash",
    ):  # fmt: skip
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["airflow"], "DAG", Dag, raising=False)
    bash = sys.modules["airflow.providers.standard.operators.bash"]
    monkeypatch.setattr(bash, "BashOperator", bash_operator, raising=False)
    monkeypatch.setenv("POLYMUX_CAPTURES", str(tmp_path / "captures"))
    monkeypatch.setenv("POLYMUX_TABLES", str(tmp_path / "tables"))
    monkeypatch.setenv("POLYMUX_MASTER", "local[2]")
    names = runpy.run_path(str(DAG))
    assert names["dag"].options["dag_id"] == "polymux_daily"
    (options,) = found
    return options


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


def test_the_daily_job_writes_the_tables_of_its_day(operator: Any, tmp_path: Path) -> None:
    (tmp_path / "captures" / DAY).mkdir(parents=True)
    (tmp_path / "tables").mkdir()
    record([tmp_path / "captures" / DAY / "a.pcapng"], conversations(21, 2))
    (tmp_path / "captures" / DAY / "b.pcapng").write_bytes(b"this is not a capture at all")
    code, said = run_job(operator, tmp_path, f'exec {sys.executable} -m polymux "$@"')
    assert (code, "could not be read to their end" in said) == (0, True), said
    assert (tmp_path / "tables" / DAY / "manifest.json").exists()
    assert (tmp_path / "tables" / DAY / "report.html").exists()


def test_the_daily_job_is_skipped_without_captures(operator: Any, tmp_path: Path) -> None:
    code, said = run_job(operator, tmp_path, "exit 1")
    assert code == operator["skip_on_exit_code"]
    assert f"no captures of {DAY}" in said


@pytest.mark.parametrize("code", [1, 3, 5, 130])
def test_the_daily_job_fails_where_nothing_was_published(
    operator: Any, tmp_path: Path, code: int
) -> None:
    (tmp_path / "captures" / DAY).mkdir(parents=True)
    found, _ = run_job(operator, tmp_path, f"exit {code}")
    assert found == code
