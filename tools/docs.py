"""Write the documentation pages that are made from the code: `python -m tools.docs`."""

from pathlib import Path

import click
from tools.json_page import json_page
from tools.rule_examples import as_json

from polymux import cli
from polymux.analysis.schema.tables import column_reference
from polymux.cli.sql.macros import MACROS
from polymux.cli.sql.questions import QUESTIONS
from polymux.core import limits
from polymux.report.render.rule_pages import (
    EXAMPLES_PATH,
    ORIGINS,
    REACTIONS,
    RulePage,
    all_rules,
    page_for_rule,
)

DOCS = Path(__file__).parent.parent / "docs"

SEVERAL_PROCESSES = """\
## Several processes

With `--processes`, the commands `serve`, `collect` and `record` divide `max_sessions`,
`max_sessions_per_address`, `max_half_open`, `server_buffer_bytes` and `listen_backlog` among their
processes: the parts add up to what was asked for, and each process keeps to its own. One address
so has as many sessions as asked for at most; it may be refused before that, when its connections
are not divided evenly, because no process knows the connections of the others. The other limits are
those of one session. [Use more than one core](howto/processes.md) has a table.

`serve(..., reuse_port=True)` divides nothing: there the limits hold in each process by itself.
"""

SQL_INTRODUCTION = """\
# Questions in SQL

`polymux sql` answers queries about captures, or about the directory that `polymux analyze` wrote,
with DuckDB (extra `sql`) and without Spark:

```text
polymux sql talk.pcapng "select stream, name, bytes_dialer from streams order by bytes_dialer desc"
polymux sql tables "select rule, count(*) from violations group by all" --csv
polymux sql captures/ "from frames where verdict = 'violation'" -o broken.parquet
polymux sql talk.pcapng
```

Each of the [tables](tables.md) is a table of the query, with the same columns; `content` is there
on captures, and on tables that were written with `--content`. Times are UTC; `epoch_us(time)` is a
number of microseconds. The answer about captures is that about their tables.

- On a terminal rows are printed as a table, into a pipe as JSON lines; `--json`, `--csv` and
  `-o FILE.parquet` choose.
- Without a query a prompt reads them, each to its semicolon, with history and completion; `.help`
  lists its commands. From a pipe one query is read.
- Captures are analyzed while the query runs, for the tables that it names. `frames`, `timeline` and
  `content` are passed on as they are made, once for each time they are named, so that they take no
  memory; the others are made once and kept, up to 64 MiB.
- In a join, name the larger table first: the others are kept in memory while it is read.
- Nothing is written but `-o` and the prompt's history. A query cannot write, read other files or
  open connections: DuckDB's access to all of these is off, and cannot be turned on by a query.
- A query that needs more memory than `--memory` (1 GB) fails; it writes no temporary files.
"""


def commands() -> str:
    """The --help text of every command."""
    context = click.Context(cli.cli, info_name="polymux", **cli.cli.context_settings)
    parts = [
        "# Commands",
        "",
        "Exit codes mean the same in every command:",
        "",
        "| code | meaning |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | findings (`check`, `decode`, `doctor`; `ls` and `analyze` with `--fail-on`; `diff` "
        "with `--fail-if`) |",
        "| 2 | wrong usage: an option, a name, an extra that is not installed |",
        "| 3 | input that is missing, unreadable or truncated; `check`, `follow`: or has gaps |",
        "| 4 | the peer could not be reached, disconnected or aborted |",
        "| 5 | a limit was hit, or the output could not be written |",
        "| 130 | interrupted |",
        "",
        "With `--json`, or into a pipe, commands print [JSON lines](json.md).",
    ]
    for name in sorted(cli.COMMANDS):
        command = cli.cli.get_command(context, name)
        assert command is not None  # every name in COMMANDS has a module
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=90, max_content_width=90
        )
        parts += ["", f"## polymux {name}", "", "```text", command.get_help(inner), "```"]
        for part, below in command.commands.items() if isinstance(command, click.Group) else ():
            deeper = click.Context(
                below, info_name=part, parent=inner, terminal_width=90, max_content_width=90
            )
            parts += ["", f"### polymux {name} {part}", "", "```text"]
            parts += [below.get_help(deeper), "```"]
    return "\n".join(parts) + "\n"


def limits_page() -> str:
    """Every limit and every timeout: meaning, default, its reason, and what the bound answers."""
    parts = ["# Limits and timeouts", ""]
    parts += ["Set them with `connect(..., limits=Limits(max_streams=4096),"]
    parts += ["timeouts=Timeouts(slow_reader=2))`; `serve` takes the same arguments. An error that"]
    parts += ["comes from a limit names it, and every hit is counted in"]
    parts += ["`session.endpoint.counters.hits`. [How to choose them](howto/limits.md) and the"]
    parts += ["[threat model](threat-model.md) say more.", ""]
    tables: list[tuple[str, object, dict[str, limits.FieldDoc]]] = [
        ("Limits", limits.Limits(), limits.LIMIT_DOCS),
        ("Timeouts", limits.Timeouts(), limits.TIMEOUT_DOCS),
    ]
    for title, defaults, docs in tables:
        parts += [f"## {title}", "", "| name | default | what it bounds | why this default |"]
        parts[-1] += " answers |"
        parts += ["|---|---|---|---|---|"]
        for name, doc in docs.items():
            parts.append(
                f"| `{name}` | {getattr(defaults, name):,} "
                f"| {doc.meaning} | {doc.default} | {doc.answers} |"
            )
        parts.append("")
    return "\n".join(parts) + "\n" + SEVERAL_PROCESSES


def sql_page() -> str:
    """The use of `polymux sql`, its macros and the ready questions."""
    parts = [SQL_INTRODUCTION, "## `why` and `waterfall`", ""]
    for macro in MACROS:
        parts += [f"- `{macro.call.replace('wanted', '...')}`: {macro.meaning}"]
    parts += ["", "## Ready questions", "", "`polymux sql --examples` prints them too.", ""]
    for question in QUESTIONS:
        parts += [f"### {question.title}", "", "```text", question.query, "```", ""]
    return "\n".join(parts).rstrip() + "\n"


def rule_page(page: RulePage) -> str:
    """One rule: its text, origin and severity, and an exchange of frames that breaks it."""
    parts = [f"# {page.name}", "", page.sentence, "", "| | |", "|---|---|"]
    parts += [f"| severity | {page.severity} |", f"| section | {page.section} |"]
    parts += [f"| comes from | {ORIGINS[page.origin]} |"]
    parts += [f"| a live session | {REACTIONS[page.reaction]} |", ""]
    if page.frames:
        parts += [f"An example, {page.protocol}: {page.story}.", "", "```text"]
        parts += [*page.example_lines(), "```", ""]
    group = page.name.partition(".")[0]
    protocol = "omnistreams" if group == "websocket" else group
    parts += [f"See [the page of the protocol](../../protocols/{protocol}.md).", ""]
    return "\n".join(parts)


def rules_index() -> str:
    """All rules by protocol, each with a link to its page."""
    parts = ["# Rules", "", "`polymux rules RULE` prints the page of a rule, and the report"]
    parts += ["shows it with each violation. `error`: a live session refuses to send it."]
    parts += ["`warning`: a finding. `note`: worth knowing, never a finding.", ""]
    by_group: dict[str, list[RulePage]] = {}
    for page in map(page_for_rule, all_rules()):
        by_group.setdefault(page.name.partition(".")[0], []).append(page)
    for group, pages in by_group.items():
        parts += [f"## {group}", "", "| rule | severity | what it says |", "|---|---|---|"]
        for page in pages:
            link = f"[`{page.name}`]({group}/{page.name.partition('.')[2]}.md)"
            parts.append(f"| {link} | {page.severity} | {page.sentence} |")
        parts += ["", "```{toctree}", ":hidden:", ":glob:", "", f"{group}/*", "```", ""]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    generated = {
        "tables.md": column_reference(),
        "commands.md": commands(),
        "json.md": json_page(),
        "limits.md": limits_page(),
        "rules/index.md": rules_index(),
        "sql.md": sql_page(),
    }
    for page in map(page_for_rule, all_rules()):
        group, _, name = page.name.partition(".")
        generated[f"rules/{group}/{name}.md"] = rule_page(page)
    return generated


if __name__ == "__main__":
    EXAMPLES_PATH.write_text(as_json())
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)
