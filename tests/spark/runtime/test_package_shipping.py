"""What is packed for the workers of a cluster."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from polymux.spark.runtime import package_shipping as shipping
from polymux.spark.runtime.package_shipping import pack, shipping_settings


def test_the_pack_can_be_imported_where_nothing_else_of_ours_is(tmp_path: Path) -> None:
    pack(tmp_path / "polymux.zip")
    with zipfile.ZipFile(tmp_path / "polymux.zip") as file:
        file.extractall(tmp_path / "unpacked")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import polymux.core.errors, librt.vecs, mypy_extensions\n"
        "print(polymux.core.errors.__file__, librt.vecs.__file__, mypy_extensions.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "unpacked")],
        capture_output=True,
        text=True,
        timeout=100,
    )
    places = done.stdout.split()
    assert len(places) == 3, done.stderr
    assert all(place.startswith(str(tmp_path / "unpacked")) for place in places)


def test_no_bytecode_is_packed(tmp_path: Path) -> None:
    pack(tmp_path / "polymux.zip")
    with zipfile.ZipFile(tmp_path / "polymux.zip") as file:
        names = file.namelist()
    assert "polymux/py.typed" in names
    assert not any("__pycache__" in name for name in names)
    assert len(names) == len(set(names))


def test_the_shared_module_beside_a_compiled_package_is_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "polymux"
    package.mkdir(parents=True)
    (package / "core.cpython-311.so").write_bytes(b"a")
    (tmp_path / "site" / "ab12__mypyc.cpython-311.so").write_bytes(b"b")
    monkeypatch.setattr(shipping, "package_folder", lambda: package)
    pack(tmp_path / "polymux.zip")
    with zipfile.ZipFile(tmp_path / "polymux.zip") as file:
        names = set(file.namelist())
    assert {"polymux/core.cpython-311.so", "ab12__mypyc.cpython-311.so"} <= names


def test_archives_and_paths_of_the_user_are_kept() -> None:
    mine = {"spark.archives": "data.zip#data", "spark.executorEnv.PYTHONPATH": "lib"}
    found = shipping_settings(Path("/shipped/polymux.zip"), mine)
    assert found["spark.archives"] == "/shipped/polymux.zip#polymux_pkg,data.zip#data"
    assert found["spark.executorEnv.PYTHONPATH"] == "polymux_pkg:lib"
