"""Which process of pytest-xdist runs which tests, and in which order.

All tests of a unit run in one process, one after another. A file is a unit; so are all files that
share what takes seconds to start, which so is started once. Units that take long begin first, so
that no process is left alone with one of them at the end.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parent.parent

# What is shared by files in a folder, and how these name it.
SHARED = (
    ("Spark cluster", "tests/spark/", re.compile(r"\bstandalone_cluster\b")),
    ("Spark session", "tests/spark/", re.compile(r"\bspark: \"?SparkSession\b")),
    ("browser", "tests/report/", re.compile(r"\bopen_alone\b")),
)

# Units that take long, by the beginning of their names; the longest first.
LONG = (
    "Spark session",
    "Spark cluster",
    "tests/fuzz/test_fuzz.py",
    "tests/test_packaging.py",
    "tests/test_readme.py",
    "tests/test_docs.py",
    "tests/test_types.py",
    "tests/e2e/test_demo.py",
    "tests/tools/",
    "tests/spark/",
    "browser",
    "tests/interop/",
    "tests/bench/",
    "tests/cli/",
)


@cache
def unit_of_file(file: str) -> str:
    for name, folder, used in SHARED:
        if file.startswith(folder) and used.search((ROOT / file).read_text()):
            return name
    return file


def unit(nodeid: str) -> str:
    """The name of the unit to which a test belongs."""
    return unit_of_file(nodeid.partition("::")[0])


def rank(nodeid: str) -> int:
    """The place of the test's unit among all units: those of the lowest begin first."""
    name = unit(nodeid)
    return next((n for n, long in enumerate(LONG) if name.startswith(long)), len(LONG))


class Units(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives each process one unit after another, in the order in which they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
