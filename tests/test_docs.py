"""The docs say what the code does."""

import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from importlib import import_module
from inspect import Parameter, Signature, getattr_static, getdoc, signature
from pathlib import Path
from typing import NamedTuple

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
API_PACKAGES = [
    "polymux",
    "polymux.capture",
    "polymux.metrics",
    "polymux.record",
    "polymux.report",
    "polymux.spark",
]
API_ENTRY = re.compile(
    r"^\.\. (?:autoclass|autoexception|autofunction|py:data):: (polymux(?:\.[a-z]+)?)\.(\w+)"
    r"(\(.*\))?\n((?:   .*\n)*)",
    re.M,
)


class ApiEntry(NamedTuple):
    """One directive of docs/api.md."""

    name: str
    signature: str  # as written on the page; empty if it comes from the code
    members: list[str]  # as listed on the page


@cache
def pages() -> dict[str, str]:
    return docs.pages()


def api_entries(package: str) -> list[ApiEntry]:
    found = []
    for match in API_ENTRY.finditer((DOCS / "api.md").read_text()):
        members = re.search(r":members:((?:.|\n      )*)", match[4])
        names = re.findall(r"\w+", members[1]) if members else []
        if match[1] == package:
            found.append(ApiEntry(match[2], match[3] or "", names))
    return found


def inherited_doc(kind: type, name: str) -> str | None:
    """The docstring that autodoc shows for a member that has none of its own."""
    return getdoc(getattr(kind, name))


@pytest.mark.parametrize("protocol", protocol_names())
def test_the_page_of_a_protocol_has_every_rule_with_its_severity_and_sentence(
    protocol: str,
) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    for rule in create(protocol).rules:
        assert f"| `{rule.name}` | {rule.severity.value} | {rule.sentence} |" in page


@pytest.mark.parametrize("page", ["tables.md", "commands.md", "json.md", "limits.md"])
def test_a_page_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == pages()[page], ANEW


@pytest.mark.parametrize("package", API_PACKAGES)
def test_the_api_page_has_every_public_name_with_a_docstring(package: str) -> None:
    module = import_module(package)
    entries = api_entries(package)
    assert sorted(entry.name for entry in entries) == sorted(module.__all__)
    for entry in entries:
        assert getattr(module, entry.name).__doc__, entry.name


@pytest.mark.parametrize("package", API_PACKAGES)
def test_members_on_the_api_page_exist_and_have_a_docstring(package: str) -> None:
    module = import_module(package)
    for entry in api_entries(package):
        for name in entry.members:
            member = getattr_static(getattr(module, entry.name), name)
            assert member.__doc__ or inherited_doc(getattr(module, entry.name), name), name


def test_signatures_written_on_the_api_page_are_those_of_the_code() -> None:
    written = {entry.name: entry.signature for entry in api_entries("polymux") if entry.signature}
    for name in ("connect", "serve", "pipe"):  # overloaded: autodoc would show the overloads
        parameters = signature(getattr(polymux, name)).parameters.values()
        plain = [each.replace(annotation=Parameter.empty) for each in parameters]
        assert written[name] == str(Signature(plain))


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


@pytest.mark.parametrize("page", ["architecture.md", "threat-model.md"])
def test_every_source_file_that_is_named_exists(page: str) -> None:
    named = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.py)`", (DOCS / page).read_text())
    for path in named:
        assert (ROOT / "src" / "polymux" / path).exists() or (ROOT / path).exists(), path
    assert named


@pytest.mark.parametrize("picture", sorted(DOCS.glob("*.svg")), ids=lambda path: path.name)
def test_every_source_file_in_a_picture_exists(picture: Path) -> None:
    files = {path.as_posix() for path in (ROOT / "src" / "polymux").rglob("*.py")}
    for name in re.findall(r">([a-z_/]+\.py)", picture.read_text()):
        assert any(path.endswith(f"/{name}") for path in files), name


def test_the_docs_build_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "dummy"]
    done = subprocess.run(
        [*command, str(DOCS), str(tmp_path)], capture_output=True, text=True, timeout=110
    )
    assert (done.returncode, done.stderr) == (0, "")
