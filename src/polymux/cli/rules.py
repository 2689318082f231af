"""`polymux rules`: what the protocols demand, and where it is written."""

from __future__ import annotations

import click

from ..core.rules import Rule
from .printing import for_people, json_line, print_table


@click.command(epilog="Example: polymux rules mplex")
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="JSON lines; without it when piped, too.")
def rules(names: tuple[str, ...], as_json: bool) -> None:
    """List all rules, or those of a protocol (mplex) or one rule (mplex.bad-flag)."""
    found = [rule for rule in all_rules() if not names or any(_is(rule, name) for name in names)]
    for name in names:
        if not any(_is(rule, name) for rule in found):
            known = ", ".join(sorted({rule.name.partition(".")[0] for rule in all_rules()}))
            raise click.UsageError(f"no rule or protocol {name!r}; there are {known}")
    if not for_people(as_json):
        for rule in found:
            json_line(
                {
                    "rule": rule.name,
                    "severity": rule.severity.value,
                    "origin": rule.origin.value,
                    "section": rule.section,
                    "sentence": rule.sentence,
                }
            )
        return
    print_table(
        f"{len(found)} rules",
        ("rule", "severity", "origin", "what it says", "where"),
        [
            (rule.name, rule.severity.value, rule.origin.value, rule.sentence, rule.section)
            for rule in found
        ],
    )


def all_rules() -> list[Rule]:
    """The rules of every protocol, and those of the WebSocket framing below one of them."""
    from ..core.websocket_items import (
        AFTER_CLOSE,
        BAD_CODE,
        BAD_REASON,
        FRAME_RULES,
        SHORT_CLOSE,
        TRUNCATED,
    )  # fmt: skip
    from ..protocols.registry import create, names

    found: list[Rule] = [rule for name in names() for rule in create(name).rules]
    return [*found, *FRAME_RULES, SHORT_CLOSE, BAD_CODE, BAD_REASON, AFTER_CLOSE, TRUNCATED]


def _is(rule: Rule, name: str) -> bool:
    return rule.name == name or rule.name.startswith(f"{name}.")
