"""Write the documentation pages that are made from the code: `python -m tools.docs`."""

from pathlib import Path

import click
from tools.json_page import json_page
from tools.rule_examples import as_json

from polymux import cli
from polymux.analysis.schema.tables import column_reference
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


def commands() -> str:
    """The --help text of every command."""
    context = click.Context(cli.cli, info_name="polymux", **cli.cli.context_settings)
    parts = [
        "# Commands",
        "",
        "Exit codes, the same in every command: 0 fine; 1 something was found (`check`, `decode`,",
        "`doctor`; `ls` and `analyze` with `--fail-on`); 2 usage: an option, a name, a part that",
        "is not installed; 3 input missing, unreadable or torn; 4 the peer could not be reached,",
        "went away or gave up; 5 a limit was hit, or the output could not be written; 130",
        "interrupted.",
        "",
        "`--json`, or a pipe, gives [JSON lines](json.md).",
    ]
    for name in sorted(cli.COMMANDS):
        command = cli.cli.get_command(context, name)
        assert command is not None
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=90, max_content_width=90
        )
        parts += ["", f"## polymux {name}", "", "```text", command.get_help(inner), "```"]
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
    book = page.name.partition(".")[0]
    home = "omnistreams" if book == "websocket" else book
    parts += [f"See [the page of the protocol](../../protocols/{home}.md).", ""]
    return "\n".join(parts)


def rules_index() -> str:
    """All rules by protocol, each with a link to its page."""
    parts = ["# Rules", "", "`polymux rules RULE` shows the same in a terminal, and the report"]
    parts += ["behind each violation. `error`: a live session refuses to send it. `warning`: a"]
    parts += ["finding. `note`: worth knowing, never a finding.", ""]
    by_book: dict[str, list[RulePage]] = {}
    for page in map(page_for_rule, all_rules()):
        by_book.setdefault(page.name.partition(".")[0], []).append(page)
    for book, pages in by_book.items():
        parts += [f"## {book}", "", "| rule | severity | what it says |", "|---|---|---|"]
        for page in pages:
            link = f"[`{page.name}`]({book}/{page.name.partition('.')[2]}.md)"
            parts.append(f"| {link} | {page.severity} | {page.sentence} |")
        parts += ["", "```{toctree}", ":hidden:", ":glob:", "", f"{book}/*", "```", ""]
    return "\n".join(parts)


def pages() -> dict[str, str]:
    """Return every generated page by its path below docs/."""
    made = {
        "tables.md": column_reference(),
        "commands.md": commands(),
        "json.md": json_page(),
        "limits.md": limits_page(),
        "rules/index.md": rules_index(),
    }
    for page in map(page_for_rule, all_rules()):
        book, _, name = page.name.partition(".")
        made[f"rules/{book}/{name}.md"] = rule_page(page)
    return made


if __name__ == "__main__":
    EXAMPLES_PATH.write_text(as_json())
    for path, text in pages().items():
        (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
        (DOCS / path).write_text(text)
