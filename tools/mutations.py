"""Mutants of the codecs and rules: which changes are possible, and how one is applied.

A mutant is one change in a file of `protocols/`, in `core/varint.py` or in `core/msgpack.py`: a
comparison, an operator, a number, a condition. What says nothing when the code runs is left alone.
A rule is removed by giving it no bit in the masks of violations (`rule_removals`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import TypeGuard

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "polymux"

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitXor: ast.BitOr,
}  # fmt: skip
TEXT_ONLY_FUNCTIONS = ("__repr__", "__str__", "explain")  # these only build text


@dataclass(frozen=True)
class Mutant:
    """One change: the file, the node, and the kind of change."""

    path: Path
    node_index: int  # among the nodes of the file, in the order of `ast.walk`
    line: int
    last: int  # last line of the statement
    description: str
    function: str  # qualified name of the enclosing function; empty at module level

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.description}"


def files() -> list[Path]:
    codecs = [SOURCE / "core" / "varint.py", SOURCE / "core" / "msgpack.py"]
    return [*sorted((SOURCE / "protocols").rglob("*.py")), *codecs]


@cache
def text_of(path: Path) -> str:
    """The text of a file when it was first read; it may be edited meanwhile."""
    return path.read_text()


@cache
def mutants_of(path: Path) -> tuple[Mutant, ...]:
    """Every possible mutant of a file."""
    return tuple(possible_mutants(path))


def possible_mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(text_of(path))
    inert = inert_nodes(tree)
    functions = enclosing_functions(tree)
    spans = statement_spans(tree)
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in inert:
            continue
        for description in changes(node):
            line = getattr(node, "lineno", 0)
            first, last = spans.get(id(node), (line, line))
            yield Mutant(path, index, first, last, description, functions.get(id(node), ""))


def inert_nodes(tree: ast.Module) -> set[int]:
    """Nodes without effect at run time: annotations, assertions, and code that builds texts."""
    inert: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.AnnAssign | ast.arg):
            parts = [node.annotation]
        elif isinstance(node, ast.FunctionDef):
            parts = [node.returns, *node.decorator_list]
            if node.name in TEXT_ONLY_FUNCTIONS:
                parts.append(node)
        elif isinstance(node, ast.Assert | ast.JoinedStr | ast.Raise):
            parts = [node]
        elif is_negative(node):
            parts = [node.operand]  # the number is changed as a whole
        for part in parts:
            if part is not None:
                inert.update(id(inner) for inner in ast.walk(part))
    return inert


def enclosing_functions(tree: ast.Module) -> dict[int, str]:
    """For each node inside a function's body, the qualified name of the function."""
    functions: dict[int, str] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                for inner in node.body:
                    functions.update((id(part), prefix + node.name) for part in ast.walk(inner))

    visit(tree.body, "")
    return functions


def statement_spans(tree: ast.Module) -> dict[int, tuple[int, int]]:
    """For each node, the lines of its statement; of a compound statement, those of its head."""
    spans: dict[int, tuple[int, int]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            last = node.end_lineno or node.lineno
            body = getattr(node, "body", None)
            if isinstance(body, list) and body:
                last = max(node.lineno, body[0].lineno - 1)
            spans.update((id(inner), (node.lineno, last)) for inner in ast.walk(node))
    return spans


def changes(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        return ["comparison"]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        return ["operator"]
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.If | ast.While):
        return ["negated"] if not isinstance(node.test, ast.Constant) else []
    if is_negative(node) or (isinstance(node, ast.Constant) and type(node.value) is int):
        return ["one more"]
    if isinstance(node, ast.Constant) and type(node.value) is bool:
        return ["flipped"]
    return []


def rule_removals() -> list[Mutant]:
    """A mutant for each rule of each protocol, in which no frame can break the rule."""
    found = []
    for path in sorted((SOURCE / "protocols").rglob("*.py")):
        tree = ast.parse(text_of(path))
        nodes = {id(node): index for index, node in enumerate(ast.walk(tree))}
        for node in tree.body:
            name = rule_of(path, node)
            if name:
                found.append(Mutant(path, nodes[id(node)], node.lineno, node.lineno, name, ""))
    return found


def rule_of(path: Path, node: ast.AST) -> str:
    """The rule whose bit a statement defines: `ID_REUSED: Final[i64] = 0x10`; "" if it is none."""
    rules = path.parent / "rules.py"
    if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
        return ""
    if not isinstance(node.value, ast.Constant) or not rules.exists():
        return ""
    name = f"{path.parent.name}.{node.target.id.lower().replace('_', '-')}"
    return name if f'"{name}"' in text_of(rules) else ""


def is_negative(node: ast.AST) -> TypeGuard[ast.UnaryOp]:
    """Whether this is a negative integer literal."""
    return (
        isinstance(node, ast.UnaryOp)
        and isinstance(node.op, ast.USub)
        and isinstance(node.operand, ast.Constant)
        and type(node.operand.value) is int
    )


def mutated(mutant: Mutant, text: str = "") -> ast.Module:
    """Parse the file, or `text`, and apply the change. Line numbers stay the same."""
    tree = ast.parse(text or text_of(mutant.path))
    for index, node in enumerate(ast.walk(tree)):
        if index == mutant.node_index:
            change(node)
            break
    return ast.fix_missing_locations(tree)


def change(node: ast.AST) -> None:
    if isinstance(node, ast.Compare):
        node.ops = [COMPARISONS[type(node.ops[0])]()]
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif isinstance(node, ast.If | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif is_negative(node):
        assert isinstance(node.operand, ast.Constant)  # see is_negative
        node.operand.value -= 1  # type: ignore[operator]  # an int, see is_negative
    elif isinstance(node, ast.AnnAssign):  # the bit of a rule, see rule_of
        node.value = ast.Constant(0)
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            node.value = not node.value
        else:
            node.value += 1  # type: ignore[operator]  # an int, see changes


def sample(count: int, seed: int, only: str = "") -> list[Mutant]:
    """Choose `count` mutants at random; the same ones for the same seed and source.

    Only mutants whose `path:function:` contains `only` are chosen from.
    """
    every = [m for path in files() for m in mutants_of(path) if only in f"{path}:{m.function}:"]
    return Random(seed).sample(every, min(count, len(every)))
