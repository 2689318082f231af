"""Modules marked `# mypyc: compiled`: what runs, and what mypyc 2.4.1 would get wrong in them."""

import ast
import os
import shutil
import sysconfig
from pathlib import Path

from polymux.core import connection
from polymux.spark.runtime.doctor import marked_modules

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polymux"


def marked_files() -> list[Path]:
    """The files that are compiled."""
    modules = marked_modules(SOURCE)
    return [SOURCE.parent.joinpath(*name.split(".")).with_suffix(".py") for name in modules]


def test_the_form_that_runs_is_the_one_that_was_asked_for() -> None:
    compiled = not connection.__file__.endswith(".py")
    if os.environ.get("POLYMUX_RUN") == "interpreted":
        assert not compiled
        return
    headers = Path(sysconfig.get_paths()["include"], "Python.h").exists()
    able = shutil.which(os.environ.get("CC", "cc")) is not None and headers
    asked = os.environ.get("POLYMUX_COMPILE") != "no" and "PYTHONPATH" not in os.environ
    print(f"the core runs {'compiled' if compiled else 'interpreted'}")
    if asked and able:
        assert compiled, "a compiler is here, yet the core runs interpreted: make install"


def test_no_literal_stands_left_of_a_shift_in_compiled_files() -> None:
    # mypyc 2.4.1 shifts such a literal as a 32-bit C integer.
    for path in marked_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
                left = node.left
                plain = isinstance(left, ast.Constant)
                cast = isinstance(left, ast.Call) and isinstance(left.args[0], ast.Constant)
                assert not plain, f"{path}:{node.lineno}"
                assert not cast, f"{path}:{node.lineno}"


def test_no_interpreted_file_calls_a_compiled_function_with_a_column_alone() -> None:
    # mypyc 2.4.1 never frees a vec that interpreted code hands over as an argument.
    compiled = marked_files()
    takers = {
        node.name
        for path in compiled
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("vec[" in ast.unparse(each) for each in node.args.args)
    }
    assert "dictionary_indices" in takers
    for path in SOURCE.rglob("*.py"):
        if path not in compiled:
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom):
                    assert takers.isdisjoint(each.name for each in node.names), path
