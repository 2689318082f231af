"""The page prints the same text for the same number as `polymux.text.units`."""

import json
import os
import random
import shutil
import subprocess
from importlib.resources import files

import pytest

from polymux.text.units import duration_text, rate_text, size_text

EDGES = [0, 1, 999, 1000, 1023, 1024, 1250, 9_949, 9_950, 9_999, 999_499, 999_500, 1_048_063]
EDGES += [1_048_064, 119_499_999, 119_500_000, 7_199_499_999, 7_200_000_000, 1 << 30, 3 << 40]
SCRIPT = """
const numbers = JSON.parse(require("fs").readFileSync(0, "utf8"));
const made = numbers.map((n) => [durationText(n), sizeText(n), rateText(n * 8)]);
console.log(JSON.stringify(made));
"""


def test_the_page_prints_durations_sizes_and_rates_as_python_does() -> None:
    node = shutil.which("node")
    if node is None:
        if os.environ.get("POLYMUX_NO_SKIP") == "1":
            pytest.fail("Node is not installed")
        pytest.skip("Node is not installed")
    pick = random.Random(1)
    numbers = EDGES + [int(10 ** pick.uniform(0, 15)) for _ in range(2000)]
    functions = (files("polymux.report.render") / "assets" / "dom.js").read_text(encoding="utf-8")
    done = subprocess.run(
        [node, "-e", functions + SCRIPT],
        input=json.dumps(numbers),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    expected = [[duration_text(n * 1000), size_text(n), rate_text(n, 10**9)] for n in numbers]
    assert json.loads(done.stdout) == expected
