"""The bill of materials names what polymux needs, and nothing that only its development does."""

from importlib.metadata import version
from typing import Any

from tools.sbom import bill


def test_it_lists_every_dependency_with_its_version_and_no_tool_of_development() -> None:
    found: dict[str, Any] = bill()
    parts = {part["name"]: part for part in found["components"]}
    for name in ("click", "rich", "librt", "pyarrow", "pyspark", "py4j", "websockets", "jinja2"):
        assert parts[name]["version"] == version(name)
        assert parts[name]["purl"] == f"pkg:pypi/{name}@{version(name)}"
    assert not {"pytest", "ruff", "mypy", "sphinx", "polymux"} & set(parts)
    assert found["metadata"]["component"]["name"] == "polymux"
    assert list(parts) == sorted(parts)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")


def test_it_is_the_same_each_time() -> None:
    assert bill() == bill()
