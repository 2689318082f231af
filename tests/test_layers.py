"""Who may import whom, what is public, and what no file may contain."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import polymux
from polymux.core import conversation

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polymux"

ALLOWED = {
    "core": set(),
    "protocols": {"core"},
    "capture": {"core"},
    "aio": {"protocols", "core"},
    "record": {"aio", "capture", "protocols", "core"},
    "analysis": {"capture", "protocols", "core"},
    "spark": {"aio", "analysis", "capture", "protocols", "core"},
    "report": {"spark", "analysis", "capture", "protocols", "core"},
    "testing": {"protocols", "core"},
    "metrics": {"core"},
    "cli": {
        "report",
        "spark",
        "analysis",
        "record",
        "aio",
        "capture",
        "protocols",
        "core",
        "testing",
        "metrics",
    },
}


def imported_packages(path: Path) -> set[str]:
    """The packages of polymux that a file imports, wherever the import stands."""
    package = path.relative_to(SOURCE.parent).with_suffix("").parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{stem}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "polymux" and len(parts) > 1 and (SOURCE / parts[1]).is_dir():
                found.add(parts[1])
    return found


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_no_layer_imports_upward(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        upward = imported_packages(path) - ALLOWED[package] - {package}
        assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


def test_every_package_has_its_place_in_the_layers() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(ALLOWED)


def test_core_needs_only_the_standard_library_and_librt() -> None:
    known = set(sys.stdlib_module_names) | {"librt", "mypy_extensions"}
    for path in (SOURCE / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= known, path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert (node.module or "").split(".")[0] in known, path


def test_the_public_names_are_these() -> None:
    assert sorted(polymux.__all__) == [
        "BadProtocolString", "BadUrl", "Call", "CaptureError", "Endpoint", "Exchange",
        "ItemReceiver", "ItemSender", "LimitExceeded", "Limits", "LocalProtocolError",
        "MinmuxSession", "MissingExtra", "NerdbankSession", "NoFreeIds", "Observer",
        "OmnistreamsSession", "PeerViolation", "Pending", "Policy", "PolymuxError", "Receiver",
        "Sender", "Server", "Session", "SessionClosed", "SessionLimit", "Side", "Stream",
        "StreamAborted", "StreamEnded", "StreamuxSession", "Unreachable", "Unsupported",
        "Vantage", "as_asyncio_streams", "connect", "minmux", "mplex", "nerdbank",
        "omnistreams", "pipe", "protocol", "serve", "streamux",
    ]  # fmt: skip
    for name in polymux.__all__:
        assert getattr(polymux, name) is not None


def test_the_form_that_runs_is_the_one_that_was_asked_for() -> None:
    compiled = not conversation.__file__.endswith(".py")
    if os.environ.get("POLYMUX_RUN") == "interpreted":
        assert not compiled
        return
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    able = shutil.which(os.environ.get("CC", "cc")) is not None and headers
    asked = os.environ.get("POLYMUX_COMPILE") != "no" and "PYTHONPATH" not in os.environ
    print(f"the core runs {'compiled' if compiled else 'interpreted'}")
    if asked and able:
        assert compiled, "a compiler is here, yet the core runs interpreted: make install"


def test_no_source_file_is_over_400_lines() -> None:
    long = [path for path in SOURCE.rglob("*.py") if path.read_text().count("\n") > 400]
    assert not long


def test_no_literal_stands_left_of_a_shift_in_compiled_files() -> None:
    # mypyc 2.4.1 shifts such a literal as a 32-bit C integer.
    folders = [SOURCE / "core", SOURCE / "protocols", *SOURCE.glob("*/hot")]
    for path in (path for folder in folders for path in folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
                left = node.left
                plain = isinstance(left, ast.Constant)
                cast = isinstance(left, ast.Call) and isinstance(left.args[0], ast.Constant)
                assert not plain, f"{path}:{node.lineno}"
                assert not cast, f"{path}:{node.lineno}"


def test_no_interpreted_file_calls_a_compiled_function_with_a_column_alone() -> None:
    # mypyc 2.4.1 never frees a vec that interpreted code hands over as an argument.
    compiled = [SOURCE / "core", SOURCE / "protocols", *SOURCE.glob("*/hot")]
    takers = {
        node.name
        for folder in compiled
        for path in folder.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("vec[" in ast.unparse(each) for each in node.args.args)
    }
    assert "indices_of" in takers
    for path in SOURCE.rglob("*.py"):
        if path.parent not in compiled:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    assert takers.isdisjoint(each.name for each in node.names), path


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    forbidden = re.compile(r"\bpickle\b|\beval\(|\bexec\(|yaml\.load|shell=True")
    for path in SOURCE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("#")[0]
            assert not forbidden.search(code), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_the_base_install_imports_without_any_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'websockets', 'jinja2', 'zstandard',"
        " 'prometheus_client', 'pandas'): sys.modules[name] = None\n"
        "import polymux, polymux.cli\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
