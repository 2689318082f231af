"""The interactive prompt of `polymux sql`: history, completion, and queries over several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import click

from polymux.analysis.schema.tables import TABLES
from polymux.cli.sql.macros import MACROS
from polymux.cli.sql.questions import QUESTIONS
from polymux.cli.support.line_editing import line_editing
from polymux.core.errors import PolymuxError

KEYWORDS: Final = (
    "select", "from", "where", "group by", "order by", "limit", "join", "using", "count(", "sum(",
    "with", "distinct", "having", "desc", "describe", "summarize",
)  # fmt: skip
HELP: Final = """\
A query ends with ; and may have several lines. Tab completes, the arrow keys recall.
.tables      the tables and their columns
.examples    ready questions; .run N runs one of them
.quit        the end, like Ctrl-D"""


def run_prompt(run: Callable[[str], None], tables: Iterable[str]) -> None:
    """Read queries from the terminal and run each, until Ctrl-D or `.quit`.

    A query that fails, or is interrupted with Ctrl-C, ends with its message; the prompt stays.
    """
    names = list(tables)
    click.echo(f"{len(names)} tables: {', '.join(names)}. .help says more.")
    words = completions(names)
    with line_editing(lambda: words, "sql_history", " \t\n,()=<>"):
        for text in read_queries():
            try:
                if text.startswith("."):
                    if not _run_command(text, names, run):
                        return
                else:
                    run(text)
            except click.ClickException as problem:
                problem.show()
            except PolymuxError as problem:
                click.echo(f"polymux: {problem}", err=True)
            except KeyboardInterrupt:
                click.echo("interrupted", err=True)


def read_queries() -> Iterator[str]:
    """Yield each query without its semicolon, and each line that begins with a dot."""
    lines: list[str] = []
    while True:
        try:
            line = input("     ...> " if lines else "polymux> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:  # drops what was typed
            click.echo()
            lines = []
            continue
        if not lines and line.startswith("."):
            yield line
        elif line:
            lines.append(line)
            if line.endswith(";"):
                yield "\n".join(lines).rstrip("; \n")
                lines = []


def completions(tables: Iterable[str]) -> list[str]:
    """All words that Tab can complete."""
    names = list(tables)
    columns = {name for table in names for name in TABLES[table].column_names()}
    macros = {macro.call.partition("(")[0] + "('" for macro in MACROS}
    commands = {".tables", ".examples", ".run", ".quit", ".help"}
    return sorted({*names, *columns, *macros, *KEYWORDS, *commands})


def _run_command(text: str, tables: list[str], run: Callable[[str], None]) -> bool:
    """Run a command of the prompt. Return False if it ends the prompt."""
    word, _, argument = text.partition(" ")
    if word in (".quit", ".exit"):
        return False
    if word == ".tables":
        for name in tables:
            click.echo(f"{name}: {', '.join(TABLES[name].column_names())}")
    elif word == ".examples":
        for number, question in enumerate(QUESTIONS, 1):
            click.echo(f"{number:2}  {question.title}")
    elif word == ".run" and argument.isdecimal() and 0 < int(argument) <= len(QUESTIONS):
        question = QUESTIONS[int(argument) - 1]
        click.echo(f"{question.title}\n{question.query}\n")
        run(question.query)
    else:
        click.echo(HELP)
    return True
