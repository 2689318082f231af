"""Print a software bill of materials (CycloneDX 1.5, JSON) of polymux with all its extras.

It lists what is installed in this environment for `polymux[all]`: names, versions and licences. The
same environment gives the same text.
"""

import json
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


def requirements_of(texts: list[str], extras: set[str]) -> list[Requirement]:
    """The requirements that apply here, with one of these extras or without any."""
    parsed = [Requirement(text) for text in texts]
    return [
        each
        for each in parsed
        if each.marker is None
        or any(each.marker.evaluate({"extra": extra}) for extra in extras | {""})
    ]


def collect(requirements: list[Requirement], found: dict[str, Distribution]) -> None:
    """Add the distributions that these requirements need, and what those need in turn."""
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{requirement}: is not installed: make install") from None
        collect(requirements_of(found[name].requires or [], set(requirement.extras)), found)


def project_requirements() -> list[Requirement]:
    """What polymux itself needs, with the extra `all`; extras that name others are resolved."""
    texts: list[str] = list(PROJECT["dependencies"])
    open_extras, done = ["all"], set()
    while open_extras:
        extra = open_extras.pop()
        done.add(extra)
        for text in PROJECT["optional-dependencies"][extra]:
            wanted = Requirement(text)
            if canonicalize_name(wanted.name) == PROJECT["name"]:
                open_extras += [each for each in wanted.extras if each not in done]
            else:
                texts.append(text)
    return requirements_of(texts, set())


def component(name: str, version: str, license_text: str) -> dict[str, object]:
    reference = f"pkg:pypi/{name}@{version}"
    found: dict[str, object] = {
        "type": "library", "bom-ref": reference, "name": name, "version": version,
        "purl": reference,
    }  # fmt: skip
    if license_text:
        found["licenses"] = [{"license": {"name": license_text}}]
    return found


def license_of(found: Distribution) -> str:
    """The licence as the distribution states it: an expression, or the first line of its text."""
    given = [
        text
        for key in ("License-Expression", "License")
        for text in found.metadata.get_all(key, [])
    ]
    stated = next(filter(None, given), "")
    return stated.strip().splitlines()[0][:200] if stated.strip() else ""


def bill() -> dict[str, object]:
    """The bill of materials, with components in alphabetical order."""
    found: dict[str, Distribution] = {}
    collect(project_requirements(), found)
    own = component(PROJECT["name"], PROJECT["version"], PROJECT["license"])
    parts = [
        component(name, each.version, license_of(each)) for name, each in sorted(found.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**own, "type": "application"}},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": [part["bom-ref"] for part in parts]}],
    }


if __name__ == "__main__":
    print(json.dumps(bill(), indent=1))
