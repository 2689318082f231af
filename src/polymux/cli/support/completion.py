"""Shell completion for `--protocol` and for names of rules."""

from __future__ import annotations

import click


def protocol_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a protocol, or `auto` where that is the default."""
    from polymux.protocols import registry

    known = registry.protocol_names()
    if param.default == "auto":
        known = ["auto", *known]
    return [name for name in known if name.startswith(incomplete)]


def rule_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a protocol and, after its dot, the names of its rules."""
    from polymux.report.render.rule_pages import all_rules

    names = [rule.name for rule in all_rules()]
    if "." not in incomplete:
        protocols = {name.partition(".")[0] for name in names}
        if incomplete not in protocols:
            names = sorted(protocols)
    return [name for name in names if name.startswith(incomplete)]
