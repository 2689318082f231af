"""The docs say what the code does."""

import re
from pathlib import Path

import pytest
from tools.docs import PAGES

from polymux.protocols.registry import create, names

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


@pytest.mark.parametrize("protocol", names())
def test_the_page_of_a_protocol_has_every_rule_with_its_severity_and_sentence(
    protocol: str,
) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    for rule in create(protocol).rules:
        assert f"| `{rule.name}` | {rule.severity.value} | {rule.sentence} |" in page


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_page_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == PAGES[page](), "python -m tools.docs writes it anew"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=str)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"
