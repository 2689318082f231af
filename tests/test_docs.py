"""The documentation agrees with the code: generated pages, links, the API page, the build."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest
from tools.rule_examples import as_json

from polymux.core.limits import LIMIT_DOCS, TIMEOUT_DOCS, Limits, Timeouts
from polymux.metrics import Meter
from polymux.protocols.registry import create, protocol_names
from polymux.report.render.rule_pages import EXAMPLES_PATH, all_rules, page_for_rule

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
REGENERATE = "run python -m tools.docs"
API_PACKAGES = [
    "polymux",
    "polymux.anyio",
    "polymux.capture",
    "polymux.metrics",
    "polymux.record",
    "polymux.relay",
    "polymux.relay.replay",
    "polymux.report",
    "polymux.spark",
    "polymux.sync",
]
API_ENTRY = re.compile(
    r"^\.\. (?:autoclass|autoexception|autofunction|py:data):: (polymux(?:\.[a-z]+){0,2})\.(\w+)"
    r"(?:\(\))?\n((?:   .*\n)*)",
    re.M,
)


class ApiEntry(NamedTuple):
    """One directive of docs/api.md."""

    name: str
    members: list[str]  # as listed on the page


@cache
def pages() -> dict[str, str]:
    """The generated pages, from a process in which no command has run: click keeps help options."""
    program = "import json; from tools import docs; print(json.dumps(docs.pages()))"
    made = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: dict[str, str] = json.loads(made.stdout)
    return found


def api_entries(package: str) -> list[ApiEntry]:
    found = []
    for match in API_ENTRY.finditer((DOCS / "api.md").read_text()):
        members = re.search(r":members:((?:.|\n      )*)", match[3])
        names = re.findall(r"\w+", members[1]) if members else []
        if match[1] == package:
            found.append(ApiEntry(match[2], names))
    return found


@pytest.mark.parametrize("protocol", protocol_names())
def test_the_page_of_a_protocol_has_every_rule_with_its_severity_and_sentence(
    protocol: str,
) -> None:
    page = (DOCS / "protocols" / f"{protocol}.md").read_text()
    for rule in create(protocol).rules:
        assert f"| `{rule.name}` | {rule.severity.value} | {rule.sentence} |" in page


@pytest.mark.parametrize("page", ["tables.md", "commands.md", "json.md", "limits.md", "sql.md"])
def test_a_page_made_from_the_code_is_up_to_date(page: str) -> None:
    assert (DOCS / page).read_text() == pages()[page], REGENERATE


@pytest.mark.parametrize("package", API_PACKAGES)
def test_the_api_page_has_every_public_name(package: str) -> None:
    module = import_module(package)
    assert sorted(entry.name for entry in api_entries(package)) == sorted(module.__all__)


# Compiled functions have no docstrings at run time: the page is made from the interpreted source.
UNDOCUMENTED = """
import sys
from importlib import import_module
from inspect import getdoc

for path in sys.argv[1:]:
    package, name, *member = path.split()
    found = getattr(import_module(package), name)
    if not (getdoc(getattr(found, member[0])) if member else found.__doc__):
        print(path)
"""


def test_every_name_and_member_on_the_api_page_has_a_docstring() -> None:
    names = [
        " ".join((package, entry.name, *member))
        for package in API_PACKAGES
        for entry in api_entries(package)
        for member in [(), *((name,) for name in entry.members)]
    ]
    done = subprocess.run(
        [sys.executable, "-c", UNDOCUMENTED, *names],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_every_limit_and_timeout_is_described_in_the_order_of_its_field() -> None:
    assert list(LIMIT_DOCS) == [field.name for field in fields(Limits)]
    assert list(TIMEOUT_DOCS) == [field.name for field in fields(Timeouts)]
    for doc in [*LIMIT_DOCS.values(), *TIMEOUT_DOCS.values()]:
        assert all(doc), doc


def test_the_page_about_metrics_has_every_metric() -> None:
    page = (DOCS / "howto" / "logging.md").read_text()
    families = Meter().collect()
    for family in families:
        row = f"| `{family.name}` | {family.kind} | {', '.join(family.labels)} | {family.meaning} |"
        assert row in page
    assert len(re.findall(r"^\| `\w+` \| (?:counter|gauge) ", page, re.M)) == len(families)


def test_every_rule_has_a_page_that_is_up_to_date_and_no_page_is_without_a_rule() -> None:
    generated = {path: text for path, text in pages().items() if path.startswith("rules/")}
    on_disk = {
        str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("rules/**/*.md")
    }
    assert on_disk == generated, REGENERATE
    assert len(generated) == len(all_rules()) + 1


def test_every_rule_has_an_example_that_violates_it() -> None:
    assert EXAMPLES_PATH.read_text() == as_json(), REGENERATE
    for page in map(page_for_rule, all_rules()):
        assert any(line.violates for line in page.frames), page.name


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=str)
def test_every_link_to_a_file_resolves(page: Path) -> None:
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
