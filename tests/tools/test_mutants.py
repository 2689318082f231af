"""The mutant tool: its changes are real, and its verdict on a few of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest
from tools.mutants import Mutant, files, main, make_overlay, mutants_of, mutated, noticed, sample

ROOT = Path(__file__).parents[2]
MPLEX = ROOT / "src" / "polymux" / "protocols" / "mplex.py"


def test_every_mutant_differs_from_its_source_and_can_be_read() -> None:
    for mutant in sample(80, seed=3):
        text = mutated(mutant)
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(mutant.path.read_text())), mutant


def test_the_same_seed_gives_the_same_mutants() -> None:
    assert sample(50, seed=9) == sample(50, seed=9)
    assert sample(50, seed=9) != sample(50, seed=10)


def test_all_codecs_and_rules_are_in_reach() -> None:
    names = {path.name for path in files()}
    assert {"mplex.py", "wire.py", "nerdbank_law.py", "streamux_law.py", "minmux_wire.py",
            "omnistreams_law.py"} <= names  # fmt: skip
    assert sum(1 for path in files() for _ in mutants_of(path)) > 2000


def test_faults_of_every_kind_are_noticed(tmp_path: Path) -> None:
    """One fault of each kind in mplex's header and law."""
    source = MPLEX.read_text().splitlines()
    wanted = {"comparison": "if size > self.max_frame", "operator": "kind = word & 7",
              "negated": "if kind == NEW:", "one more": "number = word >> 3"}  # fmt: skip
    chosen: list[Mutant] = []
    for what, text in wanted.items():
        line = next(n for n, each in enumerate(source, 1) if text in each)
        chosen += [m for m in mutants_of(MPLEX) if m.line == line and m.what == what][:1]
    assert Counter(m.what for m in chosen) == Counter(list(wanted))
    overlay = make_overlay(tmp_path)
    survivors = [str(m) for m in chosen if not noticed(m, overlay)]
    assert not survivors
    assert (overlay / "src" / "polymux" / "protocols" / "mplex.py").is_symlink()
    assert MPLEX.read_text().splitlines() == source


def test_the_tool_prints_its_seed_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--count", "0", "--seed", "5"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("seed 5: 0 mutants")
    assert "S12: 0 of 0 mutants noticed" in said
