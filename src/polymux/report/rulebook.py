"""The page behind each violation: what the rule says, where it stands, what it weighs."""

from collections.abc import Iterable
from dataclasses import dataclass

from polymux.protocols import registry


@dataclass(frozen=True, slots=True)
class RulePage:
    """One rule as a reader of the report needs it."""

    name: str
    sentence: str
    section: str
    origin: str
    severity: str


def rule_pages(names: Iterable[str]) -> dict[str, RulePage]:
    """The pages of these rules; a rule no rule book of this version knows has none."""
    wanted = set(names)
    books = {name.partition(".")[0] for name in wanted}
    return {
        rule.name: RulePage(
            rule.name, rule.sentence, rule.section, rule.origin.value, rule.severity.value
        )
        for book in registry.names()
        if book in books
        for rule in registry.create(book).rules
        if rule.name in wanted
    }
