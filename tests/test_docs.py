"""The docs say what the code does."""

import asyncio
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tools import docs
from tools.rule_examples import as_json

import polymux
from polymux.core.limits import LIMIT_DOCS, TIMEOUT_DOCS, Limits, Timeouts
from polymux.metrics import Meter
from polymux.protocols.registry import create, protocol_names
from polymux.report.render.rule_pages import EXAMPLES_PATH, all_rules, page_for_rule

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
ANEW = "python -m tools.docs writes it anew"


@cache
def pages() -> dict[str, str]:
    return docs.pages()


@pytest.mark.parametrize("protocol", protocol_names())
def test_the_page_of_a_protocol_has_every_rule_with_its_severity_and_sentence(
    protocol: str,
) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    for rule in create(protocol).rules:
        assert f"| `{rule.name}` | {rule.severity.value} | {rule.sentence} |" in page


@pytest.mark.parametrize("page", ["tables.md", "commands.md", "json.md", "limits.md", "api.md"])
def test_a_page_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == pages()[page], ANEW


@pytest.mark.parametrize("kind", ["Stream", "Session", "Sender", "Exchange", "ItemReceiver"])
def test_the_api_page_leads_to_every_method_of_a_class_wherever_it_is_written(kind: str) -> None:
    entries = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", pages()["api.md"], re.M | re.S))
    pending, told = [kind], ""
    while pending:
        told += (entry := entries[pending.pop()])
        pending += [
            base
            for line in re.findall(r"^Also all of (.*)\.$", entry, re.M)
            for base in re.findall(r"`(\w+)`", line)
        ]
    ours = [each for each in getattr(polymux, kind).__mro__ if each.__module__[:7] == "polymux"]
    names = {name for each in ours for name, found in vars(each).items() if callable(found)}
    for name in names - set(dir(asyncio.Protocol)):
        assert name.startswith("_") or re.search(rf"`(async )?{name}\(", told), name
    assert len(names) > 5


@pytest.mark.parametrize(
    "package", ["", ".capture", ".metrics", ".record", ".report", ".spark"]
)  # fmt: skip
def test_the_api_page_has_every_public_name(package: str) -> None:
    module = import_module(f"polymux{package}")
    part = re.search(rf"^## polymux{package}\n(.*?)(?=^## |\Z)", pages()["api.md"], re.M | re.S)
    assert part is not None
    told = re.findall(r"^### (\w+)$", part[1], re.M)
    assert sorted(told) == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))


def test_every_limit_and_timeout_is_described_in_the_order_of_its_field() -> None:
    assert list(LIMIT_DOCS) == [field.name for field in fields(Limits)]
    assert list(TIMEOUT_DOCS) == [field.name for field in fields(Timeouts)]
    for doc in [*LIMIT_DOCS.values(), *TIMEOUT_DOCS.values()]:
        assert all(doc), doc


def test_the_page_about_metrics_has_every_figure() -> None:
    page = (DOCS / "howto" / "logging.md").read_text()
    families = Meter().collect()
    for each in families:
        row = f"| `{each.name}` | {each.kind} | {', '.join(each.labels)} | {each.meaning} |"
        assert row in page
    assert len(re.findall(r"^\| `\w+` \| (?:counter|gauge) ", page, re.M)) == len(families)


def test_every_rule_has_a_page_that_is_up_to_date_and_no_page_is_without_a_rule() -> None:
    made = {path: text for path, text in pages().items() if path.startswith("rules/")}
    found = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("rules/**/*.md")}
    assert found == made, ANEW
    assert len(made) == len(all_rules()) + 1


def test_every_rule_has_an_example_in_which_it_is_broken() -> None:
    assert EXAMPLES_PATH.read_text() == as_json(), ANEW
    for page in map(page_for_rule, all_rules()):
        assert any(line.violates for line in page.frames), page.name


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=str)
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_docs_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert (done.returncode, done.stderr) == (0, "")
