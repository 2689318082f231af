"""The mutant tool: its changes are real, and its verdict on a few of them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tools.mutants import main
from tools.mutations import SOURCE, Mutant, files, mutants_of, mutated, sample

ROOT = Path(__file__).parents[2]
MPLEX = ROOT / "src" / "polymux" / "protocols" / "mplex" / "protocol.py"


def test_every_mutant_differs_from_its_source_and_keeps_its_lines() -> None:
    for mutant in sample(40, seed=3):
        tree = mutated(mutant)
        before = ast.parse(mutant.path.read_text())
        assert ast.dump(tree) != ast.dump(before), mutant
        assert [getattr(node, "lineno", 0) for node in tree.body] == [
            node.lineno for node in before.body
        ]


def test_one_more_than_minus_one_is_zero(tmp_path: Path) -> None:
    path = tmp_path / "signs.py"
    path.write_text("SHORT = -1\n")
    [only] = mutants_of(path)
    assert ast.unparse(mutated(only)) == "SHORT = -0"


def test_the_same_seed_gives_the_same_mutants() -> None:
    assert sample(50, seed=9) == sample(50, seed=9)
    assert sample(50, seed=9) != sample(50, seed=10)


def test_all_codecs_and_rules_are_in_reach() -> None:
    names = {str(path.relative_to(SOURCE)) for path in files()}
    assert {"protocols/mplex/protocol.py", "core/varint.py", "core/msgpack.py",
            "protocols/nerdbank/protocol.py", "protocols/streamux/protocol.py",
            "protocols/minmux/protocol.py", "protocols/yamux/protocol.py",
            "protocols/omnistreams/protocol.py"} <= names  # fmt: skip
    kinds = Counter(mutant.description for path in files() for mutant in mutants_of(path))
    assert sum(kinds.values()) > 2000
    assert len(kinds) == 6, kinds


def test_a_mutant_knows_its_function_and_the_lines_of_its_statement() -> None:
    found = [m for m in mutants_of(MPLEX) if m.function == "Mplex.decode_header"]
    source = MPLEX.read_text().splitlines()
    assert any("if size > self.max_frame_bytes" in source[m.line - 1] for m in mutants_of(MPLEX))
    assert found
    assert all(m.line <= m.last for m in found)
    outside = [m for m in mutants_of(MPLEX) if not m.function]
    assert {m.description for m in outside} <= {"one more", "flipped", "operator"}


@pytest.mark.timeout(300)
def test_faults_are_noticed_and_the_tree_is_left_alone() -> None:
    """Every mutant of one small function, against tests of a second."""
    before = {path: path.read_bytes() for path in files()}
    number = len(sample(100, 2, "core/varint.py:uvarint:"))
    assert number > 10
    command = [sys.executable, "-m", "tools.mutants", "--count", "100", "--seed", "2", "--only",
               "core/varint.py:uvarint:", "--jobs", "1", "--branches", "--tests",
               "tests/core/test_encoding_forms.py"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.stdout.startswith(f"seed 2: {number} mutants"), said
    assert done.returncode == 1, said  # these few tests run too few branches of the rest
    noticed = int(done.stdout.partition("S12: ")[2].split()[0])
    assert noticed >= 0.75 * number, said
    assert f"{noticed} of {number} mutants noticed" in done.stdout
    assert done.stderr.count("survives") == number - noticed
    assert "never taken  src/polymux/protocols/minmux/protocol.py" in done.stderr
    assert before == {path: path.read_bytes() for path in files()}


@pytest.mark.timeout(300)
def test_a_fault_outside_of_functions_is_noticed() -> None:
    """A changed constant takes effect only in a process that imports the changed module."""
    outside = sample(100, 2, "core/varint.py::")
    assert len(outside) > 2
    assert not any(mutant.function for mutant in outside)
    command = [sys.executable, "-m", "tools.mutants", "--count", "100", "--seed", "2", "--only",
               "core/varint.py::", "--tests", "tests/core/test_encoding_forms.py"]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert int(done.stdout.partition("S12: ")[2].split()[0]) >= 1, done.stdout + done.stderr


def test_a_broken_test_is_told_before_any_mutant_is_tried(tmp_path: Path) -> None:
    broken = tmp_path / "test_broken.py"
    broken.write_text(
        "from polymux.core.varint import uvarint\n\n\n"
        "def test_numbers():\n    assert uvarint(b'x', 0, 1) == 'what it is not'\n"
    )
    command = [sys.executable, "-m", "tools.mutants", "--count", "2", "--tests", str(broken)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "fails without any change" in done.stderr
    assert "test_numbers" in done.stderr


def test_the_tool_prints_its_seed_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "0", "--seed", "5"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("seed 5: 0 mutants")
    assert "S12: 0 of 0 mutants noticed" in said


def test_mutants_are_told_by_place_and_kind() -> None:
    mutant = mutants_of(MPLEX)[0]
    assert isinstance(mutant, Mutant)
    assert str(mutant).startswith("src/polymux/protocols/mplex/protocol.py:")
