"""`polymux rules`: the rules of each protocol, their sources, and an example violation."""

from __future__ import annotations

import click

from polymux.cli.support.capture_options import JSON_HELP
from polymux.cli.support.completion import rule_names
from polymux.cli.support.output import TableColumn, is_interactive, json_line, print_table
from polymux.core.rules import Rule
from polymux.report.render.rule_pages import ORIGINS, REACTIONS, RulePage, all_rules, page_for_rule


@click.command(epilog="Example: polymux rules mplex, or polymux rules mplex.write-after-close")
@click.argument("names", nargs=-1, shell_complete=rule_names)
@click.option("--json", "as_json", is_flag=True, help=JSON_HELP)
def rules(names: tuple[str, ...], as_json: bool) -> None:
    """List all rules or those of a protocol (mplex), or explain one (mplex.bad-flag) by example."""
    known = all_rules()
    chosen = [rule for rule in known if not names or any(_matches(rule, name) for name in names)]
    for name in names:
        if not any(_matches(rule, name) for rule in chosen):
            protocols = ", ".join(sorted({rule.name.partition(".")[0] for rule in known}))
            raise click.UsageError(f"no rule or protocol {name!r}; there are {protocols}")
    if not is_interactive(as_json):
        for rule in chosen:
            json_line(rule_json(page_for_rule(rule)))
    elif len(chosen) == 1:
        print_page(page_for_rule(chosen[0]))
    else:
        print_table(
            f"{len(chosen)} rules",
            (
                TableColumn("rule"),
                TableColumn("severity"),
                TableColumn("origin", 2),
                TableColumn("what it says", min_width=30),
                TableColumn("where", 1, min_width=12),
            ),
            [
                (rule.name, rule.severity.value, rule.origin.value, rule.sentence, rule.section)
                for rule in chosen
            ],
        )


def rule_json(page: RulePage) -> dict[str, object]:
    return {
        "rule": page.name,
        "severity": page.severity,
        "origin": page.origin,
        "section": page.section,
        "sentence": page.sentence,
        "reaction": page.reaction,
        "example": {"story": page.story, "protocol": page.protocol, "lines": page.example_lines()},
    }


def print_page(page: RulePage) -> None:
    """Print everything about one rule."""
    click.echo(f"{page.name}: {page.sentence}\n")
    click.echo(f"severity   {page.severity}")
    click.echo(f"section    {page.section}")
    click.echo(f"comes from {ORIGINS[page.origin]}")
    click.echo(f"reaction   a live session {REACTIONS[page.reaction]}")
    if page.frames:
        click.echo(f"\nExample ({page.protocol}): {page.story}\n")
        for line in page.example_lines():
            click.echo(f"  {line}")


def _matches(rule: Rule, name: str) -> bool:
    return rule.name == name or rule.name.startswith(f"{name}.")
