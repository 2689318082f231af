"""`requirements.lock`: one version with hashes for every requirement, on every supported Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
ENTRIES = re.findall(
    r"^(\S+==[^\\\n]+?) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)",
    (ROOT / "requirements.lock").read_text(),
    re.MULTILINE,
)
PYTHONS = ("3.11", "3.12", "3.13")


def environment(python: str) -> dict[str, str]:
    return {
        "python_version": python, "python_full_version": f"{python}.9", "extra": "",
        "sys_platform": "linux", "platform_system": "Linux", "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "os_name": "posix",
    }  # fmt: skip


def locked(python: str) -> dict[str, list[Version]]:
    """The versions that a Python gets, by name."""
    found: dict[str, list[Version]] = {}
    for text, _ in ENTRIES:
        entry = Requirement(text)
        if entry.marker is None or entry.marker.evaluate(environment(python)):
            (pinned,) = entry.specifier
            found.setdefault(canonicalize_name(entry.name), []).append(Version(pinned.version))
    return found


def test_the_lock_has_only_versions_with_hashes() -> None:
    text = (ROOT / "requirements.lock").read_text()
    entries = "".join(f"{name} \\\n{hashes}" for name, hashes in ENTRIES)
    assert text == entries
    assert len(ENTRIES) > 60


@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_of_the_project_has_one_locked_version_within_its_bounds(
    python: str,
) -> None:
    asked = subprocess.run(
        [sys.executable, "tools/dependencies.py"], cwd=ROOT, capture_output=True, text=True,
        check=True,
    ).stdout.splitlines()  # fmt: skip
    found = locked(python)
    assert {name: versions for name, versions in found.items() if len(versions) != 1} == {}
    for line in asked:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate(environment(python)):
            (version,) = found[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), (
                f"{line} and the lock's {version}: run `make lock`"
            )
