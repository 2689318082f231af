"""The examples in the README and the docs run as written, those of a page one after another."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ports import free_ports

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(r"^```(python|sh)\n(.*?)^```", re.S | re.M)
FENCE = re.compile(r"^```(\w*)", re.M)

# Blocks that are not run here: output, files, Sphinx directives. JavaScript runs in tests/interop.
NOT_RUN = {"text", "toml", "js", ""}

# On a busy machine a second may not be enough for a server to start: `sleep` also waits for it.
SHELL_PRELUDE = """set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
sleep() {
    for _ in {1..300}; do
        grep -qi ":$(printf %04X ${LISTENS#:}) 00000000:0000 0A" /proc/net/tcp && break
        command sleep 0.1
    done
    command sleep $1
}
LISTENS=:9000
"""


def examples() -> dict[str, list[tuple[str, str]]]:
    """Return the examples of each page that has any, with their language."""
    found = {
        str(page.relative_to(ROOT)): [(match[1], match[2]) for match in EXAMPLE.finditer(text)]
        for page in PAGES
        if EXAMPLE.search(text := page.read_text())
    }
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which `polymux` is the package under test."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "polymux"
    command.write_text(f"#!{sys.executable}\nfrom polymux.cli import main\nmain()\n")
    command.chmod(0o755)
    return f"{command.parent}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize("page", examples())
def test_the_examples_of_a_page_run(page: str, tmp_path: Path, path: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for number, (language, code) in enumerate(examples()[page], 1):
        if language == "sh":
            command = ["bash", "-m", "-c", with_free_ports(SHELL_PRELUDE + code)]
        else:
            command = [sys.executable, "-W", "error", "-c", code]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=100,
            env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, f"example {number}:\n{done.stdout}\n{done.stderr}"
        assert done.stdout, f"example {number} printed nothing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_or_says_what_it_is(page: Path) -> None:
    fences = FENCE.findall(page.read_text())[::2]
    # The blocks of spark.md are run by tests/spark/test_notebook.py.
    elsewhere = {"py", "bash"} if page.name == "spark.md" else set()
    assert set(fences) <= {"python", "sh", *NOT_RUN, *elsewhere}


def with_free_ports(code: str) -> str:
    """Replace ports 9000 and 9001, which may be in use here, by free ones."""
    for port, free in zip(("9000", "9001"), free_ports(2), strict=True):
        code = code.replace(f":{port}", f":{free}")
    return code
