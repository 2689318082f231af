"""The public names as a page, from the source: signatures and docstrings, no import needed."""

import ast
import re
from functools import cache
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

SOURCE = Path(__file__).parent.parent / "src" / "polymux"

# What is public, package by package, in the order in which somebody meets it.
PARTS = {
    "polymux": "Live sessions, and the core without I/O",
    "polymux.capture": "Captures: reading, writing, repairing",
    "polymux.record": "What writes captures",
    "polymux.metrics": "Figures about live sessions",
    "polymux.report": "Tables in, one HTML file out",
    "polymux.spark": "The same analysis on Spark",
}


def api_page() -> str:
    parts = ["# Python API", "", "Made from the docstrings. `async with`, `await` and `async for`"]
    parts += ["stand where a name says so; everything else is a plain call.", ""]
    for package, title in PARTS.items():
        parts += [f"## {package}", "", f"{title}.", ""]
        for name, module, inner in public(package):
            found = definition(module, inner)
            if found is not None:
                made_here = module.parent.name == "aio"  # by `connect` and `serve`, not by hand
                parts += entry(name, *found, not made_here)
    return "\n".join(parts).rstrip() + "\n"


def public(package: str) -> list[tuple[str, Path, str]]:
    """The names in `__all__`: as they are called there, the file that defines them, and as what."""
    init = file_of(package)
    tree = ast.parse(init.read_text())
    where: dict[str, tuple[Path, str]] = {}
    names: list[str] = []
    for node in statements(tree):
        if isinstance(node, ast.ImportFrom):
            module = resolve(package, node)
            for alias in node.names:
                where[alias.asname or alias.name] = (file_of(module), alias.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            where[node.name] = (init, node.name)
    return [(name, *where[name]) for name in names if name in where]


def statements(tree: ast.Module) -> list[ast.stmt]:
    """What stands in a file, also under `if TYPE_CHECKING`: names imported on first use."""
    return [
        inner for node in tree.body
        for inner in (node.body if isinstance(node, ast.If) else [node])
    ]  # fmt: skip


def resolve(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definition(path: Path, name: str) -> tuple[Definition, Path] | None:
    """The class or function called `name`, followed to the file that defines it."""
    if not path.exists():
        return None
    tree = ast.parse(path.read_text())
    for node in reversed(tree.body):  # after its overloads comes the function itself
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name:
                return node, path
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if ast.unparse(node.targets[0]) == name:  # an object: its class tells
                return definition(path, ast.unparse(node.value.func))
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    module = resolve(module_of(path), node)
                    return definition(file_of(module), alias.name)
    return None


def module_of(path: Path) -> str:
    """The package that relative imports in this file start from."""
    folder = path.parent.relative_to(SOURCE)
    return ".".join(["polymux", *folder.parts])


def entry(name: str, node: Definition, path: Path, callable: bool) -> list[str]:
    """One name: a heading, its signature, its docstring, and of a class its public methods."""
    head = signature(name, node)
    if isinstance(node, ast.ClassDef) and node.name != name:
        head = f"{name}: {node.name}"
    elif isinstance(node, ast.ClassDef) and not callable:
        head = f"class {name}"
    parts = [f"### {name}", "", "```text", head, "```", "", docstring_text(node), ""]
    if isinstance(node, ast.ClassDef):
        known, hidden = bases(node, path)
        if known:
            parts += [f"Also all of {', '.join(f'`{base}`' for base in known)}.", ""]
        shown: set[str] = set()
        for each in (node, *hidden):
            parts += methods(each, shown)
        if parts[-1]:
            parts.append("")
    return parts


def bases(node: ast.ClassDef, path: Path) -> tuple[list[str], list[ast.ClassDef]]:
    """Names of the bases that are public or not ours; and the others, whose methods the reader
    would find nowhere else."""
    known: list[str] = []
    hidden: list[ast.ClassDef] = []
    for base in node.bases:
        name = ast.unparse(base.value if isinstance(base, ast.Subscript) else base)
        above, where = definition(path, name) or (None, path)
        if isinstance(above, ast.ClassDef) and name not in all_public_names():
            further, hidden_above = bases(above, where)
            known += further
            hidden += [above, *hidden_above]
        elif name[0].isupper() and name not in ("Protocol", "Generic"):
            known.append(name)
    return list(dict.fromkeys(known)), hidden


@cache
def all_public_names() -> frozenset[str]:
    """All names of the page."""
    return frozenset(name for package in PARTS for name, _, _ in public(package))


def methods(node: ast.ClassDef, shown: set[str]) -> list[str]:
    """A line for each that is public and was not shown yet."""
    lines = []
    for inner in node.body:
        if (
            isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            and not inner.name.startswith("_")
            and inner.name not in shown
            and ast.get_docstring(inner)
        ):
            shown.add(inner.name)
            text = re.sub(r"\n(?=.)", "\n  ", docstring_text(inner))
            lines.append(f"- `{signature(inner.name, inner)}`: {text}")
    return lines


def signature(name: str, node: ast.stmt) -> str:
    if isinstance(node, ast.ClassDef):
        made = next(
            (each for each in node.body
             if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None,
        )  # fmt: skip
        if made is not None:
            return f"class {name}({arguments(made)})"
        fields = [
            ast.unparse(each) for each in node.body
            if isinstance(each, ast.AnnAssign) and not ast.unparse(each.target).startswith("_")
        ]  # fmt: skip
        known = [ast.unparse(each) for each in node.decorator_list]
        if any(each.startswith("dataclass") for each in known):
            return f"class {name}({', '.join(fields)})"
        return f"class {name}"
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"{name} -> {ast.unparse(node.returns)}" if node.returns else name
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if node.returns and any(ast.unparse(each) == "pending" for each in node.decorator_list):
        before, result = "", f" -> Pending[{ast.unparse(node.returns)}]"
    return f"{before}{name}({arguments(node)}){result}"


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.unparse(node.args)
    return re.sub(r"^self(, )?", "", text)


def docstring_text(node: ast.stmt) -> str:
    """The docstring; indented examples in it become blocks."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = (ast.get_docstring(node) or "").strip()
    return re.sub(r"((?:^    .*\n?)+)", r"```text\n\1```\n", text + "\n", flags=re.M).strip()
