"""Write the pages of the docs that are made from the code: `python -m tools.docs`."""

import re
from pathlib import Path

import click

from polymux import cli
from polymux.analysis.tables import column_reference
from polymux.core import limits

DOCS = Path(__file__).parent.parent / "docs"
SOURCE = Path(__file__).parent.parent / "src" / "polymux" / "core" / "limits.py"


def commands() -> str:
    """Every command as its --help shows it."""
    context = click.Context(cli.cli, info_name="polymux")
    parts = [
        "# Commands",
        "",
        "Exit codes: 0 fine, 1 findings, 2 usage, 3 input unreadable or torn,",
    ]
    parts += [
        "4 peer unreachable, 5 limit hit, 130 interrupted. `--json`, or a pipe, gives JSON lines."
    ]
    for name in sorted(cli.COMMANDS):
        command = cli.cli.get_command(context, name)
        assert command is not None
        inner = click.Context(
            command, info_name=name, parent=context, terminal_width=90, max_content_width=90
        )
        parts += ["", f"## polymux {name}", "", "```", command.get_help(inner), "```"]
    return "\n".join(parts) + "\n"


def limits_page() -> str:
    """Every limit and every time, with its default and its reason, from the source."""
    parts = ["# Limits and times", ""]
    parts += [
        "Set them with `connect(..., limits=Limits(streams=4096), policy=Policy(pause=2))`. An"
    ]
    parts += ["error that comes from a limit names it. Every hit is counted.", ""]
    text = SOURCE.read_text()
    for kind in (limits.Limits, limits.Policy):
        parts += [f"## {kind.__name__}", "", "| name | default | what it bounds |", "|---|---|---|"]
        body = text[text.index(f"class {kind.__name__}:") :]
        body = body[: body.find("\n\n    def") if "\n\n    def" in body else None]
        body = body.split("\n\n\n")[0]
        for name, _, said in re.findall(
            r"^    (\w+): (int|float) = [^#\n]*(?:# (.*))?$", body, re.M
        ):
            parts.append(f"| `{name}` | {getattr(kind(), name):,} | {said} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


PAGES = {"tables.md": column_reference, "commands.md": commands, "limits.md": limits_page}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (DOCS / page).write_text(make())
