"""Print the requirements for development from pyproject.toml, without the project itself."""

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())


def expand(extra: str) -> list[str]:
    """The requirements of an extra; `polymux[a,b]` among them is replaced by those of a and b."""
    found: list[str] = []
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        if line.startswith("polymux["):
            for inner in line.removeprefix("polymux[").rstrip("]").split(","):
                found += expand(inner)
        else:
            found.append(line)
    return found


lines = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *expand("dev")]
print("\n".join(dict.fromkeys(lines)))
