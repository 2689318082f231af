"""What a shell completes for `--protocol` and for the names of rules."""

from __future__ import annotations

import click


def protocol_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The protocols, and `auto` where that is the default."""
    from polymux.protocols import registry

    known = registry.protocol_names()
    if param.default == "auto":
        known = ["auto", *known]
    return [name for name in known if name.startswith(incomplete)]


def rule_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The protocols that have rules, and once one is written the rules of it."""
    from polymux.report.render.rule_pages import all_rules

    names = [rule.name for rule in all_rules()]
    if "." not in incomplete:
        books = {name.partition(".")[0] for name in names}
        if incomplete not in books:
            names = sorted(books)
    return [name for name in names if name.startswith(incomplete)]
