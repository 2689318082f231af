"""`polymux rules`: what the protocols demand, where it is written, and how it is broken."""

from __future__ import annotations

import click

from polymux.cli.support.completion import rule_names
from polymux.cli.support.output import Column, for_people, json_line, print_table
from polymux.core.rules import Rule
from polymux.report.render.rule_pages import ORIGINS, REACTIONS, RulePage, all_rules, page_of


@click.command(epilog="Example: polymux rules mplex, or polymux rules mplex.write-after-close")
@click.argument("names", nargs=-1, shell_complete=rule_names)
@click.option("--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too.")
def rules(names: tuple[str, ...], as_json: bool) -> None:
    """List all rules, or those of a protocol (mplex); one rule (mplex.bad-flag) with an example."""
    known = all_rules()
    found = [rule for rule in known if not names or any(_is(rule, name) for name in names)]
    for name in names:
        if not any(_is(rule, name) for rule in found):
            books = ", ".join(sorted({rule.name.partition(".")[0] for rule in known}))
            raise click.UsageError(f"no rule or protocol {name!r}; there are {books}")
    if not for_people(as_json):
        for rule in found:
            json_line(row_of(page_of(rule)))
    elif len(found) == 1:
        print_page(page_of(found[0]))
    else:
        print_table(
            f"{len(found)} rules",
            (
                Column("rule"),
                Column("severity"),
                Column("origin", 2),
                Column("what it says", least=30),
                Column("where", 1, least=12),
            ),
            [
                (rule.name, rule.severity.value, rule.origin.value, rule.sentence, rule.section)
                for rule in found
            ],
        )


def row_of(page: RulePage) -> dict[str, object]:
    return {
        "rule": page.name,
        "severity": page.severity,
        "origin": page.origin,
        "section": page.section,
        "sentence": page.sentence,
        "reaction": page.reaction,
        "example": {"story": page.story, "protocol": page.protocol, "lines": page.example()},
    }


def print_page(page: RulePage) -> None:
    """Everything about one rule."""
    click.echo(f"{page.name}: {page.sentence}\n")
    click.echo(f"severity   {page.severity}")
    click.echo(f"section    {page.section}")
    click.echo(f"comes from {ORIGINS[page.origin]}")
    click.echo(f"reaction   a live session {REACTIONS[page.reaction]}")
    if page.lines:
        click.echo(f"\nExample ({page.protocol}): {page.story}\n")
        for line in page.example():
            click.echo(f"  {line}")


def _is(rule: Rule, name: str) -> bool:
    return rule.name == name or rule.name.startswith(f"{name}.")
