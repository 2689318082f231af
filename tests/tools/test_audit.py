"""The source never runs data as code: checked on the syntax tree, not by searching words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = [*sorted((ROOT / "src").rglob("*.py")), *sorted((ROOT / "tools").rglob("*.py"))]
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "execfile"}
SHELLS = {"os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
          "asyncio.create_subprocess_shell", "commands.getoutput", "pty.spawn"}  # fmt: skip
LOADERS = {"yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.load", "joblib.load",
           "pandas.read_pickle", "pd.read_pickle", "numpy.load", "np.load"}  # fmt: skip


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def findings(tree: ast.AST) -> Iterator[str]:
    """What must not be there, each with its line."""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *[f"{node.module}.{alias.name}" for alias in node.names]]
        for name in names:
            if name.partition(".")[0] in MODULES:
                yield f"line {node.lineno}: imports {name}"  # type: ignore[attr-defined]  # imports
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        if called in CALLS or called in SHELLS or called in LOADERS:
            yield f"line {node.lineno}: calls {called}"
        for keyword in node.keywords:
            on = not (isinstance(keyword.value, ast.Constant) and not keyword.value.value)
            if keyword.arg == "shell" and on:
                yield f"line {node.lineno}: shell={ast.unparse(keyword.value)}"
            if keyword.arg == "allow_pickle" and on:
                yield f"line {node.lineno}: allow_pickle"


def test_no_file_runs_data_as_code() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {finding}"
        for path in CODE
        for finding in findings(ast.parse(path.read_text()))
    ]
    assert len(CODE) > 100
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "import pickle", "from pickle import loads", "import cloudpickle.cloudpickle",
        "eval(text)", "exec(text)", "yaml.load(data)", "subprocess.run(cmd, shell=True)",
        "subprocess.run(cmd, shell=flag)", "os.system(cmd)", "np.load(f, allow_pickle=True)",
        "__import__(name)", "x = compile(text, 'f', 'exec')",
    ],
)  # fmt: skip
def test_the_audit_finds_what_it_looks_for(line: str) -> None:
    assert list(findings(ast.parse(line)))


@pytest.mark.parametrize(
    "line", ["json.loads(data)", "re.compile('x')", "subprocess.run(cmd, shell=False)",
             "tree.eval(x)", "yaml.safe_load(data)"],
)  # fmt: skip
def test_the_audit_leaves_alone_what_is_harmless(line: str) -> None:
    assert not list(findings(ast.parse(line)))
