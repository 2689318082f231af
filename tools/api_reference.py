"""The public names as a page, from the source: signatures and docstrings, no import needed."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "polymux"

# What is public, package by package, in the order in which somebody meets it.
PARTS = {
    "polymux": "Live sessions, and the core without I/O",
    "polymux.capture": "Captures: reading, writing, repairing",
    "polymux.record": "What writes captures",
    "polymux.report": "Tables in, one HTML file out",
    "polymux.spark": "The same analysis on Spark",
}


def api_page() -> str:
    parts = ["# Python API", "", "Made from the docstrings. `async with`, `await` and `async for`"]
    parts += ["stand where a name says so; everything else is a plain call.", ""]
    for package, title in PARTS.items():
        parts += [f"## {package}", "", f"{title}.", ""]
        for name, module, inner in public(package):
            node = definition(module, inner)
            if node is not None:
                made_here = module.parent.name == "aio"  # by `connect` and `serve`, not by hand
                parts += entry(name, node, not made_here)
    return "\n".join(parts).rstrip() + "\n"


def public(package: str) -> list[tuple[str, Path, str]]:
    """The names in `__all__`: as they are called there, the file that defines them, and as what."""
    init = file_of(package)
    tree = ast.parse(init.read_text())
    where: dict[str, tuple[Path, str]] = {}
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            module = resolve(package, node)
            for alias in node.names:
                where[alias.asname or alias.name] = (file_of(module), alias.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names = ast.literal_eval(node.value)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            where[node.name] = (init, node.name)
    return [(name, *where[name]) for name in names if name in where]


def resolve(package: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def file_of(module: str) -> Path:
    path = SOURCE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def definition(path: Path, name: str) -> ast.stmt | None:
    """The class or function called `name`, followed through a package that hands it on."""
    if not path.exists():
        return None
    tree = ast.parse(path.read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name:
                return node
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    package = module_of(path)
                    return definition(file_of(resolve(package, node)), alias.name)
    return None


def module_of(path: Path) -> str:
    """The package that relative imports in this file start from."""
    folder = path.parent.relative_to(SOURCE)
    return ".".join(["polymux", *folder.parts])


def entry(name: str, node: ast.stmt, callable: bool) -> list[str]:
    """One name: a heading, its signature, its docstring, and of a class its public methods."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    head = signature(name, node)
    if isinstance(node, ast.ClassDef) and not callable:
        head = f"class {name}"
    parts = [f"### {name}", "", "```text", head, "```", "", told(node), ""]
    if isinstance(node, ast.ClassDef):
        bases = [ast.unparse(base) for base in node.bases]
        known = [
            base for base in bases if base[0].isupper() and base not in ("Protocol", "Generic")
        ]
        if known:
            parts += [f"Also all of {', '.join(f'`{base}`' for base in known)}.", ""]
        for inner in node.body:
            if (
                isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
                and not inner.name.startswith("_")
                and ast.get_docstring(inner)
            ):
                text = re.sub(r"\n(?=.)", "\n  ", told(inner))
                parts += [f"- `{signature(inner.name, inner)}`: {text}"]
        if parts[-1]:
            parts.append("")
    return parts


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
    return f"{before}{name}({arguments(node)}){result}"


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.unparse(node.args)
    return re.sub(r"^self(, )?", "", text)


def told(node: ast.stmt) -> str:
    """The docstring; indented examples in it become blocks."""
    assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = (ast.get_docstring(node) or "").strip()
    return re.sub(r"((?:^    .*\n?)+)", r"```text\n\1```\n", text + "\n", flags=re.M).strip()
