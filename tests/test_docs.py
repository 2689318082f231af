"""The docs say what the code does."""

from pathlib import Path

import pytest

from polymux.analysis.tables import column_reference
from polymux.protocols.registry import create, names

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("protocol", names())
def test_the_page_of_a_protocol_has_every_rule_with_its_severity_and_sentence(
    protocol: str,
) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    for rule in create(protocol).rules:
        assert f"| `{rule.name}` | {rule.severity.value} | {rule.sentence} |" in page


def test_the_page_of_columns_is_made_from_the_schemas() -> None:
    page = DOCS / "tables.md"
    assert page.read_text() == column_reference(), "python -m tools.docs writes it anew"
