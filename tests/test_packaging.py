"""What `setup.py` builds, through the backend that pip calls, when compiling is not possible."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILT = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md",
         "MANIFEST.in")  # fmt: skip
MADE = shutil.ignore_patterns("__pycache__", "*.egg-info")
TYPE_ERROR = "\n\nwrong: int = 'a type error'\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What a build reads, in a folder of its own."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "src", folder / "src", ignore=MADE)
    for name in BUILT:
        shutil.copy(ROOT / name, folder)
    (folder / "made").mkdir()
    return folder


def build(checkout: Path, hook: str = "build_wheel", **environment: str) -> tuple[int, str]:
    """Call the backend as pip does; returns the exit code and all that was printed."""
    done = subprocess.run(
        [sys.executable, "-c", f"import setuptools.build_meta as b; b.{hook}('made')"],
        cwd=checkout, env={**os.environ, **environment}, text=True, timeout=100,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_every_dependency_of_users_has_an_upper_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"]]
    lists += [
        wanted for extra, wanted in project["optional-dependencies"].items() if extra != "dev"
    ]
    wanted = [line for lines in lists for line in lines if not line.startswith("polymux[")]
    unbounded = [line for line in wanted if "<" not in line and "==" not in line]
    assert len(wanted) > 8
    assert unbounded == []


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def fallback(checkout: Path) -> str:
    """The reason kept in the one wheel that was made, which must be pure Python."""
    wheel = only(checkout / "made", "*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert not [name for name in names if name.endswith((".so", ".c", ".h", ".o"))]
        assert "polymux/core/connection.py" in names
        assert "polymux/py.typed" in names
        return archive.read("polymux/interpreted.txt").decode().strip()


def explanations(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith("polymux: not compiled")]


def test_without_a_compiler_the_wheel_is_pure_python_and_one_line_says_why(checkout: Path) -> None:
    code, printed = build(checkout, CC="/nowhere/cc")
    assert code == 0, printed
    assert fallback(checkout) == "there is no C compiler (/nowhere/cc was not found)"
    assert explanations(printed) == [
        "polymux: not compiled, it will run interpreted: "
        "there is no C compiler (/nowhere/cc was not found)"
    ]


def test_a_compiler_that_fails_leaves_nothing_of_its_work(checkout: Path) -> None:
    code, printed = build(checkout, CC="/bin/false")
    assert code == 0, printed
    assert "/bin/false" in fallback(checkout)
    assert len(explanations(printed)) == 1


def test_an_error_that_mypyc_finds_is_named_and_the_wheel_is_made_all_the_same(
    checkout: Path,
) -> None:
    with (checkout / "src/polymux/core/side.py").open("a") as file:
        file.write(TYPE_ERROR)
    code, printed = build(checkout)
    assert code == 0, printed
    assert "core/side.py" in fallback(checkout)
    assert "Incompatible types" in explanations(printed)[0]


def test_compiling_can_be_required(checkout: Path) -> None:
    code, printed = build(checkout, CC="/nowhere/cc", POLYMUX_COMPILE="require")
    assert code != 0
    assert "there is no C compiler" in printed
    assert not list((checkout / "made").iterdir())


def test_compiling_can_be_refused_even_after_an_earlier_build_left_compiled_files(
    checkout: Path,
) -> None:
    build(checkout, POLYMUX_COMPILE="no")
    old = only(checkout / "build", "lib*") / "polymux" / "core" / "side.cpython-311-old.so"
    old.write_bytes(b"an earlier build")
    only(checkout / "made", "*.whl").unlink()
    code, printed = build(checkout, POLYMUX_COMPILE="no")
    assert code == 0, printed
    assert fallback(checkout) == "POLYMUX_COMPILE=no"


def test_a_wish_that_is_not_known_is_refused(checkout: Path) -> None:
    code, printed = build(checkout, POLYMUX_COMPILE="maybe")
    assert code != 0
    assert "POLYMUX_COMPILE=maybe: it may be `no` or `require`" in printed


def test_a_wheel_holds_the_module_that_its_command_starts_with(checkout: Path) -> None:
    code, printed = build(checkout, POLYMUX_COMPILE="no")
    assert code == 0, printed
    with zipfile.ZipFile(only(checkout / "made", "*.whl")) as archive:
        names = archive.namelist()
        (listed,) = (name for name in names if name.endswith("/entry_points.txt"))
        scripts = archive.read(listed).decode().split()
    assert scripts == ["[console_scripts]", "polymux", "=", "_polymux_entry:main"]
    assert "_polymux_entry/__init__.py" in names


def test_an_editable_install_without_compiling_runs_from_src(checkout: Path) -> None:
    code, printed = build(checkout, "build_editable", POLYMUX_COMPILE="no")
    assert code == 0, printed
    with zipfile.ZipFile(only(checkout / "made", "*.whl")) as archive:
        (link,) = (name for name in archive.namelist() if name.endswith(".pth"))
        assert archive.read(link).decode().strip() == str(checkout / "src")
    assert not list(checkout.rglob("interpreted.txt"))


def test_metadata_is_made_without_mypyc(checkout: Path) -> None:
    with (checkout / "src/polymux/core/side.py").open("a") as file:
        file.write(TYPE_ERROR)
    code, printed = build(checkout, "prepare_metadata_for_build_wheel", POLYMUX_COMPILE="require")
    assert code == 0, printed
    requirement = only(checkout / "made", "*.dist-info") / "METADATA"
    assert "Requires-Python: >=3.11" in requirement.read_text()


def test_an_sdist_has_all_that_a_build_needs(checkout: Path) -> None:
    code, printed = build(checkout, "build_sdist")
    assert code == 0, printed
    with tarfile.open(only(checkout / "made", "*.tar.gz")) as archive:
        there = {name.partition("/")[2] for name in archive.getnames()}
    needed = {str(path.relative_to(ROOT)) for path in (ROOT / "src").rglob("*") if path.is_file()}
    made = {name for name in needed if "__pycache__" in name or ".egg-info" in name}
    assert needed - made <= there
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= there
    assert not [name for name in there if name.startswith(("tests", "build"))]
