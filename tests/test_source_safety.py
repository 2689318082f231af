"""What no source file may contain."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "polymux"


def test_nothing_is_unpickled_evaluated_or_given_to_a_shell() -> None:
    forbidden = re.compile(r"\bpickle\b|\beval\(|\bexec\(|yaml\.load|shell=True")
    for path in SOURCE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code = line.partition("#")[0]
            assert not forbidden.search(code), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
