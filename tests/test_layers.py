"""Which package may import which, what the base install needs, and which names are private."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from tools.private_access import accesses

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polymux"

MAX_PRIVATE_ACCESSES = 20  # most of them reach into PySpark, which has no public name for it

ALLOWED = {
    "text": set(),
    "core": set(),
    "protocols": {"core"},
    "capture": {"text", "core"},
    "live": {"text", "protocols", "core"},
    "aio": {"text", "live", "protocols", "core"},
    "sync": {"text", "live", "protocols", "core"},
    "anyio": {"text", "aio", "live", "protocols", "core"},
    "record": {"text", "aio", "live", "capture", "protocols", "core"},
    "analysis": {"text", "capture", "protocols", "core"},
    "spark": {"text", "aio", "live", "analysis", "capture", "protocols", "core"},
    "report": {"text", "spark", "analysis", "capture", "protocols", "core"},
    "conform": {"text", "aio", "live", "capture", "protocols", "core"},
    "testing": {"conform", "protocols", "core"},
    "metrics": {"aio", "live", "core"},
    "relay": {
        "text",
        "conform",
        "record",
        "analysis",
        "metrics",
        "aio",
        "live",
        "capture",
        "protocols",
        "core",
    },
    "cli": {
        "text",
        "report",
        "spark",
        "analysis",
        "record",
        "aio",
        "live",
        "capture",
        "protocols",
        "core",
        "conform",
        "testing",
        "metrics",
        "relay",
    },
}


def imported_packages(path: Path) -> set[str]:
    """The packages of polymux that a file imports, inside functions too."""
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
    for path in (SOURCE / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= known, path
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert module.split(".")[0] in known or module.startswith("polymux.core"), path


def asyncio_names(path: Path) -> set[str]:
    """What a file takes from asyncio; `asyncio` for the module itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "asyncio":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "asyncio"}
    return found


@pytest.mark.parametrize("package", ["live", "sync"])
def test_sessions_know_no_event_loop(package: str) -> None:
    exceptions = {"CancelledError", "IncompleteReadError", "InvalidStateError"}
    for path in (SOURCE / package).rglob("*.py"):
        assert asyncio_names(path) <= exceptions, path.relative_to(ROOT)


def test_the_base_install_imports_without_any_extra() -> None:
    code = (
        "import sys\n"
        "for name in ('pyarrow', 'pyspark', 'websockets', 'jinja2', 'zstandard',"
        " 'prometheus_client', 'pandas', 'anyio', 'trio'): sys.modules[name] = None\n"
        "import polymux, polymux.cli\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_private_names_of_other_objects_are_hardly_used() -> None:
    found = accesses(SOURCE.parent)
    assert len(found) <= MAX_PRIVATE_ACCESSES, "\n".join(found)


def imported_modules(path: Path, known: dict[str, Path]) -> set[str]:
    """The modules of polymux that a file imports, also for its types only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(known)


def reachable(start: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in imports[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def test_no_import_cycle_has_more_than_four_modules() -> None:
    known = {
        ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    }
    imports = {name: imported_modules(path, known) - {name} for name, path in known.items()}
    reached = {name: reachable(name, imports) for name in known}
    for name, others in reached.items():
        cycle = {other for other in others if name in reached[other]}
        assert len(cycle) <= 4, sorted(cycle)
