"""No function is longer than 80 lines, apart from a few with a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
MAX_LINES = 80  # of a function, without its docstring and comments of their own lines

# By the name of the function. Most are inner loops of compiled modules, in which a call per frame
# or packet would cost more than the length costs a reader.
EXCEPTIONS = {
    "_fast_loop": "decodes runs of content frames without a call per frame",
    "add_packet": "decodes Ethernet, IP and TCP headers of one packet in place",
    "classify": "tests the possible causes of a stall one after another, in order of precedence",
    "process_frame": "the slow path for one frame, in the order in which it must happen",
    "read_blocks": "scans pcapng blocks without a call per block",
}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef, text: list[str]) -> int:
    """The lines of a function that hold code, its signature included."""
    skipped: range | tuple[()] = ()
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        skipped = range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return sum(
        number not in skipped and text[number - 1].strip()[:1] not in ("", "#") for number in lines
    )


@pytest.mark.parametrize("package", sorted(path.name for path in SOURCE.iterdir() if path.is_dir()))
def test_functions_are_short_enough_to_read_at_once(package: str) -> None:
    for path in (SOURCE / package).rglob("*.py"):
        text = path.read_text(encoding="utf-8").splitlines()
        for function in functions(path):
            if function.name not in EXCEPTIONS:
                lines = code_lines(function, text)
                assert lines <= MAX_LINES, (
                    f"{path.relative_to(SOURCE)}:{function.lineno}: {function.name} has {lines} "
                    f"lines of code; divide it into phases that have names"
                )
