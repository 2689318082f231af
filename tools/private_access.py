"""Count accesses to private names of other objects: `x._y`, where `_y` is not this module's own.

`python -m tools.private_access` lists them; `tests/test_layers.py` keeps their number from growing.

An access counts if the attribute begins with one underscore, the object is not `self`, `cls` or
`super()`, and the module itself does not define the name: as a function, method or class, by
assigning it (`self._y = ...`, `_y: int`), or in `__slots__`. A module's classes may thus use each
other's private names, and so may functions beside a class. The documented names of the standard
library that begin with an underscore (`DOCUMENTED`) do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"
DOCUMENTED = frozenset({"_asdict", "_exit", "_fields", "_make", "_replace"})


def accesses(source: Path = SOURCE) -> list[str]:
    """Every access below `source`, as `path:line: expression`, sorted."""
    found = []
    for path in sorted(source.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = own_names(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or is_own_object(node.value):
                continue
            if is_private(node.attr) and node.attr not in own:
                found.append(f"{path.relative_to(source)}:{node.lineno}: {ast.unparse(node)}")
    return found


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in DOCUMENTED


def is_own_object(node: ast.expr) -> bool:
    """Whether the expression is `self`, `cls` or `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def own_names(tree: ast.Module) -> set[str]:
    """The private names that a module defines."""
    return {name for node in ast.walk(tree) for name in defined_by(node) if is_private(name)}


def defined_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for part in ast.walk(target):
                if isinstance(part, ast.Name):
                    yield part.id
                elif isinstance(part, ast.Attribute) and is_own_object(part.value):
                    yield part.attr
        if "__slots__" in (target.id for target in targets if isinstance(target, ast.Name)):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value
    elif isinstance(node, ast.alias):
        yield node.asname or node.name


def main() -> None:
    found = accesses()
    sys.stdout.write("".join(f"{line}\n" for line in found))
    sys.stdout.write(f"{len(found)} accesses to private names of other objects\n")


if __name__ == "__main__":
    main()
