"""Peers with one rule removed are found out, and nothing else is reported about them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_faulty_peers_are_found_out_and_nothing_else_is_reported() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.faulty_peers"], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
    )  # fmt: skip
    *peers, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert len(peers) >= 30
    assert summary["found"] >= 0.95 * summary["peers"]
    assert [peer["rule"] for peer in peers if peer["wrong"]] == []
    assert summary["unexplained"] == []
